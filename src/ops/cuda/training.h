// SPDX-License-Identifier: Apache-2.0
// The CUDA backend's cross entropy and optimizer; see ops.h.
#ifndef FL_OPS_CUDA_TRAINING_H
#define FL_OPS_CUDA_TRAINING_H

#include "ops/ops.h"

// At most 393216 words: -EINVAL beyond.
int cuda_cross_entropy(struct ops *ops, real *logits, const int32_t *targets, int rows,
                       bool gradient, double scale, double *loss_sum, struct fl_error *e);
// Waits for sum.
int cuda_sum_squares(struct ops *ops, const real *x, size_t count, double *sum, struct fl_error *e);
int cuda_scale(struct ops *ops, real *x, size_t count, double factor, struct fl_error *e);
int cuda_adamw(struct ops *ops, const struct adamw *adamw, double grad_scale, size_t count,
               real *params, const real *grads, const struct moment *first,
               const struct moment *second, struct fl_error *e);

#endif
