// SPDX-License-Identifier: Apache-2.0
// Closed form of the GPU backend's scratch.
//
// The head alone takes 32 MiB, so operations that stay below it in any job are not looked at.
#include "job/gpu_scratch.h"

#include "job/model.h"

#define ALIGNMENT   256
#define HEAD_ROWS   256                   // NET_HEAD_CHUNK
#define BLAS_BYTES  (UINT64_C(32) << 20)  // cuBLASLt's workspace
#define RANGE_BYTES (UINT64_C(192) << 20) // of transposed weights at once
#define RANGE_ROWS  16384                 // of an fp32 gradient at once, unless an expert has more

static uint64_t up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static uint64_t aligned(uint64_t bytes)
{
    return up(bytes, ALIGNMENT);
}

static uint64_t blocks(uint64_t n)
{
    return (n + FP8_BLOCK - 1) / FP8_BLOCK;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

// One frozen matrix, [rows, cols] for each group, with its adapters.
struct product {
    uint64_t groups, rows, cols;
    uint64_t blocks, contracted; // of all parts of rows; rows with parts before the last padded
    uint64_t adapters, widest;   // parts with one, rows of the widest
    uint64_t terms;              // parts that S has columns for
    uint64_t rank;               // padded
};

// Scales of a left operand, transposed.
static uint64_t operand_scales(uint64_t rows, uint64_t column_blocks)
{
    return aligned(column_blocks * up(rows, 4) * 4);
}

// First rows, scales of the input, B, S and, a part at a time, A.
static uint64_t forward(const struct product *p, uint64_t rows)
{
    uint64_t bytes = aligned((p->groups + 1) * 4) + operand_scales(rows, blocks(p->cols));

    if (p->adapters)
        bytes += aligned(p->groups * p->rows * p->rank * 2) +
                 aligned(rows * p->terms * p->rank * 2) +
                 aligned(p->groups * p->rank * p->cols * 2);
    return bytes;
}

// Most experts, and most rows, that one range of dX is made for: filled experts come first.
static void range_most(const struct gpu_scratch_job *j, const struct product *p, uint64_t rows,
                       bool finishes, uint64_t *groups, uint64_t *range_rows)
{
    uint64_t left = rows, most = p->groups == 1 ? rows : j->ranks * j->most;
    uint64_t weights = p->contracted * p->cols, n = 0, sum = 0;

    *groups = *range_rows = 0;
    for (uint64_t g = 0; g < p->groups; g++) {
        uint64_t mine = left < most ? left : most;
        if (n && ((n + 1) * weights > RANGE_BYTES || (finishes && sum + mine > RANGE_ROWS)))
            n = sum = 0;
        n++;
        sum += mine;
        left -= mine;
        *groups = larger(*groups, n);
        *range_rows = larger(*range_rows, sum);
    }
}

// dY as a left operand.
static uint64_t quantised(const struct product *p, uint64_t rows)
{
    return aligned(rows * p->blocks * FP8_BLOCK) + operand_scales(rows, p->blocks);
}

// First rows, dS and, in turn, S with a part's A or B: what the adapters' gradients take.
static uint64_t adapters_backward(const struct product *p, uint64_t rows, uint64_t *turn)
{
    *turn = p->adapters ? aligned(rows * p->rank * 2) +
                              aligned(p->groups * p->rank * larger(p->cols, p->widest) * 2)
                        : 0;
    return aligned((p->groups + 1) * 4) + aligned(rows * p->adapters * p->rank * 2);
}

// And for dX: A transposed; then in turn transposed weights, their scales and, where something
// comes to them, fp32 rows.
static uint64_t backward(const struct gpu_scratch_job *j, const struct product *p, uint64_t rows,
                         bool weighted)
{
    bool finishes = weighted || (p->adapters && j->dropout);
    uint64_t groups, range_rows, turn, dx, stay = adapters_backward(p, rows, &turn);

    range_most(j, p, rows, finishes, &groups, &range_rows);
    dx = aligned(groups * p->contracted * p->cols) +
         aligned(groups * p->blocks * blocks(p->cols) * 4) +
         (finishes ? aligned(range_rows * p->cols * 4) : 0);
    return stay + aligned(p->groups * p->cols * p->adapters * p->rank * 2) + larger(turn, dx);
}

// Below the first layer nothing wants dX.
static uint64_t qkv_backward(const struct gpu_scratch_job *j, const struct product *p,
                             uint64_t rows)
{
    uint64_t turn, stay;

    if (j->layers > 1)
        return quantised(p, rows) + backward(j, p, rows, false);
    stay = adapters_backward(p, rows, &turn);
    return stay + turn;
}

static struct product qkv_of(const struct gpu_scratch_job *j)
{
    uint64_t qkv = j->q + 2 * j->kv, q = !!(j->targets & LORA_Q), k = !!(j->targets & LORA_K);
    uint64_t v = !!(j->targets & LORA_V);
    bool fused = j->targets & LORA_QKV;

    return (struct product){
        .groups = 1,
        .rows = qkv,
        .cols = j->hidden,
        .blocks = blocks(j->q) + 2 * blocks(j->kv),
        .contracted = (blocks(j->q) + blocks(j->kv)) * FP8_BLOCK + j->kv,
        .adapters = fused ? 1 : q + k + v,
        .widest = fused ? qkv : larger(q * j->q, (k | v) * j->kv),
        .terms = fused ? 1 : 3,
        .rank = up(j->rank, 16),
    };
}

// Of one part.
static struct product plain(const struct gpu_scratch_job *j, uint64_t groups, uint64_t rows,
                            uint64_t cols, unsigned target)
{
    return (struct product){
        .groups = groups,
        .rows = rows,
        .cols = cols,
        .blocks = blocks(rows),
        .contracted = rows,
        .adapters = !!(j->targets & target),
        .widest = rows,
        .terms = 1,
        .rank = up(j->rank, 16),
    };
}

static void consider(struct gpu_scratch *most, const char *name, uint64_t bytes)
{
    if (bytes > most->bytes)
        *most = (struct gpu_scratch){name, bytes};
}

struct gpu_scratch gpu_scratch_most(const struct gpu_scratch_job *j)
{
    uint64_t tokens = j->samples * j->length, rows = j->ranks * j->mine;
    uint64_t chunk = tokens < HEAD_ROWS ? tokens : HEAD_ROWS;
    struct product qkv = qkv_of(j), proj = plain(j, 1, j->hidden, j->q, LORA_PROJ);
    struct product fc1 = plain(j, j->experts_local, 2 * j->width, j->hidden, LORA_FC1);
    struct product fc2 = plain(j, j->experts_local, j->hidden, j->width, LORA_FC2);
    struct gpu_scratch most = {"head", BLAS_BYTES};

    fc1.blocks = 2 * blocks(j->width);
    fc1.contracted = blocks(j->width) * FP8_BLOCK + j->width;
    consider(&most, "q k v", forward(&qkv, tokens));
    consider(&most, "output", forward(&proj, tokens));
    consider(&most, "gate and up", forward(&fc1, rows));
    consider(&most, "down", forward(&fc2, rows));
    if (!j->training)
        return most;
    consider(&most, "q k v backward", qkv_backward(j, &qkv, tokens));
    consider(&most, "output backward",
             quantised(&proj, tokens) + backward(j, &proj, tokens, false));
    consider(&most, "gate and up backward",
             aligned(rows * up(2 * j->width * 2, 16)) + quantised(&fc1, rows) +
                 backward(j, &fc1, rows, false));
    consider(&most, "down backward",
             operand_scales(rows, blocks(j->hidden)) + backward(j, &fc2, rows, true));
    consider(&most, "attention backward",
             aligned(2 * j->samples * blocks(j->length) * 16) +
                 aligned(j->heads * (j->samples * up(j->length, 4) + 128) * 8));
    consider(&most, "router backward",
             2 * aligned(tokens * up(j->experts, 64) * 2) + aligned(j->experts * 4));
    consider(&most, "head backward", BLAS_BYTES + aligned(chunk * up(j->vocab, 8) * 2));
    return most;
}
