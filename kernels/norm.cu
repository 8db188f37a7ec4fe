// SPDX-License-Identifier: Apache-2.0
// RMSNorm, forward and backward: a thread block takes a row and keeps it in registers, so that
// memory is passed over once.
#include "norm.h"
#include "rows.cuh"

#include <cuda_runtime.h>

#define THREADS_MOST 512
#define CHUNKS_MOST  4 // 16-byte accesses in flight of each thread and operand
#define WARPS_MOST   (THREADS_MOST / 32)

struct forward_arguments {
    const uint16_t *x, *delta;
    const float *gain;
    uint16_t *sum, *y;
    uint8_t *yq;
    int cols, chunks, code_columns, scale_columns;
    size_t pitch, q_pitch;
    float eps;
};

struct backward_arguments {
    const uint16_t *x, *dy;
    const float *gain;
    uint16_t *dx;
    int cols, chunks;
    size_t pitch;
    float eps;
};

// Sums of a and b over the thread block, the same in every thread.
static __device__ __forceinline__ float2 block_sum(float a, float b)
{
    __shared__ float2 sums[WARPS_MOST];

#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
        a += __shfl_xor_sync(0xffffffff, a, lane);
        b += __shfl_xor_sync(0xffffffff, b, lane);
    }
    if (blockDim.x == 32)
        return make_float2(a, b);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = make_float2(a, b);
    __syncthreads();
    float2 total = make_float2(0, 0);
    for (unsigned w = 0; w < blockDim.x / 32; w++) {
        total.x += sums[w].x;
        total.y += sums[w].y;
    }
    return total;
}

// Eight gains from column on, 0 past the last.
static __device__ __forceinline__ void gain_load(const float *gain, int column, int cols,
                                                 float v[CHUNK])
{
    if (column + CHUNK <= cols) {
        float4 low = __ldg(reinterpret_cast<const float4 *>(gain + column));
        float4 high = __ldg(reinterpret_cast<const float4 *>(gain + column) + 1);
        v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
        v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
        v[i] = column + i < cols ? gain[column + i] : 0;
}

static __device__ __forceinline__ uint4 chunk_load(const uint16_t *row, int chunk, int chunks)
{
    return chunk < chunks ? reinterpret_cast<const uint4 *>(row)[chunk] : make_uint4(0, 0, 0, 0);
}

template <int CHUNKS, bool DELTA, bool QUANTISED>
__global__ static void __launch_bounds__(THREADS_MOST) forward_kernel(const forward_arguments n)
{
    size_t at = blockIdx.x * n.pitch;
    uint4 s[CHUNKS], delta[CHUNKS];
    float squares = 0;

#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int chunk = (int)(i * blockDim.x + threadIdx.x);
        s[i] = chunk_load(n.x + at, chunk, n.chunks);
        if (DELTA)
            delta[i] = chunk_load(n.delta + at, chunk, n.chunks);
    }
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int chunk = (int)(i * blockDim.x + threadIdx.x);
        float v[CHUNK], d[CHUNK];
        chunk_unpack(s[i], v);
        if (DELTA) {
            chunk_unpack(delta[i], d);
#pragma unroll
            for (int c = 0; c < CHUNK; c++)
                v[c] += d[c];
        }
        chunk_mask(v, n.cols - chunk * CHUNK);
        if (DELTA) {
            s[i] = chunk_pack(v);
            chunk_unpack(s[i], v);
            if (chunk < n.chunks)
                reinterpret_cast<uint4 *>(n.sum + at)[chunk] = s[i];
        }
#pragma unroll
        for (int c = 0; c < CHUNK; c++)
            squares += v[c] * v[c];
    }
    float inverse = 1 / sqrtf(block_sum(squares, 0).x / n.cols + n.eps);
    uint8_t *row_q = n.yq + blockIdx.x * n.q_pitch;
    float *scales = reinterpret_cast<float *>(row_q + n.code_columns);
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int chunk = (int)(i * blockDim.x + threadIdx.x), column = chunk * CHUNK;
        float v[CHUNK], gain[CHUNK];
        chunk_unpack(s[i], v);
        gain_load(n.gain, column, n.cols, gain);
#pragma unroll
        for (int c = 0; c < CHUNK; c++)
            v[c] = v[c] * inverse * gain[c];
        chunk_mask(v, n.cols - column);
        if (chunk < n.chunks)
            reinterpret_cast<uint4 *>(n.y + at)[chunk] = chunk_pack(v);
        if (QUANTISED) {
            float scale = block_scale(chunk_amax(v));
            if (column < n.code_columns)
                *reinterpret_cast<uint2 *>(row_q + column) = chunk_codes(v, scale);
            if (column < n.cols && chunk % BLOCK_LANES == 0)
                scales[chunk / BLOCK_LANES] = scale;
        }
    }
    int padding = (n.cols + 127) / 128 + (int)threadIdx.x;
    if (QUANTISED && padding < n.scale_columns)
        scales[padding] = 0;
}

template <int CHUNKS>
__global__ static void __launch_bounds__(THREADS_MOST) backward_kernel(const backward_arguments n)
{
    size_t at = blockIdx.x * n.pitch;
    uint4 x[CHUNKS], dy[CHUNKS], dx[CHUNKS];
    float squares = 0, dot = 0;

#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int chunk = (int)(i * blockDim.x + threadIdx.x);
        x[i] = chunk_load(n.x + at, chunk, n.chunks);
        dy[i] = chunk_load(n.dy + at, chunk, n.chunks);
        dx[i] = chunk_load(n.dx + at, chunk, n.chunks);
    }
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int column = (int)(i * blockDim.x + threadIdx.x) * CHUNK;
        float v[CHUNK], d[CHUNK], gain[CHUNK];
        chunk_unpack(x[i], v);
        chunk_unpack(dy[i], d);
        chunk_mask(v, n.cols - column);
        chunk_mask(d, n.cols - column);
        gain_load(n.gain, column, n.cols, gain);
#pragma unroll
        for (int c = 0; c < CHUNK; c++) {
            squares += v[c] * v[c];
            dot += v[c] * d[c] * gain[c];
        }
    }
    float2 sums = block_sum(squares, dot);
    float inverse = 1 / sqrtf(sums.x / n.cols + n.eps);
    float shrink = sums.y / n.cols * inverse * inverse * inverse;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        int chunk = (int)(i * blockDim.x + threadIdx.x), column = chunk * CHUNK;
        float v[CHUNK], d[CHUNK], to[CHUNK], gain[CHUNK];
        chunk_unpack(x[i], v);
        chunk_unpack(dy[i], d);
        chunk_unpack(dx[i], to);
        gain_load(n.gain, column, n.cols, gain);
#pragma unroll
        for (int c = 0; c < CHUNK; c++)
            to[c] += d[c] * gain[c] * inverse - v[c] * shrink;
        chunk_mask(to, n.cols - column);
        if (chunk < n.chunks)
            reinterpret_cast<uint4 *>(n.dx + at)[chunk] = chunk_pack(to);
    }
}

// Threads for a row: whole warps, with CHUNKS_MOST accesses each where a row is that long.
static unsigned row_threads(int chunks, int *each)
{
    *each = chunks > 32 ? CHUNKS_MOST : 1;
    return (unsigned)((chunks + *each - 1) / *each + 31) / 32 * 32;
}

template <int CHUNKS>
static void forward_launch(const forward_arguments &n, unsigned rows, unsigned threads,
                           cudaStream_t stream)
{
    if (n.delta && n.yq)
        forward_kernel<CHUNKS, true, true><<<rows, threads, 0, stream>>>(n);
    else if (n.delta)
        forward_kernel<CHUNKS, true, false><<<rows, threads, 0, stream>>>(n);
    else if (n.yq)
        forward_kernel<CHUNKS, false, true><<<rows, threads, 0, stream>>>(n);
    else
        forward_kernel<CHUNKS, false, false><<<rows, threads, 0, stream>>>(n);
}

int rms_norm_forward(const uint16_t *x, const uint16_t *delta, const float *gain, int rows,
                     int cols, float eps, uint16_t *sum, uint16_t *y, uint8_t *yq, void *stream)
{
    forward_arguments n = {};
    unsigned threads;
    int each;

    if (rows <= 0 || cols <= 0)
        return 0;
    if (cols > NORM_COLUMNS_MOST)
        return cudaErrorInvalidValue;
    n.x = x;
    n.delta = delta;
    n.gain = gain;
    n.sum = sum;
    n.y = y;
    n.yq = yq;
    n.cols = cols;
    n.chunks = (cols + CHUNK - 1) / CHUNK;
    n.code_columns = (int)quantised_scale_offset(cols);
    n.pitch = stream_row_bytes(cols) / 2;
    n.q_pitch = quantised_row_bytes(cols);
    n.scale_columns = (int)((n.q_pitch - quantised_scale_offset(cols)) / sizeof(float));
    n.eps = eps;
    threads = row_threads(n.chunks, &each);
    if (each == 1)
        forward_launch<1>(n, (unsigned)rows, threads, (cudaStream_t)stream);
    else
        forward_launch<CHUNKS_MOST>(n, (unsigned)rows, threads, (cudaStream_t)stream);
    return cudaGetLastError();
}

int rms_norm_backward(const uint16_t *x, const float *gain, const uint16_t *dy, int rows, int cols,
                      float eps, uint16_t *dx, void *stream)
{
    backward_arguments n = {};
    unsigned threads;
    int each;

    if (rows <= 0 || cols <= 0)
        return 0;
    if (cols > NORM_COLUMNS_MOST)
        return cudaErrorInvalidValue;
    n.x = x;
    n.dy = dy;
    n.gain = gain;
    n.dx = dx;
    n.cols = cols;
    n.chunks = (cols + CHUNK - 1) / CHUNK;
    n.pitch = stream_row_bytes(cols) / 2;
    n.eps = eps;
    threads = row_threads(n.chunks, &each);
    if (each == 1)
        backward_kernel<1><<<(unsigned)rows, threads, 0, (cudaStream_t)stream>>>(n);
    else
        backward_kernel<CHUNKS_MOST><<<(unsigned)rows, threads, 0, (cudaStream_t)stream>>>(n);
    return cudaGetLastError();
}
