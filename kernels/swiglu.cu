// SPDX-License-Identifier: Apache-2.0
// SwiGLU and its gradient, quantised on the way out: sixteen lanes take a block of 128 columns.
#include "swiglu.h"
#include "rows.cuh"

#include <cuda_runtime.h>

#define THREADS       256
#define FORWARD_EACH  4 // blocks of 128 that sixteen lanes take
#define BACKWARD_EACH 2

struct forward_arguments {
    const uint16_t *gate_up;
    uint16_t *act;          // NULL: not wanted
    uint8_t *actq;          // NULL: not wanted
    unsigned items, blocks; // blocks of 128 in all, in a row
    int width, code_columns;
    unsigned scale_columns;
    size_t act_pitch, actq_pitch;
};

struct backward_arguments {
    const uint16_t *gate_up, *dact;
    uint16_t *dgate_up; // NULL: not wanted; may be gate_up
    uint8_t *codes;
    float *scales;
    unsigned items, blocks; // blocks of 128 in all, in half a row
    int width;
    size_t scale_stride;
};

static __device__ __forceinline__ float sigmoid(float x)
{
    return __fdividef(1, 1 + __expf(-x));
}

__global__ static void __launch_bounds__(THREADS) forward_kernel(const forward_arguments s)
{
    unsigned lane = threadIdx.x % BLOCK_LANES;
    unsigned item = blockIdx.x * (THREADS / BLOCK_LANES * FORWARD_EACH) + threadIdx.x / BLOCK_LANES;
    uint4 gate[FORWARD_EACH], up[FORWARD_EACH];

#pragma unroll
    for (int i = 0; i < FORWARD_EACH; i++) {
        unsigned at = item + i * (THREADS / BLOCK_LANES), row = at / s.blocks;
        int column = (int)((at - row * s.blocks) * 128 + lane * CHUNK);
        gate[i] = up[i] = make_uint4(0, 0, 0, 0);
        if (at < s.items && column < s.width) {
            const uint16_t *from = s.gate_up + (size_t)row * 2 * s.width + column;
            gate[i] = __ldg(reinterpret_cast<const uint4 *>(from));
            up[i] = __ldg(reinterpret_cast<const uint4 *>(from + s.width));
        }
    }
#pragma unroll
    for (int i = 0; i < FORWARD_EACH; i++) {
        unsigned at = item + i * (THREADS / BLOCK_LANES), row = at / s.blocks;
        unsigned block = at - row * s.blocks;
        int column = (int)(block * 128 + lane * CHUNK);
        float g[CHUNK], u[CHUNK], scale;
        chunk_unpack(gate[i], g);
        chunk_unpack(up[i], u);
#pragma unroll
        for (int c = 0; c < CHUNK; c++)
            g[c] = g[c] * sigmoid(g[c]) * u[c];
        scale = block_scale(chunk_amax(g));
        if (at >= s.items)
            continue;
        if (s.act && column < s.width)
            *reinterpret_cast<uint4 *>(s.act + row * s.act_pitch + column) = chunk_pack(g);
        if (!s.actq)
            continue;
        uint8_t *to = s.actq + row * s.actq_pitch;
        if (column < s.code_columns)
            *reinterpret_cast<uint2 *>(to + column) = chunk_codes(g, scale);
        // The lanes of the last block write the padding of the scales as well.
        if (lane == 0 || (block == s.blocks - 1 && block + lane < s.scale_columns))
            reinterpret_cast<float *>(to + s.code_columns)[block + lane] = lane ? 0 : scale;
    }
}

int swiglu_forward(const uint16_t *gate_up, int rows, int width, uint16_t *act, uint8_t *actq,
                   void *stream)
{
    const unsigned each = THREADS / BLOCK_LANES * FORWARD_EACH;
    forward_arguments s = {};

    if (width % CHUNK)
        return cudaErrorInvalidValue;
    if (rows <= 0 || width <= 0)
        return 0;
    s.gate_up = gate_up;
    s.act = act;
    s.actq = actq;
    s.blocks = ((unsigned)width + 127) / 128;
    s.items = (unsigned)rows * s.blocks;
    s.width = width;
    s.code_columns = (int)quantised_scale_offset(width);
    s.act_pitch = stream_row_bytes(width) / 2;
    s.actq_pitch = quantised_row_bytes(width);
    s.scale_columns = (unsigned)((s.actq_pitch - quantised_scale_offset(width)) / sizeof(float));
    forward_kernel<<<(s.items + each - 1) / each, THREADS, 0, (cudaStream_t)stream>>>(s);
    return cudaGetLastError();
}

// Stores one half's block of a row: rounded to bf16, then quantised.
static __device__ __forceinline__ void gradient_store(const backward_arguments &s, unsigned row,
                                                      unsigned block, int half, unsigned lane,
                                                      bool inside, float v[CHUNK])
{
    int column = (int)(block * 128 + lane * CHUNK);
    uint4 rounded = chunk_pack(v);
    float scale;

    chunk_unpack(rounded, v);
    scale = block_scale(chunk_amax(v));
    if (!inside)
        return;
    if (s.dgate_up && column < s.width)
        *reinterpret_cast<uint4 *>(s.dgate_up + ((size_t)row * 2 + half) * s.width + column) =
            rounded;
    *reinterpret_cast<uint2 *>(s.codes + ((size_t)row * 2 + half) * s.blocks * 128 + column) =
        chunk_codes(v, scale);
    if (lane == 0)
        s.scales[(half * s.blocks + block) * s.scale_stride + row] = scale;
}

__global__ static void __launch_bounds__(THREADS) backward_kernel(const backward_arguments s)
{
    unsigned lane = threadIdx.x % BLOCK_LANES;
    unsigned item =
        blockIdx.x * (THREADS / BLOCK_LANES * BACKWARD_EACH) + threadIdx.x / BLOCK_LANES;
    uint4 gate[BACKWARD_EACH], up[BACKWARD_EACH], dact[BACKWARD_EACH];

#pragma unroll
    for (int i = 0; i < BACKWARD_EACH; i++) {
        unsigned at = item + i * (THREADS / BLOCK_LANES), row = at / s.blocks;
        int column = (int)((at - row * s.blocks) * 128 + lane * CHUNK);
        gate[i] = up[i] = dact[i] = make_uint4(0, 0, 0, 0);
        if (at < s.items && column < s.width) {
            const uint16_t *from = s.gate_up + (size_t)row * 2 * s.width + column;
            gate[i] = *reinterpret_cast<const uint4 *>(from);
            up[i] = *reinterpret_cast<const uint4 *>(from + s.width);
            dact[i] = *reinterpret_cast<const uint4 *>(s.dact + (size_t)row * s.width + column);
        }
    }
#pragma unroll
    for (int i = 0; i < BACKWARD_EACH; i++) {
        unsigned at = item + i * (THREADS / BLOCK_LANES), row = at / s.blocks;
        unsigned block = at - row * s.blocks;
        float g[CHUNK], u[CHUNK], d[CHUNK];
        chunk_unpack(gate[i], g);
        chunk_unpack(up[i], u);
        chunk_unpack(dact[i], d);
#pragma unroll
        for (int c = 0; c < CHUNK; c++) {
            float sg = sigmoid(g[c]);
            u[c] = d[c] * u[c] * sg * (1 + g[c] * (1 - sg));
            d[c] = d[c] * g[c] * sg;
        }
        gradient_store(s, row, block, 0, lane, at < s.items, u);
        gradient_store(s, row, block, 1, lane, at < s.items, d);
    }
}

int swiglu_backward(const uint16_t *gate_up, const uint16_t *dact, int rows, int width,
                    uint16_t *dgate_up, uint8_t *codes, float *scales, int scale_stride,
                    void *stream)
{
    const unsigned each = THREADS / BLOCK_LANES * BACKWARD_EACH;
    backward_arguments s = {};

    if (width % CHUNK || scale_stride < rows)
        return cudaErrorInvalidValue;
    if (rows <= 0 || width <= 0)
        return 0;
    s.gate_up = gate_up;
    s.dact = dact;
    s.dgate_up = dgate_up;
    s.codes = codes;
    s.scales = scales;
    s.blocks = ((unsigned)width + 127) / 128;
    s.items = (unsigned)rows * s.blocks;
    s.width = width;
    s.scale_stride = (size_t)scale_stride;
    backward_kernel<<<(s.items + each - 1) / each, THREADS, 0, (cudaStream_t)stream>>>(s);
    return cudaGetLastError();
}
