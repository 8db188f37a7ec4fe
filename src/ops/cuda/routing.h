// SPDX-License-Identifier: Apache-2.0
// The CUDA backend's router and dispatch; see ops.h.
#ifndef FL_OPS_CUDA_ROUTING_H
#define FL_OPS_CUDA_ROUTING_H

#include "ops/ops.h"

// At most 512 experts and a top_k of 64: -EINVAL beyond.
int cuda_router_forward(struct ops *ops, const void *h, const float *weight, int tokens,
                        int64_t capacity, bool replay, struct routing *routing, struct fl_error *e);
int cuda_router_backward(struct ops *ops, const float *weight, int tokens,
                         const struct routing *routing, const real *dweights, double aux_scale,
                         void *dh, struct fl_error *e);
// Waits for counts.
int cuda_dispatch_plan(struct ops *ops, const struct routing *routing, int tokens, int32_t *order,
                       int32_t *position, int64_t *counts, struct fl_error *e);
int cuda_regroup_plan(struct ops *ops, const int64_t *counts, int sources, int experts,
                      int32_t *index, struct fl_error *e);
int cuda_rows_gather(struct ops *ops, const void *from, const int32_t *index, int divide, int rows,
                     size_t row_bytes, void *to, struct fl_error *e);
int cuda_rows_scatter(struct ops *ops, const void *from, const int32_t *index, int rows,
                      size_t row_bytes, void *to, struct fl_error *e);
int cuda_combine(struct ops *ops, const void *rows, const int32_t *position, const real *weights,
                 const void *residual, int tokens, void *out, struct fl_error *e);

#endif
