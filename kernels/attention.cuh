// SPDX-License-Identifier: Apache-2.0
// What the attention kernels share: tiles of bf16 in shared memory, their products on warpgroups,
// and the way out of the accumulators.
//
// A tile of R rows lies as D / 64 blocks, each R rows of 64 columns (128 bytes), swizzled. Read
// along its columns it is the K-major operand of a product, read along its rows the MN-major one:
// one descriptor serves both, since only the latter looks at the distance between blocks.
#ifndef FL_KERNELS_ATTENTION_CUH
#define FL_KERNELS_ATTENTION_CUH

#include "attention.h"
#include "sm90_ptx.cuh"

#include <cuda_bf16.h>
#include <stddef.h>

#define BOX_ROWS    64 // of a tensor copy
#define MATH_GROUPS 2  // warpgroups, 64 rows of a tile each
#define MATH_WARPS  (4 * MATH_GROUPS)
#define THREADS     (128 * (1 + MATH_GROUPS))
#define LOG2_E      1.4426950408889634f

template <int ROWS, int D> struct bf16_tile {
    alignas(1024) uint8_t bytes[ROWS * D * 2];
};

// d[64x64] = (accumulate ? d : 0) + A[64x16] B[64x16]^T.
static __device__ __forceinline__ void wgmma_bf16(float (&d)[32], uint32_t a, uint32_t b,
                                                  bool accumulate)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 ".reg .b64 da, db;\n"
                 "setp.ne.b32 p, %34, 0;\n"
                 "mov.b64 da, {%32, 0x40000040};\n"
                 "mov.b64 db, {%33, 0x40000040};\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, da, db, p, 1, 1, 0, 0;\n"
                 "}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                   "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31])
                 : "r"(a), "r"(b), "r"((int)accumulate));
}

// d[64x64] += A[64x16] B[16x64], A in registers.
static __device__ __forceinline__ void wgmma_bf16(float (&d)[32], const uint32_t (&a)[4],
                                                  uint32_t b)
{
    asm volatile("{\n"
                 ".reg .b64 db;\n"
                 "mov.b64 db, {%36, 0x40000040};\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, db, 1, 1, 1, 1;\n"
                 "}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                   "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}

// d[64x128] += A[64x16] B[16x128], A in registers.
static __device__ __forceinline__ void wgmma_bf16(float (&d)[64], const uint32_t (&a)[4],
                                                  uint32_t b)
{
    asm volatile("{\n"
                 ".reg .b64 db;\n"
                 "mov.b64 db, {%68, 0x40000040};\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, {%64, %65, %66, %67}, db, 1, 1, 1, 1;\n"
                 "}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                   "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
                   "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
                   "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                   "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]),
                   "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
                   "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}

// d[64x128] = (accumulate ? d : 0) + A[64x16] B[128x16]^T.
static __device__ __forceinline__ void wgmma_bf16(float (&d)[64], uint32_t a, uint32_t b,
                                                  bool accumulate)
{
    wgmma_m64n128k16_bf16(d, a, b, accumulate);
}

// The descriptor of a tile of ROWS rows; + 2 is 16 columns on, + ROWS * 8 a block of 64 columns, +
// 128 is 16 rows on.
template <int ROWS> static __device__ __forceinline__ uint32_t operand(uint32_t tile)
{
    return __shfl_sync(0xffffffff, (tile & 0x3ffff) >> 4 | ROWS * 8 << 16, 0);
}

// d = A B^T over D columns, 64 rows of A (of a tile of ROWS_A), N rows of B; queued.
template <int D, int ROWS_A, int N>
static __device__ __forceinline__ void product_columns(float (&d)[N], uint32_t a, uint32_t b)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        accumulator_fence(d[i]);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        wgmma_bf16(d, a + k / 4 * ROWS_A * 8 + k % 4 * 2, b + k / 4 * N * 2 * 8 + k % 4 * 2, k > 0);
    wgmma_commit();
#pragma unroll
    for (int i = 0; i < N; i++)
        accumulator_fence(d[i]);
}

// d += A B, A [64, 16 K] in registers, B 16 K rows of a tile of N * 2 columns; queued.
template <int K, int N>
static __device__ __forceinline__ void product_rows(float (&d)[N], const uint32_t (&a)[K][4],
                                                    uint32_t b)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        accumulator_fence(d[i]);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < K; k++)
        wgmma_bf16(d, a[k], b + k * 128);
    wgmma_commit();
#pragma unroll
    for (int i = 0; i < N; i++)
        accumulator_fence(d[i]);
}

static __device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&pair;
}

// Accumulators [64, 2 N] as the left operand of the next product.
template <int N, int K>
static __device__ __forceinline__ void pack(const float (&d)[N], uint32_t (&a)[K][4])
{
    static_assert(K * 8 == N, "16 columns are 8 accumulators");
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[k][i] = pack_bf16(d[k * 8 + i * 2], d[k * 8 + i * 2 + 1]);
}

static __device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <int N> static __device__ __forceinline__ void clear(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        d[i] = 0;
}

// Rows [row, row + ROWS) by D columns of the map's matrix; the caller has announced the bytes.
template <int ROWS, int D>
static __device__ __forceinline__ void tile_load(uint32_t to, const CUtensorMap *map, int column,
                                                 int row, uint32_t bar)
{
#pragma unroll
    for (int c = 0; c < D / 64; c++)
#pragma unroll
        for (int r = 0; r < ROWS / BOX_ROWS; r++)
            tensor_load(to + (c * ROWS + r * BOX_ROWS) * 128, map, column + c * 64,
                        row + r * BOX_ROWS, bar);
}

// A warp's 16 rows of accumulators, scaled, as bf16 through staging (16 * D * 2 bytes) to to's rows
// of pitch values; only the first rows are written.
template <int D>
static __device__ __forceinline__ void warp_store(const float (&d)[D / 2], float scale_0,
                                                  float scale_8, uint32_t staging,
                                                  __nv_bfloat16 *to, size_t pitch, int rows)
{
    int lane = threadIdx.x % 32, r = lane % 16;

    __syncwarp();
#pragma unroll
    for (int j = 0; j < D / 16; j++) { // 16 columns each
        const float *from = &d[j * 8];
        stmatrix_x4(staging + j / 4 * 2048 + r * 128 + ((j % 4 * 2 + lane / 16) ^ r % 8) * 16,
                    pack_bf16(from[0] * scale_0, from[1] * scale_0),
                    pack_bf16(from[2] * scale_8, from[3] * scale_8),
                    pack_bf16(from[4] * scale_0, from[5] * scale_0),
                    pack_bf16(from[6] * scale_8, from[7] * scale_8));
    }
    __syncwarp();
#pragma unroll
    for (int c = 0; c < D / 64; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = i * 4 + lane / 8, piece = (lane % 8) ^ row % 8;
            uint4 values = shared_load_16(staging + c * 2048 + row * 128 + piece * 16);
            if (row < rows)
                *(uint4 *)(to + row * pitch + c * 64 + lane % 8 * 8) = values;
        }
}

// Turns of the two math warpgroups at queueing products, so that one's other work falls into the
// other's products: each waits for its own barrier and then opens the other's. The second opens the
// first turn, the first waits for the one left over in the end.
static __device__ __forceinline__ void turn_wait(int math)
{
    asm volatile("bar.sync %0, 256;" ::"r"(1 + math) : "memory");
}

static __device__ __forceinline__ void turn_pass(int math)
{
    asm volatile("bar.arrive %0, 256;" ::"r"(2 - math) : "memory");
}

// A stage of a ring and the parity of its barriers' phase.
struct ring {
    int stage, phase;
};

template <int STAGES> static __device__ __forceinline__ void ring_step(ring &r)
{
    if (++r.stage == STAGES) {
        r.stage = 0;
        r.phase ^= 1;
    }
}

// A tile of queries of one head.
struct query_work {
    attention_tile tile;
    int head;
};

static __device__ __forceinline__ attention_tile tile_get(const attention_tile *tiles, int i)
{
    int4 x = __ldg((const int4 *)tiles + i);
    return {x.x, x.y, x.z, x.w};
}

// The block's work of a round. Work is sorted, long first; every other round is dealt backwards so
// that all blocks get nearly the same.
static __device__ __forceinline__ bool query_work_find(const attention &a, int round, query_work &w)
{
    int place = round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    int item = round * gridDim.x + place;

    if (item >= a.tiles * a.heads)
        return false;
    w.tile = tile_get(a.by_keys, item / a.heads);
    w.head = item % a.heads;
    return true;
}

#endif
