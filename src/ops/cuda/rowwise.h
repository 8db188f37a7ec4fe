// SPDX-License-Identifier: Apache-2.0
// The operations that pass over rows once: embedding, norms, quantisation, rotary embedding.
#ifndef FL_OPS_CUDA_ROWWISE_H
#define FL_OPS_CUDA_ROWWISE_H

#include "ops/ops.h"

int cuda_embed(struct ops *ops, const uint16_t *table, const int32_t *ids, int tokens, void *x,
               struct fl_error *e);
int cuda_norm_forward(struct ops *ops, const void *x, const void *delta, const float *gain,
                      int rows, int cols, void *sum, void *y, void *yq, struct fl_error *e);
int cuda_norm_backward(struct ops *ops, const void *x, const float *gain, const void *dy, int rows,
                       int cols, void *dx, struct fl_error *e);
int cuda_quantise(struct ops *ops, const void *x, int rows, int cols, void *xq, struct fl_error *e);
int cuda_rope_table(struct ops *ops, const int32_t *positions, int tokens, real *table,
                    struct fl_error *e);
int cuda_rope_forward(struct ops *ops, const void *qkv, const float *q_norm, const float *k_norm,
                      const real *table, int tokens, void *qk, struct fl_error *e);
int cuda_rope_backward(struct ops *ops, const void *qkv, const float *q_norm, const float *k_norm,
                       const real *table, int tokens, void *dqkv, struct fl_error *e);

#endif
