// SPDX-License-Identifier: Apache-2.0
// AdamW, the norm of gradients, scaling; on the device.
#include "optimizer.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/training.h"

#include <math.h>

int cuda_sum_squares(struct ops *ops, const real *x, size_t count, double *sum, struct fl_error *e)
{
    struct cuda *cuda = cuda_of(ops);
    struct arena_mark mark = arena_mark(cuda->arena);
    void *push[CUDA_SCRATCHES]; // parts, total
    int rc;

    if ((rc = cuda_push_all(cuda, cuda_sum_squares_scratch(), push, e)) < 0 ||
        (rc = CUDA_CHECK(optimizer_sum_squares(x, count, push[0], push[1], cuda->stream), e)) < 0 ||
        (rc = CUDA_CHECK(
             cudaMemcpyAsync(sum, push[1], sizeof *sum, cudaMemcpyDeviceToHost, cuda->stream), e)) <
            0)
        goto out;
    rc = CUDA_CHECK(cudaStreamSynchronize(cuda->stream), e);
out:
    arena_release(cuda->arena, mark);
    return rc;
}

int cuda_scale(struct ops *ops, real *x, size_t count, double factor, struct fl_error *e)
{
    return CUDA_CHECK(optimizer_scale(x, count, (float)factor, cuda_of(ops)->stream), e);
}

int cuda_adamw(struct ops *ops, const struct adamw *adamw, double grad_scale, size_t count,
               real *params, const real *grads, const struct moment *first,
               const struct moment *second, struct fl_error *e)
{
    double step = (double)adamw->step;
    struct optimizer_adamw update = {
        .params = params,
        .grads = grads,
        .m = {first->type, first->values, first->scales},
        .v = {second->type, second->values, second->scales},
        .count = count,
        .grad_scale = (float)grad_scale,
        .beta1 = (float)adamw->beta1,
        .beta2 = (float)adamw->beta2,
        .eps = (float)adamw->eps,
        .decay = (float)(1 - adamw->lr * adamw->weight_decay),
        .rate = (float)(adamw->lr / (1 - pow(adamw->beta1, step))),
        .correction = (float)sqrt(1 - pow(adamw->beta2, step)),
    };

    return CUDA_CHECK(optimizer_adamw(&update, cuda_of(ops)->stream), e);
}
