// SPDX-License-Identifier: Apache-2.0
// The CUDA backend's made weights; see ops.h. For any thread.
#ifndef FL_OPS_CUDA_WEIGHTS_H
#define FL_OPS_CUDA_WEIGHTS_H

#include "ops/ops.h"

int cuda_make_codes(struct ops *ops, const struct synth *synth, size_t first, size_t rows,
                    uint8_t *codes, float *scales, struct fl_error *e);
int cuda_make_values(struct ops *ops, const struct synth *synth, size_t first, size_t rows,
                     bool wide, void *values, struct fl_error *e);

#endif
