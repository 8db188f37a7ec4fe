// SPDX-License-Identifier: Apache-2.0
// Grouped FP8 matrix product with block scales, the base product of every linear layer.
#ifndef FL_KERNELS_FP8_GEMM_H
#define FL_KERNELS_FP8_GEMM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FP8_GEMM_PARTS 3

// For each group g and its rows r in [offsets[g], offsets[g + 1]):
//   d[r, n] = sum over k of (a[r, k] a_scale[k / 128, r]) (b[g, n, k] b_scale[g, s(n), k / 128])
//           + lora_scale * sum over j of s[r, j] lora_b[g, n, j]
// with fp32 accumulation, promoted out of the tensor core every 128 of k. s(n) counts blocks of 128
// rows of b, starting anew at every part (q, k, v; gate, up).
// All pointers are the device's. k is a multiple of 16. Rows outside every group are not written.
struct fp8_gemm {
    const uint8_t *a;       // [rows, k] e4m3
    const float *a_scale;   // [ceil(k / 128), a_scale_stride]; stride >= rows, a multiple of 4
    const uint8_t *b;       // [groups, n, k] e4m3
    const float *b_scale;   // [groups, sum of ceil(part / 128), ceil(k / 128)]
    const int32_t *offsets; // [groups + 1], offsets[groups] <= rows
    void *d;                // [rows, n] bf16, or fp32 when d_is_float
    // The low-rank term; lora_rank 0: none. Ranks that are no multiple of 16 are padded with zeros.
    const uint16_t *lora_s; // [rows, s_columns] bf16; part p of n uses columns p * s_part_stride on
    const uint16_t *lora_b; // [groups, n, lora_rank] bf16
    int lora_rank, s_columns, s_part_stride; // multiples of 16
    float lora_scale;
    int rows, n, k, groups, a_pitch, a_scale_stride;
    int parts, part_rows[FP8_GEMM_PARTS]; // sum = n
    int d_is_float;
};

// Queues the product on stream (a cudaStream_t). Returns 0 or a cudaError_t.
int sm90_fp8_gemm(const struct fp8_gemm *gemm, void *stream);

#ifdef __cplusplus
}
#endif

#endif
