// SPDX-License-Identifier: Apache-2.0
// Where rows go, on the device.
#include "dispatch.h"
#include "base/memory.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/routing.h"

#include <errno.h>
#include <stdlib.h>

int cuda_dispatch_plan(struct ops *ops, const struct routing *routing, int tokens, int32_t *order,
                       int32_t *position, int64_t *counts, struct fl_error *e)
{
    struct cuda *cuda = cuda_of(ops);
    int slots = tokens * ops->model->top_k, rc;
    size_t experts = (size_t)ops->model->experts;
    struct arena_mark mark = arena_mark(cuda->arena);
    struct dispatch_plan plan = {.ids = routing->ids,
                                 .kept = routing->kept,
                                 .order = order,
                                 .position = position,
                                 .slots = slots,
                                 .experts = ops->model->experts};
    void *push[CUDA_SCRATCHES];

    rc = cuda_push_all(cuda, cuda_dispatch_plan_scratch(ops->model, tokens), push, e);
    if (rc < 0)
        goto out;
    plan.before = push[0];
    plan.first = push[1];
    plan.counts = push[2];
    if ((rc = CUDA_CHECK(dispatch_plan(&plan, cuda->stream), e)) < 0 ||
        (rc = CUDA_CHECK(cudaMemcpyAsync(counts, plan.counts, experts * sizeof *counts,
                                         cudaMemcpyDeviceToHost, cuda->stream),
                         e)) < 0)
        goto out;
    rc = CUDA_CHECK(cudaStreamSynchronize(cuda->stream), e);
out:
    arena_release(cuda->arena, mark);
    return rc;
}

// Segments in grouped order, by expert, then by source; one more ends the last.
static struct dispatch_segment *segments_create(const int64_t *counts, int sources, int experts)
{
    int count = sources * experts;
    struct dispatch_segment *segments = memory_zeroed((size_t)count + 1, sizeof *segments);
    int32_t row = 0, arrival = 0;

    for (int at = 0; at < count; at++) {
        segments[at % experts * sources + at / experts].arrival = arrival;
        arrival += (int32_t)counts[at];
    }
    for (int i = 0; i <= count; i++) {
        segments[i].row = row;
        if (i < count)
            row += (int32_t)counts[i % sources * experts + i / sources];
    }
    return segments;
}

int cuda_regroup_plan(struct ops *ops, const int64_t *counts, int sources, int experts,
                      int32_t *index, struct fl_error *e)
{
    struct cuda *cuda = cuda_of(ops);
    int count = sources * experts, rc;
    struct dispatch_segment *segments = segments_create(counts, sources, experts);
    struct arena_mark mark = arena_mark(cuda->arena);
    struct cuda_scratch scratch = cuda_regroup_plan_scratch(sources, experts);
    void *push[CUDA_SCRATCHES];

    // Pageable memory: it has been read when the call returns.
    if ((rc = cuda_push_all(cuda, scratch, push, e)) < 0 ||
        (rc = CUDA_CHECK(cudaMemcpyAsync(push[0], segments, scratch.bytes[0],
                                         cudaMemcpyHostToDevice, cuda->stream),
                         e)) < 0)
        goto out;
    rc = CUDA_CHECK(dispatch_regroup(push[0], count, index, cuda->stream), e);
out:
    arena_release(cuda->arena, mark);
    free(segments);
    return rc;
}

int cuda_rows_gather(struct ops *ops, const void *from, const int32_t *index, int divide, int rows,
                     size_t row_bytes, void *to, struct fl_error *e)
{
    return CUDA_CHECK(
        dispatch_gather(from, index, divide, rows, row_bytes, to, cuda_of(ops)->stream), e);
}

int cuda_rows_scatter(struct ops *ops, const void *from, const int32_t *index, int rows,
                      size_t row_bytes, void *to, struct fl_error *e)
{
    return CUDA_CHECK(dispatch_scatter(from, index, rows, row_bytes, to, cuda_of(ops)->stream), e);
}

int cuda_combine(struct ops *ops, const void *rows, const int32_t *position, const real *weights,
                 const void *residual, int tokens, void *out, struct fl_error *e)
{
    int pitch = (int)(stream_row_bytes(ops->model->hidden) / 2);

    return CUDA_CHECK(dispatch_combine(rows, position, weights, residual, tokens, ops->model->top_k,
                                       pitch, out, cuda_of(ops)->stream),
                      e);
}
