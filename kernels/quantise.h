// SPDX-License-Identifier: Apache-2.0
// Quantisation of activations to e4m3 in blocks of 1x128 with fp32 scales amax / 448, and the form
// of the scales that fp8_gemm.h reads.
//
// A NaN stays in its place; an infinity makes its block NaN; the smallest scale is FLT_MIN, so that
// an all-zero block stays zero. Row formats: rows.h. All pointers are the device's unless marked
// "host", and begin on 16 bytes. The launchers return 0 or a cudaError_t; no rows: nothing is
// queued.
#ifndef FL_KERNELS_QUANTISE_H
#define FL_KERNELS_QUANTISE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QUANTISE_PARTS 3

// Stream rows x [rows, cols] to quantised rows xq.
int quantise_to_rows(const uint16_t *x, int rows, int cols, uint8_t *xq, void *stream);

// Stream rows dy [rows, sum of part_cols], whose blocks restart at every part, to the left operand
// of a product that contracts over the columns:
//   codes  [rows, k], k = sum over parts of round_up(part_cols, 128), a part's padding 0
//   scales [k / 128, scale_stride]; scale_stride >= rows
// Where all parts are multiples of 128, k is the number of columns. part_cols: host.
int quantise_to_operand(const uint16_t *dy, int rows, const int *part_cols, int parts,
                        uint8_t *codes, float *scales, int scale_stride, void *stream);

// scales [ceil(cols / 128), scale_stride] from the quantised rows xq [rows, cols]: a_scale of
// fp8_gemm.h, whose a is xq itself with a_pitch = quantised_row_bytes(cols). scale_stride >= rows,
// a multiple of 4. Places from rows on are not written.
int scales_transpose(const uint8_t *xq, int rows, int cols, float *scales, int scale_stride,
                     void *stream);

#ifdef __cplusplus
}
#endif

#endif
