// SPDX-License-Identifier: Apache-2.0
// Embedding and RMSNorm.
#include "norm.h"
#include "embed.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/rowwise.h"

int cuda_embed(struct ops *ops, const uint16_t *table, const int32_t *ids, int tokens, void *x,
               struct fl_error *e)
{
    return CUDA_CHECK(embed_rows(table, ids, tokens, ops->model->hidden, x, cuda_of(ops)->stream),
                      e);
}

int cuda_norm_forward(struct ops *ops, const void *x, const void *delta, const float *gain,
                      int rows, int cols, void *sum, void *y, void *yq, struct fl_error *e)
{
    return CUDA_CHECK(rms_norm_forward(x, delta, gain, rows, cols, (float)ops->model->rms_eps, sum,
                                       y, yq, cuda_of(ops)->stream),
                      e);
}

int cuda_norm_backward(struct ops *ops, const void *x, const float *gain, const void *dy, int rows,
                       int cols, void *dx, struct fl_error *e)
{
    return CUDA_CHECK(rms_norm_backward(x, gain, dy, rows, cols, (float)ops->model->rms_eps, dx,
                                        cuda_of(ops)->stream),
                      e);
}
