// SPDX-License-Identifier: Apache-2.0
// What the low-rank kernels share: rows as bf16 after dropout, the tile of a block, the matrix
// instruction.
#ifndef FL_KERNELS_LORA_CUH
#define FL_KERNELS_LORA_CUH

#include "lora.h"
#include "philox.cuh"
#include "rows.h"

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

// The factors, 0 or keep, of eight columns of a row.
static __device__ __forceinline__ void dropout_factors(const lora_dropout &d, int group, int row,
                                                       int column, float (&factor)[8])
{
    uint64_t key = d.keys[row];
    uint4 random = philox(make_uint4((uint32_t)key, (uint32_t)(key >> 32), (uint32_t)column / 8,
                                     d.group_first + group),
                          d.key[0], d.key[1]);
    uint32_t words[4] = {random.x, random.y, random.z, random.w};

#pragma unroll
    for (int i = 0; i < 8; i++)
        factor[i] = (words[i / 2] >> i % 2 * 16 & 0xffff) < d.threshold ? 0 : d.keep;
}

static __device__ __forceinline__ uint32_t bf16_pair(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&pair;
}

static __device__ __forceinline__ float bf16_low(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}

static __device__ __forceinline__ float bf16_high(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000);
}

static __device__ __forceinline__ uint4 bf16_pack(const float (&v)[8])
{
    return make_uint4(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]), bf16_pair(v[4], v[5]),
                      bf16_pair(v[6], v[7]));
}

static __device__ __forceinline__ void bf16_unpack(uint4 x, float (&v)[8])
{
    uint32_t words[4] = {x.x, x.y, x.z, x.w};

#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = i % 2 ? bf16_high(words[i / 2]) : bf16_low(words[i / 2]);
}

static __device__ __forceinline__ void e4m3_unpack(uint2 codes, float scale, float (&v)[8])
{
    uint32_t words[2] = {codes.x, codes.y};

#pragma unroll
    for (int i = 0; i < 4; i++) {
        __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(
            (__nv_fp8x2_storage_t)(words[i / 2] >> i % 2 * 16), __NV_E4M3);
        float2 pair = __half22float2(__half2(raw));
        v[i * 2] = pair.x * scale;
        v[i * 2 + 1] = pair.y * scale;
    }
}

// Eight columns of a row, as they lie in memory.
template <bool QUANTISED> struct row_piece;
template <> struct row_piece<false> {
    uint4 values;
};
template <> struct row_piece<true> {
    uint2 codes;
    float scale;
};

static __device__ __forceinline__ void piece_load(const lora_rows &x, int row, int column, bool in,
                                                  row_piece<false> &p)
{
    const uint16_t *from = (const uint16_t *)x.x + (size_t)row * x.row_columns + x.column + column;

    p.values = in ? __ldg((const uint4 *)from) : make_uint4(0, 0, 0, 0);
}

static __device__ __forceinline__ void piece_load(const lora_rows &x, int row, int column, bool in,
                                                  row_piece<true> &p)
{
    const uint8_t *from = (const uint8_t *)x.x + (size_t)row * quantised_row_bytes(x.row_columns);
    const float *scales = (const float *)(from + quantised_scale_offset(x.row_columns));

    p.codes = in ? __ldg((const uint2 *)(from + column)) : make_uint2(0, 0);
    p.scale = in ? __ldg(scales + column / 128) : 0;
}

static __device__ __forceinline__ uint4 values_drop(const lora_dropout &d, int group, int row,
                                                    int column, float (&v)[8])
{
    float factor[8];

    dropout_factors(d, group, row, column, factor);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] *= factor[i];
    return bf16_pack(v);
}

// The piece as bf16 after dropout.
template <bool DROPOUT>
static __device__ __forceinline__ uint4 piece_bf16(const lora_rows &x, int group, int row,
                                                   int column, bool in, const row_piece<false> &p)
{
    float v[8];

    if (!DROPOUT || !in)
        return p.values;
    bf16_unpack(p.values, v);
    return values_drop(x.dropout, group, row, column, v);
}

template <bool DROPOUT>
static __device__ __forceinline__ uint4 piece_bf16(const lora_rows &x, int group, int row,
                                                   int column, bool in, const row_piece<true> &p)
{
    float v[8];

    e4m3_unpack(p.codes, p.scale, v);
    if (!DROPOUT || !in)
        return bf16_pack(v);
    return values_drop(x.dropout, group, row, column, v);
}

// c [16 x 8] += A [16 x 16] B [16 x 8]; the operands' 16 contracted elements may stand in any order
// that both share.
static __device__ __forceinline__ void mma_bf16(float (&c)[4], uint32_t a0, uint32_t a1,
                                                uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// A tile of at most tile_rows rows of one group.
struct row_tile {
    int group, row, row_end; // row_end: of the tile
    int index, count;        // of the tile in its group, tiles of the group
};

static __host__ __device__ inline int row_tiles_most(const lora_groups &g, int tile_rows)
{
    return g.rows / tile_rows + g.groups;
}

// The tile number `wanted` of all groups', found by the block's first warp; every thread calls.
static __device__ __forceinline__ bool row_tile_find(const lora_groups &g, int tile_rows,
                                                     int wanted, row_tile &t)
{
    __shared__ row_tile found;
    int lane = threadIdx.x % 32, before = 0;

    if (threadIdx.x < 32) {
        if (lane == 0)
            found.group = -1;
        __syncwarp();
        for (int base = 0; base < g.groups && before <= wanted; base += 32) {
            int i = base + lane, from = 0, to = 0;
            if (i < g.groups) {
                from = g.offsets[i];
                to = g.offsets[i + 1];
            }
            int tiles = (to - from + tile_rows - 1) / tile_rows, sum = tiles;
            for (int shift = 1; shift < 32; shift *= 2) {
                int other = __shfl_up_sync(0xffffffff, sum, shift);
                if (lane >= shift)
                    sum += other;
            }
            int index = wanted - (before + sum - tiles);
            if (index >= 0 && index < tiles) {
                int row = from + index * tile_rows;
                found = {i, row, min(row + tile_rows, to), index, tiles};
            }
            before += __shfl_sync(0xffffffff, sum, 31);
        }
    }
    __syncthreads();
    t = found;
    return t.group >= 0;
}

#endif
