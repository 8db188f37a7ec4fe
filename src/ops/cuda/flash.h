// SPDX-License-Identifier: Apache-2.0
// Attention of the CUDA backend by its own kernels, as ops.h says.
#ifndef FL_OPS_CUDA_FLASH_H
#define FL_OPS_CUDA_FLASH_H

#include "ops/ops.h"

int cuda_attention_forward(struct ops *ops, const void *qk, const void *qkv, const int32_t *starts,
                           int samples, void *out, real *lse, struct fl_error *e);
int cuda_attention_backward(struct ops *ops, const void *qk, const void *qkv, const void *out,
                            const real *lse, const void *dout, const int32_t *starts, int samples,
                            void *dqkv, struct fl_error *e);

#endif
