// SPDX-License-Identifier: Apache-2.0
// Transposition of frozen FP8 matrices, so that dX = dY W can contract over W's rows.
#ifndef FL_KERNELS_TRANSPOSE_H
#define FL_KERNELS_TRANSPOSE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TRANSPOSE_PARTS 3

// For each group, from w [n, k] with scales [blocks, ceil(k / 128)], whose blocks of 128 rows begin
// anew at every part of n: to [k, columns] with scales [ceil(k / 128), blocks], block b of the
// columns being block b of the rows, every part but the last padded with zeros to whole blocks.
// blocks = sum of ceil(part / 128). No value changes. k and the last part are multiples of 16.
// All pointers are the device's.
struct fp8_transpose {
    const uint8_t *from; // [groups, n, k] e4m3
    const float *from_scale;
    uint8_t *to;
    float *to_scale;
    int groups, k;
    int parts, part_rows[TRANSPOSE_PARTS];
};

// Queues the transposition on stream (a cudaStream_t). Returns 0 or a cudaError_t.
int fp8_transpose(const struct fp8_transpose *transpose, void *stream);

#ifdef __cplusplus
}
#endif

#endif
