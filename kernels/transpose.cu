// SPDX-License-Identifier: Apache-2.0
// Transposition of frozen FP8 matrices: blocks of 128x128 bytes, four by four bytes in registers,
// the rest through shared memory in 16-byte pieces permuted against bank conflicts.
#include "transpose.h"

#include <cuda_runtime.h>

#define BLOCK   128
#define THREADS 256

// Words of four rows, byte i of each, become word i of four columns.
static __device__ __forceinline__ void bytes_transpose(const uint32_t (&in)[4], uint32_t (&out)[4])
{
    uint32_t low_01 = __byte_perm(in[0], in[1], 0x5140),
             high_01 = __byte_perm(in[0], in[1], 0x7362);
    uint32_t low_23 = __byte_perm(in[2], in[3], 0x5140),
             high_23 = __byte_perm(in[2], in[3], 0x7362);

    out[0] = __byte_perm(low_01, low_23, 0x5410);
    out[1] = __byte_perm(low_01, low_23, 0x7632);
    out[2] = __byte_perm(high_01, high_23, 0x5410);
    out[3] = __byte_perm(high_01, high_23, 0x7632);
}

static __global__
__launch_bounds__(THREADS) void transpose_kernel(const __grid_constant__ struct fp8_transpose w,
                                                 int n, int blocks, int columns)
{
    __shared__ __align__(16) uint32_t tile[BLOCK][BLOCK / 4]; // [column of w][four rows]
    int k_block = blockIdx.x, n_block = blockIdx.y, group = blockIdx.z;
    int first = 0, in_part = n_block, rows = 0, piece = threadIdx.x % 8, four = threadIdx.x / 8;
    uint32_t words[4][4];

    for (int p = 0; p < w.parts; p++) {
        int part_blocks = (w.part_rows[p] + BLOCK - 1) / BLOCK;
        if (in_part < part_blocks) {
            first += in_part * BLOCK;
            rows = min(BLOCK, w.part_rows[p] - in_part * BLOCK);
            break;
        }
        in_part -= part_blocks;
        first += w.part_rows[p];
    }
    int k = k_block * BLOCK + piece * 16;
    const uint8_t *from = w.from + ((size_t)group * n + first) * w.k + k;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = four * 4 + i;
        uint4 v = row < rows && k < w.k ? __ldg((const uint4 *)(from + (size_t)row * w.k))
                                        : make_uint4(0, 0, 0, 0);
        words[i][0] = v.x;
        words[i][1] = v.y;
        words[i][2] = v.z;
        words[i][3] = v.w;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t in[4] = {words[0][j], words[1][j], words[2][j], words[3][j]}, out[4];
        bytes_transpose(in, out);
#pragma unroll
        for (int i = 0; i < 4; i++)
            tile[piece * 16 + j * 4 + i][(four / 4 ^ piece) * 4 + four % 4] = out[i];
    }
    __syncthreads();
    uint8_t *to = w.to + ((size_t)group * w.k + k_block * BLOCK) * columns + n_block * BLOCK;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int column = i * 32 + four;
        if (k_block * BLOCK + column < w.k && n_block * BLOCK + piece * 16 < columns)
            *(uint4 *)(to + (size_t)column * columns + piece * 16) =
                *(const uint4 *)&tile[column][(piece ^ column / 16) * 4];
    }
    if (threadIdx.x == 0) {
        size_t grid = (size_t)group * gridDim.x * blocks;
        w.to_scale[grid + (size_t)k_block * blocks + n_block] =
            w.from_scale[grid + (size_t)n_block * gridDim.x + k_block];
    }
}

extern "C" int fp8_transpose(const struct fp8_transpose *w, void *stream)
{
    int n = 0, blocks = 0, columns = 0;

    if (w->k % 16 || w->parts < 1 || w->parts > TRANSPOSE_PARTS)
        return cudaErrorInvalidValue;
    for (int p = 0; p < w->parts; p++) {
        n += w->part_rows[p];
        columns = blocks * BLOCK + w->part_rows[p];
        blocks += (w->part_rows[p] + BLOCK - 1) / BLOCK;
    }
    if (columns % 16)
        return cudaErrorInvalidValue;
    if (w->groups == 0)
        return 0;
    transpose_kernel<<<dim3((w->k + BLOCK - 1) / BLOCK, blocks, w->groups), THREADS, 0,
                       (cudaStream_t)stream>>>(*w, n, blocks, columns);
    return cudaGetLastError();
}
