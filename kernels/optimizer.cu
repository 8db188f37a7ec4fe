// SPDX-License-Identifier: Apache-2.0
// AdamW, sum of squares and scaling: one pass over memory each.
#include "optimizer.h"

#include "job/spec.h"

#include <cfloat>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
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
        update(a, a.grads[i], a.params[i], ((float *)a.m.values)[i], ((float *)a.v.values)[i]);
}

__global__ static void __launch_bounds__(THREADS)
    adamw_quads_kernel(const __grid_constant__ struct optimizer_adamw a)
{
    size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x;
    float4 *moments = (float4 *)a.m.values, *squares = (float4 *)a.v.values;

    if (i >= a.count / 4)
        return;
    float4 g = ((const float4 *)a.grads)[i], p = ((float4 *)a.params)[i];
    float4 m = moments[i], v = squares[i];
    update(a, g.x, p.x, m.x, v.x);
    update(a, g.y, p.y, m.y, v.y);
    update(a, g.z, p.z, m.z, v.z);
    update(a, g.w, p.w, m.w, v.w);
    ((float4 *)a.params)[i] = p;
    moments[i] = m;
    squares[i] = v;
}

// Both moments fp32.
static cudaError_t adamw_wide(struct optimizer_adamw a, cudaStream_t stream)
{
    uintptr_t all =
        (uintptr_t)a.params | (uintptr_t)a.grads | (uintptr_t)a.m.values | (uintptr_t)a.v.values;
    size_t quads = all % 16 ? 0 : a.count / 4;

    if (quads)
        adamw_quads_kernel<<<blocks_of(quads), THREADS, 0, stream>>>(a);
    a.params += quads * 4;
    a.grads += quads * 4;
    a.m.values = (float *)a.m.values + quads * 4;
    a.v.values = (float *)a.v.values + quads * 4;
    a.count -= quads * 4;
    if (a.count)
        adamw_kernel<<<blocks_of(a.count), THREADS, 0, stream>>>(a);
    return cudaGetLastError();
}

#define BLOCK     128 // values under one scale: MOMENT_BLOCK of ops/moment.h
#define LANE_MOST (BLOCK / 32)

template <int TYPE> static __device__ float moment_load(const struct optimizer_moment &m, size_t i)
{
    if (TYPE == STORAGE_FP32)
        return ((const float *)m.values)[i];
    if (TYPE == STORAGE_BF16)
        return __bfloat162float(((const __nv_bfloat16 *)m.values)[i]);
    if (TYPE == STORAGE_FP16)
        return __half2float(((const __half *)m.values)[i]) * m.scales[i / BLOCK];
    return (float)((const __nv_fp8_e4m3 *)m.values)[i] * m.scales[i / BLOCK];
}

// The block's scale, and 1 over it; both 0 for a block of zeros, and for one so small that 1 over
// its scale would be infinite. All lanes of a warp take part.
template <int TYPE> static __device__ float scale_of(const float x[LANE_MOST], float *inverse)
{
    float amax = 0, scale;

    for (int k = 0; k < LANE_MOST; k++)
        amax = fmaxf(amax, fabsf(x[k]));
    for (int offset = 16; offset; offset /= 2)
        amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, offset));
    scale = amax / (TYPE == STORAGE_FP16 ? 65504.0f : 448.0f);
    if (scale < FLT_MIN)
        scale = 0;
    *inverse = scale > 0 ? 1 / scale : 0;
    return scale;
}

// A block of a moment: lane l has values l, l + 32, ... of it; count of them are there.
template <int TYPE, bool ROOT>
static __device__ void moment_store(const struct optimizer_moment &m, size_t first, int count,
                                    float x[LANE_MOST])
{
    const int lane = threadIdx.x % 32;
    float inverse = 1;

    if (TYPE == STORAGE_FP16 || TYPE == STORAGE_FP8) {
        float scale = scale_of<TYPE>(x, &inverse);
        if (lane == 0)
            m.scales[first / BLOCK] = scale;
    }
    for (int k = 0; k < LANE_MOST; k++) {
        int at = lane + 32 * k;
        float scaled = x[k] * inverse;
        if (at >= count)
            break;
        if (TYPE == STORAGE_FP32) {
            ((float *)m.values)[first + at] = x[k];
        } else if (TYPE == STORAGE_BF16) {
            ((__nv_bfloat16 *)m.values)[first + at] = __float2bfloat16_rn(x[k]);
        } else if (TYPE == STORAGE_FP16) {
            scaled = fminf(fmaxf(scaled, -65504.0f), 65504.0f);
            ((__half *)m.values)[first + at] = __float2half_rn(scaled);
        } else {
            __nv_fp8_storage_t code = __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, __NV_E4M3);
            if (ROOT && code == 0 && x[k] > 0 && inverse > 0)
                code = 1;
            ((__nv_fp8_storage_t *)m.values)[first + at] = code;
        }
    }
}

// A warp a block of 128 values.
template <int M, int V>
__global__ static void __launch_bounds__(THREADS)
    adamw_stored_kernel(const __grid_constant__ struct optimizer_adamw a)
{
    size_t first = (blockIdx.x * (size_t)(THREADS / 32) + threadIdx.x / 32) * BLOCK;
    int lane = threadIdx.x % 32, count;
    float m[LANE_MOST], v[LANE_MOST];

    if (first >= a.count) // of all lanes
        return;
    count = a.count - first < BLOCK ? (int)(a.count - first) : BLOCK;
    for (int k = 0; k < LANE_MOST; k++) {
        size_t i = first + lane + 32 * k;
        m[k] = v[k] = 0;
        if (lane + 32 * k >= count)
            continue;
        m[k] = moment_load<M>(a.m, i);
        v[k] = moment_load<V>(a.v, i);
        if (V == STORAGE_FP8)
            v[k] *= v[k];
        update(a, a.grads[i], a.params[i], m[k], v[k]);
        if (V == STORAGE_FP8)
            v[k] = sqrtf(v[k]);
    }
    moment_store<M, false>(a.m, first, count, m);
    moment_store<V, true>(a.v, first, count, v);
}

typedef void (*stored_kernel)(const struct optimizer_adamw a);

template <int M> static stored_kernel stored_for(int v)
{
    switch (v) {
    case STORAGE_FP32:
        return adamw_stored_kernel<M, STORAGE_FP32>;
    case STORAGE_FP16:
        return adamw_stored_kernel<M, STORAGE_FP16>;
    case STORAGE_BF16:
        return adamw_stored_kernel<M, STORAGE_BF16>;
    default:
        return adamw_stored_kernel<M, STORAGE_FP8>;
    }
}

static stored_kernel stored_for(int m, int v)
{
    switch (m) {
    case STORAGE_FP32:
        return stored_for<STORAGE_FP32>(v);
    case STORAGE_FP16:
        return stored_for<STORAGE_FP16>(v);
    case STORAGE_BF16:
        return stored_for<STORAGE_BF16>(v);
    default:
        return stored_for<STORAGE_FP8>(v);
    }
}

extern "C" int optimizer_adamw(const struct optimizer_adamw *adamw, void *stream)
{
    size_t warps = (adamw->count + BLOCK - 1) / BLOCK;

    if (adamw->m.type == STORAGE_FP32 && adamw->v.type == STORAGE_FP32)
        return adamw_wide(*adamw, (cudaStream_t)stream);
    if (warps)
        stored_for(adamw->m.type,
                   adamw->v.type)<<<blocks_of(warps * 32), THREADS, 0, (cudaStream_t)stream>>>(
            *adamw);
    return cudaGetLastError();
}
