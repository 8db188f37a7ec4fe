// SPDX-License-Identifier: Apache-2.0
// Quantisation of rows in blocks of 1x128, and their scales with the rows side by side.
//
// Sixteen lanes take a block, eight columns each; a lane's loads for several blocks are in flight
// at once.
#include "quantise.h"
#include "rows.cuh"

#include <cuda_runtime.h>

#define THREADS      256
#define BLOCKS_EACH  4 // blocks of 128 that sixteen lanes take
#define BLOCKS_A_CTA (THREADS / BLOCK_LANES * BLOCKS_EACH)

struct quantise_arguments {
    const uint16_t *x;
    uint8_t *codes;
    float *scales;
    size_t x_pitch, code_pitch;    // elements from row to row
    size_t scale_row, scale_block; // floats from row to row, from block to block
    unsigned items, blocks;        // blocks in all, blocks of a row
    unsigned scale_columns;        // of a row, padding included
    int code_columns;              // of a row, padding included
    int parts, part_cols[QUANTISE_PARTS];
};

// First column of a row's block, and how many columns it has.
static __device__ __forceinline__ int block_find(const quantise_arguments &q, int block, int *count)
{
    int first = 0, left = 0;

#pragma unroll
    for (int p = 0; p < QUANTISE_PARTS; p++) {
        if (p == q.parts)
            break;
        left = q.part_cols[p] - block * 128;
        if (left > 0)
            break;
        block -= (q.part_cols[p] + 127) / 128;
        first += q.part_cols[p];
    }
    *count = min(left, 128);
    return first + block * 128;
}

__global__ static void __launch_bounds__(THREADS) quantise_kernel(const quantise_arguments q)
{
    unsigned lane = threadIdx.x % BLOCK_LANES;
    unsigned item = blockIdx.x * BLOCKS_A_CTA + threadIdx.x / BLOCK_LANES;
    uint4 x[BLOCKS_EACH];
    int valid[BLOCKS_EACH];

#pragma unroll
    for (int i = 0; i < BLOCKS_EACH; i++) {
        unsigned at = item + i * (THREADS / BLOCK_LANES), row = at / q.blocks;
        x[i] = make_uint4(0, 0, 0, 0);
        valid[i] = 0;
        if (at >= q.items)
            continue;
        int count, column = block_find(q, (int)(at - row * q.blocks), &count) + (int)lane * CHUNK;
        valid[i] = count - (int)lane * CHUNK;
        if (valid[i] > 0)
            x[i] = __ldg(reinterpret_cast<const uint4 *>(q.x + row * q.x_pitch + column));
    }
#pragma unroll
    for (int i = 0; i < BLOCKS_EACH; i++) {
        unsigned at = item + i * (THREADS / BLOCK_LANES), row = at / q.blocks;
        unsigned block = at - row * q.blocks;
        float v[CHUNK], scale;
        chunk_unpack(x[i], v);
        chunk_mask(v, valid[i]);
        scale = block_scale(chunk_amax(v));
        if (at >= q.items)
            continue;
        int column = (int)(block * 128 + lane * CHUNK);
        if (column < q.code_columns)
            *reinterpret_cast<uint2 *>(q.codes + row * q.code_pitch + column) =
                chunk_codes(v, scale);
        // The lanes of the last block write the padding of the scales as well.
        if (lane == 0 || (block == q.blocks - 1 && block + lane < q.scale_columns))
            q.scales[row * q.scale_row + (block + lane) * q.scale_block] = lane ? 0 : scale;
    }
}

static int quantise_launch(quantise_arguments *q, int rows, void *stream)
{
    q->items = (unsigned)rows * q->blocks;
    quantise_kernel<<<(q->items + BLOCKS_A_CTA - 1) / BLOCKS_A_CTA, THREADS, 0,
                      (cudaStream_t)stream>>>(*q);
    return cudaGetLastError();
}

int quantise_to_rows(const uint16_t *x, int rows, int cols, uint8_t *xq, void *stream)
{
    quantise_arguments q = {};

    if (rows <= 0 || cols <= 0)
        return 0;
    q.x = x;
    q.codes = xq;
    q.scales = reinterpret_cast<float *>(xq + quantised_scale_offset(cols));
    q.x_pitch = stream_row_bytes(cols) / 2;
    q.code_pitch = quantised_row_bytes(cols);
    q.scale_row = q.code_pitch / sizeof(float);
    q.scale_block = 1;
    q.blocks = ((unsigned)cols + 127) / 128;
    q.scale_columns = (unsigned)((q.code_pitch - quantised_scale_offset(cols)) / sizeof(float));
    q.code_columns = (int)quantised_scale_offset(cols);
    q.parts = 1;
    q.part_cols[0] = cols;
    return quantise_launch(&q, rows, stream);
}

int quantise_to_operand(const uint16_t *dy, int rows, const int *part_cols, int parts,
                        uint8_t *codes, float *scales, int scale_stride, void *stream)
{
    quantise_arguments q = {};
    int cols = 0;

    if (rows <= 0)
        return 0;
    if (parts < 1 || parts > QUANTISE_PARTS || scale_stride < rows)
        return cudaErrorInvalidValue;
    for (int p = 0; p < parts; p++) {
        if (cols % CHUNK)
            return cudaErrorInvalidValue;
        q.part_cols[p] = part_cols[p];
        q.blocks += ((unsigned)part_cols[p] + 127) / 128;
        cols += part_cols[p];
    }
    if (!cols)
        return 0;
    q.x = dy;
    q.codes = codes;
    q.scales = scales;
    q.x_pitch = stream_row_bytes(cols) / 2;
    q.code_pitch = (size_t)q.blocks * 128;
    q.scale_row = 1;
    q.scale_block = (size_t)scale_stride;
    q.scale_columns = q.blocks;
    q.code_columns = (int)q.blocks * 128;
    q.parts = parts;
    return quantise_launch(&q, rows, stream);
}

// A thread takes a row: its reads are 16 bytes, and neighbours write side by side.
__global__ static void scales_transpose_kernel(const uint8_t *xq, int rows, size_t row_bytes,
                                               size_t offset, int blocks, float *scales,
                                               size_t stride)
{
    int row = (int)(blockIdx.x * blockDim.x + threadIdx.x);

    if (row >= rows)
        return;
    const float4 *from = reinterpret_cast<const float4 *>(xq + row * row_bytes + offset);
    int first = (int)blockIdx.y * 16, end = min(blocks, first + 16);
#pragma unroll 4
    for (int b = first; b < end; b += 4) {
        float4 four = __ldg(from + b / 4);
        const float s[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (b + i < end)
                scales[(size_t)(b + i) * stride + row] = s[i];
    }
}

int scales_transpose(const uint8_t *xq, int rows, int cols, float *scales, int scale_stride,
                     void *stream)
{
    int blocks = (cols + 127) / 128;

    if (rows <= 0 || cols <= 0)
        return 0;
    if (scale_stride < rows || scale_stride % 4)
        return cudaErrorInvalidValue;
    scales_transpose_kernel<<<dim3((unsigned)(rows + 63) / 64, (unsigned)(blocks + 15) / 16), 64, 0,
                              (cudaStream_t)stream>>>(xq, rows, quantised_row_bytes(cols),
                                                      quantised_scale_offset(cols), blocks, scales,
                                                      (size_t)scale_stride);
    return cudaGetLastError();
}
