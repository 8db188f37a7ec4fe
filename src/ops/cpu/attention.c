// SPDX-License-Identifier: Apache-2.0
// Causal grouped-query attention confined to each sample, in tiles of query rows.
//
// Of the forward pass only the logarithm of each row's softmax denominator is kept; the backward
// pass recomputes the probabilities from it: Dao, "FlashAttention-2" (2023).
#include "ops/cpu/cpu.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#define TILE CPU_ATTENTION_ROWS

// Where a (sample, kv head) pair's rows lie; leading dimensions in elements.
struct view {
    int first, length; // tokens
    int dim, group;    // group: query heads of one kv head
    size_t qk_row, qkv_row, out_row;
    real scale;
};

static struct view view_make(const struct model *m, const int32_t *starts, int sample)
{
    size_t dim = (size_t)m->head_dim;

    return (struct view){
        .first = starts[sample],
        .length = starts[sample + 1] - starts[sample],
        .dim = m->head_dim,
        .group = m->heads / m->kv_heads,
        .qk_row = (size_t)(m->heads + m->kv_heads) * dim,
        .qkv_row = (size_t)(m->heads + 2 * m->kv_heads) * dim,
        .out_row = (size_t)m->heads * dim,
        .scale = (real)(1 / sqrt((double)m->head_dim)),
    };
}

// p [rows, keys]: unnormalised probabilities of scaled scores; 0 after the diagonal.
static void tile_softmax(bool fp8, real *p, int rows, int keys, real *sums, real *lse)
{
    for (int i = 0; i < rows; i++) {
        int seen = keys - rows + i + 1;
        real *row = p + (size_t)i * (size_t)keys, top = row[0], sum = 0;
        for (int j = 1; j < seen; j++)
            top = row[j] > top ? row[j] : top;
        for (int j = 0; j < seen; j++) {
            real exponential = real_exp(row[j] - top);
            sum += exponential;
            row[j] = round_to_bf16(fp8, exponential);
        }
        for (int j = seen; j < keys; j++)
            row[j] = 0;
        sums[i] = sum;
        lse[i] = top + real_log(sum);
    }
}

static void head_forward(bool fp8, const struct view *v, const real *q, const real *k,
                         const real *value, real *out, real *lse, real *p)
{
    real sums[TILE];

    for (int first = 0; first < v->length; first += TILE) {
        int rows = v->length - first < TILE ? v->length - first : TILE, keys = first + rows;
        real *o = out + (size_t)first * v->out_row;
        gemm_nt(rows, keys, v->dim, v->scale, q + (size_t)first * v->qk_row, (int)v->qk_row, k,
                (int)v->qk_row, 0, p, keys);
        tile_softmax(fp8, p, rows, keys, sums, lse + first);
        gemm_nn(rows, v->dim, keys, 1, p, keys, value, (int)v->qkv_row, 0, o, (int)v->out_row);
        for (int i = 0; i < rows; i++) {
            real *row = o + (size_t)i * v->out_row, inverse = 1 / sums[i];
#pragma omp simd
            for (int c = 0; c < v->dim; c++)
                row[c] = round_to_bf16(fp8, row[c] * inverse);
        }
    }
}

int cpu_attention_forward(struct ops *ops, const void *qk, const void *qkv, const int32_t *starts,
                          int samples, void *out, real *lse, struct fl_error *e)
{
    struct cpu *cpu = cpu_of(ops);
    const struct model *m = ops->model;
    struct arena_mark mark = arena_mark(cpu->arena);
    size_t dim = (size_t)m->head_dim, heads = (size_t)m->heads, kv = (size_t)m->kv_heads;
    size_t tokens = (size_t)starts[samples], tile = attention_tile_size(starts, samples);
    struct cpu_scratch scratch = cpu_attention_forward_scratch(starts, samples, cpu->threads);
    void *push[CPU_SCRATCHES] = {NULL};
    real *tiles;
    int rc = cpu_push(cpu, &scratch, push, e);

    if (rc < 0)
        return rc;
    tiles = push[0];
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads)
    for (int task = 0; task < samples * m->heads; task++) {
        size_t h = (size_t)(task % m->heads);
        struct view v = view_make(m, starts, task / m->heads);
        size_t first = (size_t)v.first, g = h / (size_t)v.group;
        head_forward(cpu->fp8, &v, (const real *)qk + first * v.qk_row + h * dim,
                     (const real *)qk + first * v.qk_row + (heads + g) * dim,
                     (const real *)qkv + first * v.qkv_row + (heads + kv + g) * dim,
                     (real *)out + first * v.out_row + h * dim, lse + h * tokens + first,
                     tiles + tile * (size_t)omp_get_thread_num());
    }
    arena_release(cpu->arena, mark);
    return 0;
}

// p: scaled scores become probabilities, dp: their gradient becomes that of the scores.
static void tile_softmax_backward(bool fp8, real *p, real *dp, int rows, int keys, const real *lse,
                                  const real *dots)
{
    for (int i = 0; i < rows; i++) {
        int seen = keys - rows + i + 1;
        real *row = p + (size_t)i * (size_t)keys, *d = dp + (size_t)i * (size_t)keys;
        for (int j = 0; j < seen; j++) {
            real probability = real_exp(row[j] - lse[i]);
            d[j] = round_to_bf16(fp8, probability * (d[j] - dots[i]));
            row[j] = round_to_bf16(fp8, probability);
        }
        for (int j = seen; j < keys; j++)
            row[j] = d[j] = 0;
    }
}

// Pointers to the first row of one head's tensors in a sample.
struct head {
    const real *q, *k, *v, *out, *dout, *lse;
    real *dq, *dk, *dv;
};

static void head_backward(bool fp8, const struct view *v, const struct head *h, real *p, real *dp)
{
    int qk = (int)v->qk_row, qkv = (int)v->qkv_row, wide = (int)v->out_row;
    real dots[TILE];

    for (int first = 0; first < v->length; first += TILE) {
        int rows = v->length - first < TILE ? v->length - first : TILE, keys = first + rows;
        const real *q = h->q + (size_t)first * v->qk_row;
        const real *o = h->out + (size_t)first * v->out_row;
        const real *d = h->dout + (size_t)first * v->out_row;
        for (int i = 0; i < rows; i++) {
            dots[i] = 0;
            for (int c = 0; c < v->dim; c++)
                dots[i] +=
                    o[(size_t)i * v->out_row + (size_t)c] * d[(size_t)i * v->out_row + (size_t)c];
        }
        gemm_nt(rows, keys, v->dim, v->scale, q, qk, h->k, qk, 0, p, keys);
        gemm_nt(rows, keys, v->dim, 1, d, wide, h->v, qkv, 0, dp, keys);
        tile_softmax_backward(fp8, p, dp, rows, keys, h->lse + first, dots);
        gemm_nn(rows, v->dim, keys, v->scale, dp, keys, h->k, qk, 0,
                h->dq + (size_t)first * v->qkv_row, qkv);
        gemm_tn(keys, v->dim, rows, v->scale, dp, keys, q, qk, 1, h->dk, qkv);
        gemm_tn(keys, v->dim, rows, 1, p, keys, d, wide, 1, h->dv, qkv);
    }
}

int cpu_attention_backward(struct ops *ops, const void *qk, const void *qkv, const void *out,
                           const real *lse, const void *dout, const int32_t *starts, int samples,
                           void *dqkv, struct fl_error *e)
{
    struct cpu *cpu = cpu_of(ops);
    const struct model *m = ops->model;
    struct arena_mark mark = arena_mark(cpu->arena);
    size_t dim = (size_t)m->head_dim, heads = (size_t)m->heads, kv = (size_t)m->kv_heads;
    size_t tokens = (size_t)starts[samples], tile = attention_tile_size(starts, samples);
    size_t count = tokens * (heads + 2 * kv) * dim;
    struct cpu_scratch scratch = cpu_attention_backward_scratch(starts, samples, cpu->threads);
    void *push[CPU_SCRATCHES] = {NULL};
    real *tiles;
    int rc = cpu_push(cpu, &scratch, push, e);

    if (rc < 0)
        return rc;
    tiles = push[0];
    if (count)
        memset(dqkv, 0, count * sizeof(real));
        // A task owns its kv head's dk and dv: the query heads of its group add up in a fixed
        // order.
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads)
    for (int task = 0; task < samples * m->kv_heads; task++) {
        size_t g = (size_t)(task % m->kv_heads);
        struct view v = view_make(m, starts, task / m->kv_heads);
        size_t first = (size_t)v.first;
        real *p = tiles + 2 * tile * (size_t)omp_get_thread_num();
        for (size_t h = g * (size_t)v.group; h < (g + 1) * (size_t)v.group; h++) {
            struct head head = {
                .q = (const real *)qk + first * v.qk_row + h * dim,
                .k = (const real *)qk + first * v.qk_row + (heads + g) * dim,
                .v = (const real *)qkv + first * v.qkv_row + (heads + kv + g) * dim,
                .out = (const real *)out + first * v.out_row + h * dim,
                .dout = (const real *)dout + first * v.out_row + h * dim,
                .lse = lse + h * tokens + first,
                .dq = (real *)dqkv + first * v.qkv_row + h * dim,
                .dk = (real *)dqkv + first * v.qkv_row + (heads + g) * dim,
                .dv = (real *)dqkv + first * v.qkv_row + (heads + kv + g) * dim,
            };
            head_backward(cpu->fp8, &v, &head, p, p + tile);
        }
    }
    round_rows(cpu->fp8, dqkv, count);
    arena_release(cpu->arena, mark);
    return 0;
}
