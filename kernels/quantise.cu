// SPDX-License-Identifier: Apache-2.0
// Quantisation of rows in blocks of 1x128, and their scales with the rows side by side.
//
// Sixteen lanes take a block, eight columns each; a lane's loads for several blocks are in flight
// at once.
#include "quantise.h"
#include "rows.cuh"

#include <cuda_runtime.h>

#define THREADS   128
#define ROWS_EACH 4 // rows of a lane

struct quantise_arguments {
    const uint16_t *x;
    uint8_t *codes;
    float *scales;
    size_t x_pitch, code_pitch;    // elements from row to row
    size_t scale_row, scale_block; // floats from row to row, from block to block
    int rows, blocks;              // blocks: of a row
    int scale_columns;             // of a row, padding included
    int code_columns;              // of a row, padding included
    int parts, part_cols[QUANTISE_PARTS];
    bool ragged; // a part's columns are no multiple of CHUNK
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
    int lane = (int)threadIdx.x % BLOCK_LANES;
    int unit = (int)(blockIdx.x * (THREADS / BLOCK_LANES) + threadIdx.x / BLOCK_LANES);
    int first = unit / q.blocks * ROWS_EACH, block = unit % q.blocks, count;
    int valid, column = block_find(q, block, &count) + lane * CHUNK;
    const uint16_t *from = q.x + first * q.x_pitch + column;
    uint4 x[ROWS_EACH];

    valid = count - lane * CHUNK;
#pragma unroll
    for (int i = 0; i < ROWS_EACH; i++)
        x[i] = first + i < q.rows && valid > 0
                   ? __ldg(reinterpret_cast<const uint4 *>(from + i * q.x_pitch))
                   : make_uint4(0, 0, 0, 0);
    column = block * 128 + lane * CHUNK;
    uint8_t *codes = q.codes + first * q.code_pitch + column;
    float *scales = q.scales + first * q.scale_row + (block + lane) * q.scale_block;
    // The lanes of the last block write the padding of the scales as well.
    bool writes_scale = lane == 0 || (block == q.blocks - 1 && block + lane < q.scale_columns);
#pragma unroll
    for (int i = 0; i < ROWS_EACH; i++) {
        float v[CHUNK], scale;
        chunk_unpack(x[i], v);
        if (q.ragged)
            chunk_mask(v, valid);
        scale = block_scale(chunk_amax(v));
        if (first + i >= q.rows)
            continue;
        if (column < q.code_columns)
            *reinterpret_cast<uint2 *>(codes + i * q.code_pitch) = chunk_codes(v, scale);
        if (writes_scale)
            scales[i * q.scale_row] = lane ? 0 : scale;
    }
}

static int quantise_launch(quantise_arguments *q, void *stream)
{
    const unsigned each = THREADS / BLOCK_LANES;
    unsigned units = (unsigned)(q->rows + ROWS_EACH - 1) / ROWS_EACH * (unsigned)q->blocks;

    for (int p = 0; p < q->parts; p++)
        q->ragged |= q->part_cols[p] % CHUNK != 0;
    quantise_kernel<<<(units + each - 1) / each, THREADS, 0, (cudaStream_t)stream>>>(*q);
    return cudaGetLastError();
}

int quantise_to_rows(const uint16_t *x, int rows, int cols, uint8_t *xq, void *stream)
{
    quantise_arguments q = {};

    if (rows <= 0 || cols <= 0)
        return 0;
    q.rows = rows;
    q.x = x;
    q.codes = xq;
    q.scales = reinterpret_cast<float *>(xq + quantised_scale_offset(cols));
    q.x_pitch = stream_row_bytes(cols) / 2;
    q.code_pitch = quantised_row_bytes(cols);
    q.scale_row = q.code_pitch / sizeof(float);
    q.scale_block = 1;
    q.blocks = (cols + 127) / 128;
    q.scale_columns = (int)((q.code_pitch - quantised_scale_offset(cols)) / sizeof(float));
    q.code_columns = (int)quantised_scale_offset(cols);
    q.parts = 1;
    q.part_cols[0] = cols;
    return quantise_launch(&q, stream);
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
        q.blocks += (part_cols[p] + 127) / 128;
        cols += part_cols[p];
    }
    if (!cols)
        return 0;
    q.rows = rows;
    q.x = dy;
    q.codes = codes;
    q.scales = scales;
    q.x_pitch = stream_row_bytes(cols) / 2;
    q.code_pitch = (size_t)q.blocks * 128;
    q.scale_row = 1;
    q.scale_block = (size_t)scale_stride;
    q.scale_columns = q.blocks;
    q.code_columns = q.blocks * 128;
    q.parts = parts;
    return quantise_launch(&q, stream);
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
