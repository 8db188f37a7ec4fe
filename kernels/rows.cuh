// SPDX-License-Identifier: Apache-2.0
// What kernels on rows share: eight columns at a time as one 16-byte access, and the quantisation
// of a block of 128 by the 16 neighbouring lanes that hold it.
#ifndef FL_KERNELS_ROWS_CUH
#define FL_KERNELS_ROWS_CUH

#include "rows.h"

#include <cfloat>
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#define CHUNK       8  // columns of one access to a stream row
#define BLOCK_LANES 16 // lanes that hold a block of 128
#define E4M3_LIMIT  448.0f

// The values of eight bf16, the first in the low half of x.x.
static __device__ __forceinline__ void chunk_unpack(uint4 x, float v[CHUNK])
{
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};

#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = __uint_as_float(words[i] << 16);
        v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000);
    }
}

static __device__ __forceinline__ uint32_t bf16_pair(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);

    return *reinterpret_cast<uint32_t *>(&pair);
}

static __device__ __forceinline__ uint4 chunk_pack(const float v[CHUNK])
{
    return make_uint4(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]), bf16_pair(v[4], v[5]),
                      bf16_pair(v[6], v[7]));
}

// Zero from the valid-th column on.
static __device__ __forceinline__ void chunk_mask(float v[CHUNK], int valid)
{
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
        if (i >= valid)
            v[i] = 0;
}

static __device__ __forceinline__ float chunk_amax(const float v[CHUNK])
{
    float amax = 0;

#pragma unroll
    for (int i = 0; i < CHUNK; i++)
        amax = fmaxf(amax, fabsf(v[i])); // of a NaN and a number, the number
    return amax;
}

// The scale of the block that 16 neighbouring lanes hold; all lanes of the warp call it.
static __device__ __forceinline__ float block_scale(float amax)
{
#pragma unroll
    for (int lane = BLOCK_LANES / 2; lane > 0; lane /= 2)
        amax = fmaxf(amax, __shfl_xor_sync(0xffffffff, amax, lane));
    return fmaxf(amax, FLT_MIN * E4M3_LIMIT) / E4M3_LIMIT;
}

static __device__ __forceinline__ uint32_t e4m3_pair(float low, float high)
{
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

// Eight codes of values under one scale.
static __device__ __forceinline__ uint2 chunk_codes(const float v[CHUNK], float scale)
{
    float inverse = 1 / scale;

    return make_uint2(e4m3_pair(v[0] * inverse, v[1] * inverse) |
                          e4m3_pair(v[2] * inverse, v[3] * inverse) << 16,
                      e4m3_pair(v[4] * inverse, v[5] * inverse) |
                          e4m3_pair(v[6] * inverse, v[7] * inverse) << 16);
}

// The values of eight codes under one scale.
static __device__ __forceinline__ void chunk_decode(uint2 codes, float scale, float v[CHUNK])
{
    const uint32_t words[2] = {codes.x, codes.y};

#pragma unroll
    for (int i = 0; i < 4; i++) {
        __half2 pair = __nv_cvt_fp8x2_to_halfraw2(
            (__nv_fp8x2_storage_t)(words[i / 2] >> (i % 2 * 16)), __NV_E4M3);
        v[2 * i] = __low2float(pair) * scale;
        v[2 * i + 1] = __high2float(pair) * scale;
    }
}

// Columns [column, column + 8) of a quantised row; column is a multiple of 8.
static __device__ __forceinline__ void quantised_load(const uint8_t *row, int cols, int column,
                                                      float v[CHUNK])
{
    const float *scales = reinterpret_cast<const float *>(row + quantised_scale_offset(cols));

    chunk_decode(*reinterpret_cast<const uint2 *>(row + column), scales[column / 128], v);
}

// One column of a quantised row.
static __device__ __forceinline__ float quantised_value(const uint8_t *row, int cols, int column)
{
    const float *scales = reinterpret_cast<const float *>(row + quantised_scale_offset(cols));
    __half value = __nv_cvt_fp8_to_halfraw(row[column], __NV_E4M3);

    return __half2float(value) * scales[column / 128];
}

#endif
