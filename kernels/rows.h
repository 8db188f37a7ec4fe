// SPDX-License-Identifier: Apache-2.0
// How rows lie in device memory, for the host and for kernels.
//
//   a stream row     is cols bf16 values, padded to 16 bytes;
//   a quantised row  is cols e4m3 codes padded to 16 bytes, then ceil(cols / 128) fp32 scales
//   padded
//                    to 16 bytes: one piece, so that it crosses the network and is gathered whole.
// Buffers begin on 16 bytes, so every row does. Padding is written as zeros and never used.
#ifndef FL_KERNELS_ROWS_H
#define FL_KERNELS_ROWS_H

#include <stddef.h>

#ifdef __CUDACC__
#define ROWS_INLINE static inline __host__ __device__
#else
#define ROWS_INLINE static inline
#endif

ROWS_INLINE size_t round_up_16(size_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

ROWS_INLINE size_t stream_row_bytes(int cols)
{
    return round_up_16((size_t)cols * 2);
}

// Where the scales of a quantised row begin.
ROWS_INLINE size_t quantised_scale_offset(int cols)
{
    return round_up_16((size_t)cols);
}

ROWS_INLINE size_t quantised_row_bytes(int cols)
{
    return round_up_16((size_t)cols) + round_up_16(((size_t)cols + 127) / 128 * 4);
}

#endif
