// SPDX-License-Identifier: Apache-2.0
// Rates of the operations on rows at the shapes of a 30B model: 4096 tokens, hidden 2048, 32 and 4
// heads of 128, 8 experts of width 768 a token.
#include "time_rows.h"
#include "ops/cuda/rowwise.h"
#include "quantise.h"
#include "swiglu.h"

#include <stdio.h>
#include <stdlib.h>

#define POOL_BYTES  ((size_t)2 << 30)
#define REPETITIONS 60

enum { TOKENS = 4096, ROWS = 8 * TOKENS, HIDDEN = 2048, HEADS = 32, KV_HEADS = 4, DIM = 128 };
enum { QK = (HEADS + KV_HEADS) * DIM, QKV = QK + KV_HEADS * DIM, WIDTH = 768 };

// Every repetition takes fresh pieces of two pools far larger than the L2 cache, of which one holds
// random values.
struct pool {
    char *base;
    size_t at;
};

static struct pool input, output;

static void *take(struct pool *pool, size_t bytes)
{
    bytes = (bytes + 255) / 256 * 256;
    if (pool->at + bytes > POOL_BYTES)
        pool->at = 0;
    pool->at += bytes;
    return pool->base + pool->at - bytes;
}

static void *in(int rows, int cols)
{
    return take(&input, (size_t)rows * stream_row_bytes(cols));
}

static void *out(int rows, int cols)
{
    return take(&output, (size_t)rows * stream_row_bytes(cols));
}

static void *out_quantised(int rows, int cols)
{
    return take(&output, (size_t)rows * quantised_row_bytes(cols));
}

static void pools_create(void)
{
    enum { PIECE = 1 << 22 };
    uint16_t *piece = malloc(PIECE * 2);

    if (!piece)
        abort();
    // Uniform in bits over magnitudes of 0.25 to 4.
    for (int i = 0; i < PIECE; i++)
        piece[i] = (uint16_t)((rand() % 2 << 15) | (0x3e80 + rand() % 0x200));
    CHECK(cudaMalloc((void **)&input.base, POOL_BYTES));
    CHECK(cudaMalloc((void **)&output.base, POOL_BYTES));
    for (size_t at = 0; at < POOL_BYTES; at += PIECE * 2)
        CHECK(cudaMemcpy(input.base + at, piece, PIECE * 2, cudaMemcpyHostToDevice));
    CHECK(cudaMemset(output.base, 0x3c, POOL_BYTES));
    free(piece);
}

#define TIME(name, bytes, call)                                                                    \
    do {                                                                                           \
        float ms;                                                                                  \
        for (int i = -5; i < REPETITIONS; i++) {                                                   \
            if (i == 0)                                                                            \
                CHECK(cudaEventRecord(begin, cuda->stream));                                       \
            call;                                                                                  \
        }                                                                                          \
        CHECK(cudaEventRecord(end, cuda->stream));                                                 \
        CHECK(cudaEventSynchronize(end));                                                          \
        CHECK(cudaEventElapsedTime(&ms, begin, end));                                              \
        printf("# %-36s %7.1f us %6.0f GB/s\n", name, 1e3 * ms / REPETITIONS,                      \
               (double)(bytes)*REPETITIONS / ms / 1e6);                                            \
    } while (0)

void time_rows(struct cuda *cuda, struct model *model)
{
    const size_t hidden = (size_t)TOKENS * HIDDEN, act = (size_t)ROWS * WIDTH;
    const size_t turned = (size_t)TOKENS * QK * 2;
    struct ops *ops = &cuda->table;
    int32_t *ids = malloc(TOKENS * sizeof *ids), *ids_device;
    float *gain, *table;
    cudaEvent_t begin, end;

    pools_create();
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (int t = 0; ids && t < TOKENS; t++)
        ids[t] = rand() % 151936;
    CHECK(cudaMalloc((void **)&ids_device, TOKENS * sizeof *ids));
    CHECK(cudaMemcpy(ids_device, ids, TOKENS * sizeof *ids, cudaMemcpyHostToDevice));
    free(ids);
    CHECK(cudaMalloc((void **)&gain, HIDDEN * sizeof *gain));
    CHECK(cudaMemset(gain, 0x3f, HIDDEN * sizeof *gain));
    CHECK(cudaMalloc((void **)&table, TOKENS * DIM * sizeof *table));
    model->hidden = HIDDEN;
    model->heads = HEADS;
    model->kv_heads = KV_HEADS;
    model->head_dim = DIM;
    TIME("device copy", hidden * 16,
         CHECK(cudaMemcpyAsync(out(ROWS, HIDDEN / 2), in(ROWS, HIDDEN / 2), hidden * 8,
                               cudaMemcpyDeviceToDevice, cuda->stream)));
    TIME("device copy as large as a stream", hidden * 4,
         CHECK(cudaMemcpyAsync(out(TOKENS, HIDDEN), in(TOKENS, HIDDEN), hidden * 2,
                               cudaMemcpyDeviceToDevice, cuda->stream)));
    TIME("embed", hidden * 4,
         OK(cuda_embed(ops, (uint16_t *)input.base, ids_device, TOKENS, out(TOKENS, HIDDEN),
                       &rows_error)));
    TIME("norm, quantised", hidden * 5,
         OK(cuda_norm_forward(ops, in(TOKENS, HIDDEN), NULL, gain, TOKENS, HIDDEN, NULL,
                              out(TOKENS, HIDDEN), out_quantised(TOKENS, HIDDEN), &rows_error)));
    TIME("norm of a sum, quantised", hidden * 9,
         OK(cuda_norm_forward(ops, in(TOKENS, HIDDEN), in(TOKENS, HIDDEN), gain, TOKENS, HIDDEN,
                              out(TOKENS, HIDDEN), out(TOKENS, HIDDEN),
                              out_quantised(TOKENS, HIDDEN), &rows_error)));
    TIME("norm backward", hidden * 8,
         OK(cuda_norm_backward(ops, in(TOKENS, HIDDEN), gain, in(TOKENS, HIDDEN), TOKENS, HIDDEN,
                               out(TOKENS, HIDDEN), &rows_error)));
    TIME("quantise, hidden", hidden * 3,
         OK(cuda_quantise(ops, in(TOKENS, HIDDEN), TOKENS, HIDDEN, out_quantised(TOKENS, HIDDEN),
                          &rows_error)));
    TIME("quantise, heads", hidden * 6,
         OK(cuda_quantise(ops, in(TOKENS, 2 * HIDDEN), TOKENS, 2 * HIDDEN,
                          out_quantised(TOKENS, 2 * HIDDEN), &rows_error)));
    TIME("quantise parts of qkv", (size_t)TOKENS * QKV * 3,
         CHECK(quantise_to_operand(
             in(TOKENS, QKV), TOKENS, (int[]){HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM}, 3,
             out_quantised(TOKENS, QKV), out(TOKENS, QKV / 64), TOKENS, cuda->stream)));
    TIME("scales transposed, experts' input", (size_t)ROWS * HIDDEN / 16,
         CHECK(scales_transpose(out_quantised(ROWS, HIDDEN), ROWS, HIDDEN, out(ROWS, HIDDEN / 64),
                                ROWS, cuda->stream)));
    TIME("scales transposed, experts' act", act / 16,
         CHECK(scales_transpose(out_quantised(ROWS, WIDTH), ROWS, WIDTH, out(ROWS, WIDTH / 64),
                                ROWS, cuda->stream)));
    TIME("rope table", (size_t)TOKENS * DIM * 4,
         OK(cuda_rope_table(ops, ids_device, TOKENS, table, &rows_error)));
    TIME("rope forward", turned * 2,
         OK(cuda_rope_forward(ops, in(TOKENS, QKV), gain, gain, table, TOKENS, out(TOKENS, QK),
                              &rows_error)));
    TIME("rope backward", turned * 3,
         OK(cuda_rope_backward(ops, in(TOKENS, QKV), gain, gain, table, TOKENS, out(TOKENS, QKV),
                               &rows_error)));
    TIME("swiglu", act * 7,
         CHECK(swiglu_forward(in(ROWS, 2 * WIDTH), ROWS, WIDTH, out(ROWS, WIDTH),
                              out_quantised(ROWS, WIDTH), cuda->stream)));
    TIME("swiglu backward", act * 12,
         CHECK(swiglu_backward(in(ROWS, 2 * WIDTH), in(ROWS, WIDTH), ROWS, WIDTH,
                               out(ROWS, 2 * WIDTH), out_quantised(ROWS, 2 * WIDTH),
                               out(ROWS, WIDTH / 32), ROWS, cuda->stream)));
}
