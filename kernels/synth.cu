// SPDX-License-Identifier: Apache-2.0
// A block of 128x128 codes by a block of threads. Everything is integers and doubles rounded one
// operation at a time, so that no fused multiply-add changes a bit.
#include "philox.cuh"
#include "synth.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#define THREADS 256
#define BLOCK   128 // SYNTH_BLOCK, rows and columns
#define GROUP   SYNTH_CODES_A_DRAW

__device__ static uint4 draw(const struct synth &s, uint32_t what, uint64_t index)
{
    return philox(make_uint4((uint32_t)index, (uint32_t)(index >> 32), what, 0), s.key[0],
                  s.key[1]);
}

// The number of magnitudes that begin at or below the 15 bits: at most 126, in 7 halvings.
__device__ static uint32_t code_find(const uint16_t *begin, uint32_t bits)
{
    uint32_t magnitude = bits & 0x7fff, code = 0;

#pragma unroll
    for (uint32_t step = 64; step; step /= 2)
        if (code + step <= SYNTH_MAGNITUDES && begin[code + step - 1] <= magnitude)
            code += step;
    return code | (bits >> 8 & 0x80);
}

// Which of the block's columns are outliers; true where one is.
__device__ static bool outliers_find(const struct synth &s, size_t first, size_t cols,
                                     uint8_t *outlier)
{
    bool mine = false;

    for (size_t c = threadIdx.x * 4; c < cols; c += THREADS * 4) {
        uint4 d = draw(s, SYNTH_DRAW_COLUMN, (first + c) / 4);
        const uint32_t words[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
        for (size_t i = 0; i < 4; i++) {
            outlier[c + i] = c + i < cols && words[i] % SYNTH_OUTLIERS == 0;
            mine |= outlier[c + i];
        }
    }
    return __syncthreads_or(mine);
}

__device__ static float scale_make(const struct synth &s, uint32_t bits, bool loud)
{
    double spread = (double)((float)(bits >> 8) * 0x1p-24f) - 0.5;
    double scale = s.sigma * SYNTH_AMAX / 448 * (loud ? SYNTH_OUTLIER : 1);

    scale = __dmul_rn(scale, __dadd_rn(1, __dmul_rn(SYNTH_SCALE_SPREAD, spread)));
    return __bfloat162float(__float2bfloat16_rn((float)scale));
}

__global__ static void __launch_bounds__(THREADS)
    codes_kernel(struct synth s, struct synth_book book, size_t first, size_t rows, uint8_t *codes,
                 float *scales)
{
    __shared__ uint16_t begin[2][SYNTH_MAGNITUDES];
    __shared__ uint8_t outlier[BLOCK];
    size_t first_col = (size_t)blockIdx.x * BLOCK, first_row = (size_t)blockIdx.y * BLOCK;
    size_t cols = min((size_t)BLOCK, s.cols - first_col),
           high = min((size_t)BLOCK, rows - first_row);
    uint64_t draws = (s.cols + GROUP - 1) / GROUP;
    bool loud;

    for (int i = threadIdx.x; i < 2 * SYNTH_MAGNITUDES; i += THREADS)
        (&begin[0][0])[i] = (&book.begin[0][0])[i];
    loud = outliers_find(s, first_col, cols, outlier);
    for (size_t item = threadIdx.x; item < high * (BLOCK / GROUP); item += THREADS) {
        size_t row = item / (BLOCK / GROUP), c = item % (BLOCK / GROUP) * GROUP;
        uint8_t *to = codes + (first_row + row) * s.cols + first_col + c;
        uint32_t packed[2] = {0, 0};
        if (c >= cols)
            continue;
        uint4 d =
            draw(s, SYNTH_DRAW_CODES, (first + first_row + row) * draws + (first_col + c) / GROUP);
        const uint32_t words[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            bool quiet = loud && !outlier[c + i];
            packed[i / 4] |= code_find(begin[quiet], words[i / 2] >> i % 2 * 16 & 0xffff)
                             << i % 4 * 8;
        }
        if (c + GROUP <= cols && (uintptr_t)to % 8 == 0)
            *reinterpret_cast<uint2 *>(to) = make_uint2(packed[0], packed[1]);
        else
            for (size_t i = 0; i < GROUP && c + i < cols; i++)
                to[i] = (uint8_t)(packed[i / 4] >> i % 4 * 8);
    }
    __syncthreads();
    if (threadIdx.x)
        return;
    size_t columns = (s.cols + BLOCK - 1) / BLOCK, candidates = 0, col = 0;
    uint4 d = draw(s, SYNTH_DRAW_BLOCK, ((first + first_row) / BLOCK) * columns + blockIdx.x);
    for (size_t c = 0; c < cols; c++)
        candidates += !loud || outlier[c];
    size_t place = d.y % candidates;
    for (size_t c = 0; c < cols; c++)
        if ((!loud || outlier[c]) && place-- == 0)
            col = c;
    codes[(first_row + d.z % high) * s.cols + first_col + col] =
        (uint8_t)(SYNTH_MAGNITUDES | (d.w & 0x80));
    scales[blockIdx.y * columns + blockIdx.x] = scale_make(s, d.x, loud);
}

// The sum of four 16-bit numbers as weights/synth.c has it.
__device__ static float value_make(const struct synth &s, uint32_t low, uint32_t high)
{
    double sum = (double)(low & 0xffff) + (double)(low >> 16) + (double)(high & 0xffff) +
                 (double)(high >> 16);
    double gaussian = __ddiv_rn(sum - SYNTH_SUM_MEAN, SYNTH_SUM_DEVIATION);

    return (float)__dadd_rn(s.mean, __dmul_rn(s.sigma, gaussian));
}

template <typename T>
__global__ static void __launch_bounds__(THREADS)
    values_kernel(struct synth s, size_t first, size_t rows, T *values)
{
    uint64_t draws = (s.cols + 1) / 2, item = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    size_t row = item / draws, c = item % draws * 2;

    if (row >= rows)
        return;
    uint4 d = draw(s, SYNTH_DRAW_VALUES, (first + row) * draws + c / 2);
    values[row * s.cols + c] = (T)__float2bfloat16_rn(value_make(s, d.x, d.y));
    if (c + 1 < s.cols)
        values[row * s.cols + c + 1] = (T)__float2bfloat16_rn(value_make(s, d.z, d.w));
}

int synth_make_codes(const struct synth *synth, const struct synth_book *book, size_t first,
                     size_t rows, uint8_t *codes, float *scales, void *stream)
{
    dim3 grid((unsigned)((synth->cols + BLOCK - 1) / BLOCK),
              (unsigned)((rows + BLOCK - 1) / BLOCK));

    codes_kernel<<<grid, THREADS, 0, (cudaStream_t)stream>>>(*synth, *book, first, rows, codes,
                                                             scales);
    return cudaGetLastError();
}

int synth_make_values(const struct synth *synth, size_t first, size_t rows, bool wide, void *values,
                      void *stream)
{
    uint64_t draws = rows * ((synth->cols + 1) / 2);
    unsigned blocks = (unsigned)((draws + THREADS - 1) / THREADS);

    if (wide)
        values_kernel<<<blocks, THREADS, 0, (cudaStream_t)stream>>>(*synth, first, rows,
                                                                    (float *)values);
    else
        values_kernel<<<blocks, THREADS, 0, (cudaStream_t)stream>>>(*synth, first, rows,
                                                                    (__nv_bfloat16 *)values);
    return cudaGetLastError();
}
