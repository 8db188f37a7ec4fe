// SPDX-License-Identifier: Apache-2.0
// AdamW, the norm of gradients, scaling; over fp32 arrays, moments aside. All launchers: queued on
// stream (a cudaStream_t), 0 or a cudaError_t.
#ifndef FL_KERNELS_OPTIMIZER_H
#define FL_KERNELS_OPTIMIZER_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SUM_SQUARES_PARTS 1024

// sum[0] = sum of x^2 in double, the same in every run; parts: scratch [SUM_SQUARES_PARTS].
int optimizer_sum_squares(const float *x, size_t count, double *parts, double *sum, void *stream);

int optimizer_scale(float *x, size_t count, float factor, void *stream);

// With g = grad_scale * grads:
//   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2,
//   params = decay params - rate m / (sqrt(v) / correction + eps)
// A moment is stored as ops/moment.h says, type an enum storage of job/spec.h; the second one's fp8
// holds square roots. scales: of fp16 and fp8.
struct optimizer_moment {
    int type;
    void *values;
    float *scales;
};
struct optimizer_adamw {
    float *params;
    const float *grads;
    struct optimizer_moment m, v;
    size_t count;
    float grad_scale, beta1, beta2, eps;
    float decay;      // 1 - learning rate * weight decay
    float rate;       // learning rate / (1 - beta1^step)
    float correction; // sqrt(1 - beta2^step)
};
int optimizer_adamw(const struct optimizer_adamw *adamw, void *stream);

#ifdef __cplusplus
}
#endif

#endif
