// SPDX-License-Identifier: Apache-2.0
// LoRA products of one adapter group, forward and backward, a block of rows at a time.
#include "ops/cpu/cpu.h"

#include "base/philox.h"

#include <math.h>
#include <string.h>

// Parts of the scratch: A, B, the rows of x (after dropout) and of dy as the products read them,
// the dropout mask, S = dropout(x) A^T and its gradient, the rows of dx.
struct lora_scratch {
    real *a, *b, *mask, *x, *dy, *s, *ds, *dx;
};

static struct lora_scratch scratch_split(const struct lora *lora, int in, real *scratch)
{
    size_t rank = (size_t)lora->rank, width = (size_t)in;
    struct lora_scratch s = {.a = scratch};

    s.b = s.a + rank * width;
    s.mask = s.b + rank * (size_t)lora_widest_part(lora);
    s.x = s.mask + CPU_LORA_ROWS * width;
    s.dx = s.x + CPU_LORA_ROWS * width;
    s.dy = s.dx + CPU_LORA_ROWS * width;
    s.s = s.dy + CPU_LORA_ROWS * (size_t)lora_widest_part(lora);
    s.ds = s.s + CPU_LORA_ROWS * rank;
    return s;
}

// A parameter matrix as the products read it: rounded to bf16 in fp8 numerics.
static const real *operand(bool fp8, const real *from, size_t count, real *copy)
{
    if (!fp8)
        return from;
    memcpy(copy, from, count * sizeof(real));
    round_rows(fp8, copy, count);
    return copy;
}

// mask [rows, in]: 0 or 1 / (1 - p). One Philox call gives eight numbers of 16 bits, the lower half
// of each word first; a number below 65536 p drops its column.
static void dropout_mask(const struct lora *lora, const uint32_t key[2], int group,
                         const uint64_t *keys, int rows, int in, real *mask)
{
    real keep = (real)(1 / (1 - lora->dropout));
    uint32_t expert = (uint32_t)(lora->expert_first + group);
    uint32_t threshold = (uint32_t)lrint(65536 * lora->dropout);

#pragma omp parallel for schedule(static)
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < in; c += 8) {
            uint32_t counter[4] = {(uint32_t)keys[r], (uint32_t)(keys[r] >> 32), (uint32_t)c / 8,
                                   expert};
            uint32_t random[4];
            real *to = mask + (size_t)r * (size_t)in + (size_t)c;
            philox4x32(counter, key, random);
            for (int i = 0; i < 8 && c + i < in; i++)
                to[i] = (random[i / 2] >> i % 2 * 16 & 0xffff) < threshold ? 0 : keep;
        }
}

// The rows of x after dropout as the products read them: rounded to bf16 in fp8 numerics, where the
// experts' are dequantised values of more bits. x itself when neither changes it.
static const real *dropped(bool fp8, const struct lora *lora, const struct lora_part *part,
                           int group, const uint64_t *keys, const real *x, int rows, int in,
                           const struct lora_scratch *scratch)
{
    size_t count = (size_t)rows * (size_t)in;

    if (lora->dropout == 0)
        return operand(fp8, x, count, scratch->x);
    dropout_mask(lora, part->key, group, keys, rows, in, scratch->mask);
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < count; i++)
        scratch->x[i] = round_to_bf16(fp8, x[i] * scratch->mask[i]);
    return scratch->x;
}

void lora_forward(bool fp8, const struct lora *lora, int group, const uint64_t *keys, const real *x,
                  int rows, int in, real *y, int out, real *scratch)
{
    int rank = lora->rank;
    size_t a_size = (size_t)rank * (size_t)in;
    struct lora_scratch s;

    if (lora->count == 0 || rows == 0)
        return;
    s = scratch_split(lora, in, scratch);
    for (const struct lora_part *p = lora->part; p < lora->part + lora->count; p++) {
        size_t b_size = (size_t)p->rows * (size_t)rank;
        const real *a = operand(fp8, p->a + (size_t)group * a_size, a_size, s.a);
        const real *b = operand(fp8, p->b + (size_t)group * b_size, b_size, s.b);
        for (int r = 0; r < rows; r += CPU_LORA_ROWS) {
            int n = rows - r < CPU_LORA_ROWS ? rows - r : CPU_LORA_ROWS;
            const real *block = dropped(fp8, lora, p, group, keys ? keys + r : NULL,
                                        x + (size_t)r * (size_t)in, n, in, &s);
            gemm_nt(n, rank, in, 1, block, in, a, in, 0, s.s, rank);
            round_rows(fp8, s.s, (size_t)n * (size_t)rank);
            gemm_nt(n, p->rows, rank, (real)lora->scale, s.s, rank, b, rank, 1,
                    y + (size_t)r * (size_t)out + p->row, out);
        }
    }
}

// A part's rows of dy as the products read them; *row: from one to the next.
static const real *gradient(bool fp8, const struct lora_part *part, const real *dy, int rows,
                            int out, const struct lora_scratch *scratch, int *row)
{
    const real *from = dy + part->row;
    size_t width = (size_t)part->rows;

    *row = out;
    if (!fp8)
        return from;
    *row = part->rows;
#pragma omp parallel for schedule(static)
    for (int r = 0; r < rows; r++)
        for (size_t c = 0; c < width; c++)
            scratch->dy[(size_t)r * width + c] =
                round_to_bf16(fp8, from[(size_t)r * (size_t)out + c]);
    return scratch->dy;
}

static void rows_weigh(bool fp8, const real *weights, int rows, int cols, real *x)
{
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++) {
            real *at = x + (size_t)r * (size_t)cols + c;
            *at = round_to_bf16(fp8, *at * weights[r]);
        }
}

// dx += mask * (ds A) for a block of rows.
static void input_gradient(const struct lora *lora, const real *a, int rows, int in,
                           const struct lora_scratch *s, real *dx)
{
    size_t count = (size_t)rows * (size_t)in;

    if (lora->dropout == 0) {
        gemm_nn(rows, in, lora->rank, 1, s->ds, lora->rank, a, in, 1, dx, in);
        return;
    }
    gemm_nn(rows, in, lora->rank, 1, s->ds, lora->rank, a, in, 0, s->dx, in);
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < count; i++)
        dx[i] += s->mask[i] * s->dx[i];
}

void lora_backward(bool fp8, const struct lora *lora, int group, const uint64_t *keys,
                   const real *row_weights, const real *x, const real *dy, int rows, int in,
                   int out, real *dx, real *scratch)
{
    int rank = lora->rank;
    real scale = (real)lora->scale;
    size_t a_size = (size_t)rank * (size_t)in;
    struct lora_scratch s;

    if (lora->count == 0 || rows == 0)
        return;
    s = scratch_split(lora, in, scratch);
    for (const struct lora_part *p = lora->part; p < lora->part + lora->count; p++) {
        size_t b_size = (size_t)p->rows * (size_t)rank;
        const real *a = operand(fp8, p->a + (size_t)group * a_size, a_size, s.a);
        const real *b = operand(fp8, p->b + (size_t)group * b_size, b_size, s.b);
        real *da = p->da + (size_t)group * a_size, *db = p->db + (size_t)group * b_size;
        for (int r = 0; r < rows; r += CPU_LORA_ROWS) {
            int n = rows - r < CPU_LORA_ROWS ? rows - r : CPU_LORA_ROWS;
            const real *block = dropped(fp8, lora, p, group, keys ? keys + r : NULL,
                                        x + (size_t)r * (size_t)in, n, in, &s);
            int row;
            const real *d = gradient(fp8, p, dy + (size_t)r * (size_t)out, n, out, &s, &row);
            gemm_nt(n, rank, in, 1, block, in, a, in, 0, s.s, rank);
            gemm_nn(n, rank, p->rows, scale, d, row, b, rank, 0, s.ds, rank);
            round_rows(fp8, s.s, (size_t)n * (size_t)rank);
            round_rows(fp8, s.ds, (size_t)n * (size_t)rank);
            if (dx)
                input_gradient(lora, a, n, in, &s, dx + (size_t)r * (size_t)in);
            if (row_weights) {
                rows_weigh(fp8, row_weights + r, n, rank, s.s);
                rows_weigh(fp8, row_weights + r, n, rank, s.ds);
            }
            gemm_tn(p->rows, rank, n, scale, d, row, s.s, rank, 1, db, rank);
            gemm_tn(rank, in, n, 1, s.ds, rank, block, in, 1, da, in);
        }
    }
}
