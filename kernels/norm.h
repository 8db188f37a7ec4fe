// SPDX-License-Identifier: Apache-2.0
// RMSNorm of stream rows, with what stands before and after it: the residual sum and quantisation.
//
// Row formats: rows.h; quantisation: quantise.h. All pointers are the device's and begin on 16
// bytes. The launchers return 0 or a cudaError_t; no rows: nothing is queued.
#ifndef FL_KERNELS_NORM_H
#define FL_KERNELS_NORM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NORM_COLUMNS_MOST 16384

// s = x + delta rounded to bf16, or x where delta is NULL; y = s / sqrt(mean(s^2) + eps) * gain.
// x, delta, sum, y: stream rows [rows, cols]; gain [cols]; yq: quantised rows of the fp32 y, NULL:
// not wanted. sum is written if there is a delta, and may be x or delta.
int rms_norm_forward(const uint16_t *x, const uint16_t *delta, const float *gain, int rows,
                     int cols, float eps, uint16_t *sum, uint16_t *y, uint8_t *yq, void *stream);

// dx += gradient of the norm at x; in fp32, rounded once. dx may not be x or dy.
int rms_norm_backward(const uint16_t *x, const float *gain, const uint16_t *dy, int rows, int cols,
                      float eps, uint16_t *dx, void *stream);

#ifdef __cplusplus
}
#endif

#endif
