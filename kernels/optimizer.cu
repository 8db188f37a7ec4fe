// SPDX-License-Identifier: Apache-2.0
// AdamW, sum of squares and scaling: one pass over memory each.
#include "optimizer.h"

#include <cuda_runtime.h>
#include <stdint.h>

#define THREADS 256

static __device__ double square(float x)
{
    return (double)x * (double)x;
}

// The block's sum of values, in thread 0.
static __device__ double block_sum(double value)
{
    __shared__ double sums[THREADS / 32];

    for (int offset = 16; offset; offset /= 2)
        value += __shfl_xor_sync(~0u, value, offset);
    if (threadIdx.x % 32 == 0)
        sums[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
    for (int w = 0; w < THREADS / 32; w++)
        value += sums[w];
    return value;
}

// head: elements before the first 16-byte boundary.
__global__ static void __launch_bounds__(THREADS)
    squares_kernel(const float *x, size_t count, size_t head, double *parts)
{
    const float4 *body = (const float4 *)(x + head);
    size_t quads = (count - head) / 4, tail = head + quads * 4;
    size_t first = blockIdx.x * (size_t)THREADS + threadIdx.x;
    double sum = 0;

#pragma unroll 4
    for (size_t i = first; i < quads; i += (size_t)SUM_SQUARES_PARTS * THREADS) {
        float4 v = body[i];
        sum += (square(v.x) + square(v.y)) + (square(v.z) + square(v.w));
    }
    if (first < head)
        sum += square(x[first]);
    if (first < count - tail)
        sum += square(x[tail + first]);
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

__global__ static void __launch_bounds__(THREADS) add_parts_kernel(const double *parts, double *sum)
{
    double value = 0;

    for (int i = threadIdx.x; i < SUM_SQUARES_PARTS; i += THREADS)
        value += parts[i];
    value = block_sum(value);
    if (threadIdx.x == 0)
        *sum = value;
}

extern "C" int optimizer_sum_squares(const float *x, size_t count, double *parts, double *sum,
                                     void *stream)
{
    size_t head = (16 - (uintptr_t)x % 16) % 16 / sizeof *x;

    squares_kernel<<<SUM_SQUARES_PARTS, THREADS, 0, (cudaStream_t)stream>>>(
        x, count, head < count ? head : count, parts);
    add_parts_kernel<<<1, THREADS, 0, (cudaStream_t)stream>>>(parts, sum);
    return cudaGetLastError();
}

static unsigned blocks_of(size_t threads)
{
    return (unsigned)((threads + THREADS - 1) / THREADS);
}

__global__ static void __launch_bounds__(THREADS) scale_kernel(float *x, size_t count, float factor)
{
    size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x;

    if (i < count)
        x[i] *= factor;
}

__global__ static void __launch_bounds__(THREADS)
    scale_quads_kernel(float4 *x, size_t count, float factor)
{
    size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x;

    if (i < count) {
        float4 v = x[i];
        x[i] = make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
    }
}

extern "C" int optimizer_scale(float *x, size_t count, float factor, void *stream)
{
    size_t quads = (uintptr_t)x % 16 ? 0 : count / 4, rest = count - quads * 4;

    if (quads)
        scale_quads_kernel<<<blocks_of(quads), THREADS, 0, (cudaStream_t)stream>>>((float4 *)x,
                                                                                   quads, factor);
    if (rest)
        scale_kernel<<<blocks_of(rest), THREADS, 0, (cudaStream_t)stream>>>(x + quads * 4, rest,
                                                                            factor);
    return cudaGetLastError();
}

static __device__ void update(const struct optimizer_adamw &a, float grad, float &param, float &m,
                              float &v)
{
    float g = a.grad_scale * grad;

    m = a.beta1 * m + (1 - a.beta1) * g;
    v = a.beta2 * v + (1 - a.beta2) * g * g;
    param = a.decay * param - a.rate * m / (sqrtf(v) / a.correction + a.eps);
}

__global__ static void __launch_bounds__(THREADS)
    adamw_kernel(const __grid_constant__ struct optimizer_adamw a)
{
    size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x;

    if (i < a.count)
        update(a, a.grads[i], a.params[i], a.m[i], a.v[i]);
}

__global__ static void __launch_bounds__(THREADS)
    adamw_quads_kernel(const __grid_constant__ struct optimizer_adamw a)
{
    size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x;

    if (i >= a.count / 4)
        return;
    float4 g = ((const float4 *)a.grads)[i], p = ((float4 *)a.params)[i];
    float4 m = ((float4 *)a.m)[i], v = ((float4 *)a.v)[i];
    update(a, g.x, p.x, m.x, v.x);
    update(a, g.y, p.y, m.y, v.y);
    update(a, g.z, p.z, m.z, v.z);
    update(a, g.w, p.w, m.w, v.w);
    ((float4 *)a.params)[i] = p;
    ((float4 *)a.m)[i] = m;
    ((float4 *)a.v)[i] = v;
}

extern "C" int optimizer_adamw(const struct optimizer_adamw *adamw, void *stream)
{
    struct optimizer_adamw rest = *adamw;
    uintptr_t all =
        (uintptr_t)rest.params | (uintptr_t)rest.grads | (uintptr_t)rest.m | (uintptr_t)rest.v;
    size_t quads = all % 16 ? 0 : rest.count / 4;

    if (quads)
        adamw_quads_kernel<<<blocks_of(quads), THREADS, 0, (cudaStream_t)stream>>>(*adamw);
    rest.params += quads * 4;
    rest.grads += quads * 4;
    rest.m += quads * 4;
    rest.v += quads * 4;
    rest.count -= quads * 4;
    if (rest.count)
        adamw_kernel<<<blocks_of(rest.count), THREADS, 0, (cudaStream_t)stream>>>(rest);
    return cudaGetLastError();
}
