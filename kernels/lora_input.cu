// SPDX-License-Identifier: Apache-2.0
// The last step of an input gradient that the base product cannot finish itself: LoRA's share where
// dropout masks it, the factor of the routing weight and that weight's own gradient.
#include "lora.cuh"

#define THREADS   256
#define WARPS     (THREADS / 32)
#define TILE_ROWS 16

// Adds part p's masked share for rows row + {0, 8} and columns column + [0, 8) of a thread, the
// warp's columns beginning at first.
static __device__ __forceinline__ void share_add(const struct lora_input &in, const row_tile &tile,
                                                 int p, int row, int first, float (&v)[2][8])
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, pitch = in.parts * in.padded_rank;
    int column = first + t * 8;
    float acc[4][4] = {}, factor[8];

    for (int k = 0; k < in.padded_rank; k += 16) {
        uint2 a[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            a[i] = row + i * 8 < tile.row_end
                       ? __ldg((const uint2 *)(in.ds + (size_t)(row + i * 8) * pitch +
                                               p * in.padded_rank + k + t * 4))
                       : make_uint2(0, 0);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            // Fragment column n of the i-th product: so that a thread's results are neighbours.
            int c = min(first + g / 2 * 8 + i * 2 + g % 2, in.columns - 1);
            uint2 b = __ldg((const uint2 *)(in.at + ((size_t)tile.group * in.columns + c) * pitch +
                                            p * in.padded_rank + k + t * 4));
            mma_bf16(acc[i], a[0].x, a[1].x, a[0].y, a[1].y, b.x, b.y);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (row + half * 8 >= tile.row_end || column >= in.columns)
            continue;
        dropout_factors(in.dropout[p], tile.group, row + half * 8, column, factor);
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[half][i] += factor[i] * acc[i / 2][half * 2 + i % 2];
    }
}

static __global__
__launch_bounds__(THREADS) void input_kernel(const __grid_constant__ struct lora_input in,
                                             const lora_groups groups)
{
    __shared__ float dots[WARPS][TILE_ROWS];
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float weight[2] = {1, 1}, dot[2] = {0, 0};
    row_tile tile;

    if (!row_tile_find(groups, TILE_ROWS, blockIdx.x, tile))
        return;
    int row = tile.row + g;
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (in.act && row + half * 8 < tile.row_end)
            weight[half] = in.weights[row + half * 8];
    for (int first = warp * 32; first < in.columns; first += WARPS * 32) {
        int column = first + t * 8;
        float v[2][8] = {};
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (row + half * 8 < tile.row_end && column < in.columns) {
                const float4 *from =
                    (const float4 *)(in.base + (size_t)(row + half * 8 - in.base_row) * in.columns +
                                     column);
                float4 low = __ldg(from), high = __ldg(from + 1);
                v[half][0] = low.x;
                v[half][1] = low.y;
                v[half][2] = low.z;
                v[half][3] = low.w;
                v[half][4] = high.x;
                v[half][5] = high.y;
                v[half][6] = high.z;
                v[half][7] = high.w;
            }
        for (int p = 0; p < in.parts; p++)
            share_add(in, tile, p, row, first, v);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            size_t at = (size_t)(row + half * 8) * in.columns + column;
            if (row + half * 8 >= tile.row_end || column >= in.columns)
                continue;
            if (in.act) {
                float act[8];
                bf16_unpack(__ldg((const uint4 *)(in.act + at)), act);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    dot[half] += v[half][i] * act[i];
                    v[half][i] *= weight[half];
                }
            }
            *(uint4 *)(in.dx + at) = bf16_pack(v[half]);
        }
    }
    if (!in.act)
        return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        dot[half] += __shfl_xor_sync(0xffffffff, dot[half], 1);
        dot[half] += __shfl_xor_sync(0xffffffff, dot[half], 2);
        if (t == 0)
            dots[warp][g + half * 8] = dot[half];
    }
    __syncthreads();
    if (threadIdx.x < TILE_ROWS && tile.row + threadIdx.x < tile.row_end) {
        float sum = 0;
        for (int i = 0; i < WARPS; i++)
            sum += dots[i][threadIdx.x];
        in.dweights[tile.row + threadIdx.x] = sum;
    }
}

extern "C" int lora_input(const struct lora_input *input, const struct lora_groups *groups,
                          void *stream)
{
    if (input->columns % 16 || input->padded_rank % 16 || input->parts > LORA_PARTS)
        return cudaErrorInvalidValue;
    if (groups->rows == 0)
        return 0;
    input_kernel<<<row_tiles_most(*groups, TILE_ROWS), THREADS, 0, (cudaStream_t)stream>>>(*input,
                                                                                           *groups);
    return cudaGetLastError();
}
