// SPDX-License-Identifier: Apache-2.0
// The least time that work takes on an H200: its arithmetic at the best rates measured there, or
// its bytes at the rate of a device copy.
#ifndef FL_BENCH_FLOORS_H
#define FL_BENCH_FLOORS_H

#include "ops/ops.h"

// Floating-point operations by kind, and bytes that must be read or written.
struct work {
    double fp8, bf16, attention_forward, attention_backward, bytes;
};

double work_floor_s(struct work work);

// Work of operations of ops/ops.h. Matrices of experts without rows are not read.
struct work work_bytes(double bytes);
struct work work_forward(const struct fp8_matrix *w, const struct lora *lora,
                         const struct group *group, int rows, double row_bytes);
struct work work_backward(const struct fp8_matrix *w, const struct lora *lora,
                          const struct group *group, int rows, bool dx, double row_bytes);
struct work work_attention(const struct model *m, const int32_t *starts, int samples,
                           bool backward);

// What a step must compute whatever it computes twice: forward and backward of one micro-batch.
struct work work_model(const struct model *m, const int32_t *starts, int samples, int lora_rank,
                       unsigned lora_targets);

#endif
