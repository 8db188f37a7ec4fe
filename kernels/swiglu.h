// SPDX-License-Identifier: Apache-2.0
// SwiGLU, act = silu(gate) * up, with its quantisation, and its gradient.
//
// W, the expert width, is a multiple of 8. Row formats: rows.h; quantisation: quantise.h. All
// pointers are the device's and begin on 16 bytes. The launchers return 0 or a cudaError_t; no
// rows: nothing is queued.
#ifndef FL_KERNELS_SWIGLU_H
#define FL_KERNELS_SWIGLU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Stream rows gate_up [rows, 2W]: gate, then up. act: stream rows [rows, W]; actq: quantised rows
// [rows, W] of the same fp32 values. Either may be NULL: not wanted.
int swiglu_forward(const uint16_t *gate_up, int rows, int width, uint16_t *act, uint8_t *actq,
                   void *stream);

// Stream rows gate_up [rows, 2W], dact [rows, W] to dgate_up: stream rows [rows, 2W] for the LoRA
// products, NULL: not wanted; and to the left operand of dX = dY W, the quantised dgate_up:
//   codes  [rows, 2 * round_up(W, 128)], the padding of each half 0
//   scales [2 * ceil(W / 128), scale_stride]; scale_stride >= rows
// Rounded to bf16 first, then quantised. dgate_up may be gate_up.
int swiglu_backward(const uint16_t *gate_up, const uint16_t *dact, int rows, int width,
                    uint16_t *dgate_up, uint8_t *codes, float *scales, int scale_stride,
                    void *stream);

#ifdef __cplusplus
}
#endif

#endif
