// SPDX-License-Identifier: Apache-2.0
// Attention: samples cut into tiles, the longest work first, for the kernels.
#include "attention.h"
#include "base/memory.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/flash.h"

#include <stdlib.h>

// The tiles of a batch, sorted in host memory.
struct tiling {
    struct attention_tile *by_keys, *by_queries; // one allocation, owned by by_keys
    int count;
};

// Longer first; equal ones in the order of their rows, so that the order is always the same.
static int order(int a, int b, int row_a, int row_b)
{
    return a != b ? (a < b ? 1 : -1) : (row_a > row_b) - (row_a < row_b);
}

static int compare_keys(const void *x, const void *y)
{
    const struct attention_tile *a = x, *b = y;

    return order(a->row - a->first, b->row - b->first, a->row, b->row);
}

static int compare_queries(const void *x, const void *y)
{
    const struct attention_tile *a = x, *b = y;

    return order(a->end - a->row, b->end - b->row, a->row, b->row);
}

static struct tiling tiling_make(const int32_t *starts, int samples)
{
    size_t most = (size_t)attention_tile_count(starts, samples);
    struct tiling t = {.by_keys = memory_zeroed(2 * most, sizeof *t.by_keys)};
    int stat_rows = 0; // each sample's padded to a multiple of 4

    for (int s = 0; s < samples; s++) {
        for (int row = starts[s]; row < starts[s + 1]; row += ATTENTION_TILE)
            t.by_keys[t.count++] =
                (struct attention_tile){row, starts[s], starts[s + 1], stat_rows + row - starts[s]};
        stat_rows += (starts[s + 1] - starts[s] + 3) / 4 * 4;
    }
    t.by_queries = t.by_keys + t.count;
    for (int i = 0; i < t.count; i++)
        t.by_queries[i] = t.by_keys[i];
    qsort(t.by_keys, (size_t)t.count, sizeof *t.by_keys, compare_keys);
    qsort(t.by_queries, (size_t)t.count, sizeof *t.by_queries, compare_queries);
    return t;
}

static int tiling_store(struct cuda *cuda, const struct tiling *t, struct attention_tile *device,
                        struct attention *a, struct fl_error *e)
{
    a->tiles = t->count;
    a->by_keys = device;
    a->by_queries = device + t->count;
    return CUDA_CHECK(attention_tiles_store(t->by_keys, 2 * t->count, device, cuda->stream), e);
}

static struct attention attention_of(const struct model *m, const void *qk, const void *qkv,
                                     int tokens)
{
    return (struct attention){
        .qk = qk,
        .qkv = qkv,
        .tokens = tokens,
        .heads = m->heads,
        .kv_heads = m->kv_heads,
        .head_dim = m->head_dim,
    };
}

int cuda_attention_forward(struct ops *ops, const void *qk, const void *qkv, const int32_t *starts,
                           int samples, void *out, real *lse, struct fl_error *e)
{
    struct cuda *cuda = cuda_of(ops);
    struct arena_mark mark = arena_mark(cuda->arena);
    struct attention a = attention_of(ops->model, qk, qkv, starts[samples]);
    void *push[CUDA_SCRATCHES];
    struct tiling t;
    int rc;

    if (a.tokens == 0)
        return 0;
    t = tiling_make(starts, samples);
    rc = cuda_push_all(cuda, cuda_attention_forward_scratch(starts, samples), push, e);
    if (rc == 0)
        rc = tiling_store(cuda, &t, push[0], &a, e);
    if (rc == 0)
        rc = CUDA_CHECK(sm90_attention_forward(&a, out, lse, cuda->stream), e);
    free(t.by_keys);
    arena_release(cuda->arena, mark);
    return rc;
}

int cuda_attention_backward(struct ops *ops, const void *qk, const void *qkv, const void *out,
                            const real *lse, const void *dout, const int32_t *starts, int samples,
                            void *dqkv, struct fl_error *e)
{
    struct cuda *cuda = cuda_of(ops);
    struct arena_mark mark = arena_mark(cuda->arena);
    struct attention a = attention_of(ops->model, qk, qkv, starts[samples]);
    void *push[CUDA_SCRATCHES]; // tiles, statistics
    struct tiling t;
    int stride, rc;

    if (a.tokens == 0)
        return 0;
    t = tiling_make(starts, samples);
    stride = attention_stat_stride(starts, samples);
    rc = cuda_push_all(cuda, cuda_attention_backward_scratch(ops->model, starts, samples), push, e);
    if (rc == 0)
        rc = tiling_store(cuda, &t, push[0], &a, e);
    if (rc == 0)
        rc = CUDA_CHECK(
            sm90_attention_backward(&a, out, lse, dout, push[1], stride, dqkv, cuda->stream), e);
    free(t.by_keys);
    arena_release(cuda->arena, mark);
    return rc;
}
