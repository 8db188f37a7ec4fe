// SPDX-License-Identifier: Apache-2.0
// Dispatch: a stable counting sort of slots by expert, copies of rows by index, a token's sum.
#include "dispatch.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#define THREADS 256
#define WARPS   (THREADS / 32)
#define RUN     (DISPATCH_PART / WARPS) // slots a warp sorts

// before[part, e]: kept slots of e in the part.
__global__ static void __launch_bounds__(THREADS)
    count_kernel(const __grid_constant__ struct dispatch_plan p)
{
    extern __shared__ int counts[];
    int first = blockIdx.x * DISPATCH_PART;

    for (int i = threadIdx.x; i < p.experts; i += THREADS)
        counts[i] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < DISPATCH_PART; i += THREADS) {
        int s = first + i + threadIdx.x;
        if (s < p.slots && p.kept[s])
            atomicAdd(&counts[p.ids[s]], 1);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < p.experts; i += THREADS)
        p.before[(size_t)blockIdx.x * p.experts + i] = counts[i];
}

// before[part, e] becomes the sum over earlier parts, first[e] that over lower experts. One block,
// a thread an expert.
__global__ static void __launch_bounds__(DISPATCH_EXPERTS_MOST)
    prefix_kernel(const __grid_constant__ struct dispatch_plan p, int parts)
{
    __shared__ int sums[DISPATCH_EXPERTS_MOST];
    int expert = threadIdx.x, total = 0, sum;

    if (expert < p.experts) {
#pragma unroll 8
        for (int part = 0; part < parts; part++) {
            int32_t *at = p.before + (size_t)part * p.experts + expert;
            int count = *at;
            *at = total;
            total += count;
        }
        p.counts[expert] = total;
    }
    sums[expert] = sum = total;
    for (int step = 1; step < DISPATCH_EXPERTS_MOST; step *= 2) {
        __syncthreads();
        if (expert >= step)
            sum += sums[expert - step];
        __syncthreads();
        sums[expert] = sum;
    }
    if (expert < p.experts)
        p.first[expert] = sum - total;
}

// Each warp sorts a run of slots, 32 at a time: lanes of one expert follow one another.
__global__ static void __launch_bounds__(THREADS)
    place_kernel(const __grid_constant__ struct dispatch_plan p)
{
    extern __shared__ int next[]; // [WARPS, E] place of the warp's next slot of the expert
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int first = blockIdx.x * DISPATCH_PART + warp * RUN, *mine = next + warp * p.experts;
    int ids[RUN / 32];

    for (int i = threadIdx.x; i < WARPS * p.experts; i += THREADS)
        next[i] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < RUN / 32; i++) {
        int s = first + i * 32 + lane;
        ids[i] = s < p.slots && p.kept[s] ? p.ids[s] : -1;
        if (ids[i] >= 0)
            atomicAdd(&mine[ids[i]], 1);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < p.experts; i += THREADS) {
        int at = p.first[i] + p.before[(size_t)blockIdx.x * p.experts + i];
        for (int w = 0; w < WARPS; w++) {
            int count = next[w * p.experts + i];
            next[w * p.experts + i] = at;
            at += count;
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < RUN / 32; i++) {
        int s = first + i * 32 + lane;
        uint32_t same = __match_any_sync(~0u, ids[i]);
        int rank = __popc(same & ((1u << lane) - 1));
        int at = ids[i] >= 0 ? mine[ids[i]] + rank : -1;
        __syncwarp();
        if (rank == 0 && ids[i] >= 0)
            mine[ids[i]] += __popc(same);
        __syncwarp();
        if (s < p.slots)
            p.position[s] = at;
        if (at >= 0)
            p.order[at] = s;
    }
}

extern "C" int dispatch_plan(const struct dispatch_plan *p, void *stream)
{
    int parts = DISPATCH_PARTS(p->slots);
    size_t row = (size_t)p->experts * sizeof(int);

    if (p->experts > DISPATCH_EXPERTS_MOST)
        return cudaErrorInvalidValue;
    if (parts)
        count_kernel<<<parts, THREADS, row, (cudaStream_t)stream>>>(*p);
    prefix_kernel<<<1, DISPATCH_EXPERTS_MOST, 0, (cudaStream_t)stream>>>(*p, parts);
    if (parts)
        place_kernel<<<parts, THREADS, WARPS * row, (cudaStream_t)stream>>>(*p);
    return cudaGetLastError();
}

__global__ static void regroup_kernel(const struct dispatch_segment *segments, int32_t *index)
{
    struct dispatch_segment segment = segments[blockIdx.x];
    int count = segments[blockIdx.x + 1].row - segment.row;

    for (int i = threadIdx.x; i < count; i += blockDim.x)
        index[segment.row + i] = segment.arrival + i;
}

extern "C" int dispatch_regroup(const struct dispatch_segment *segments, int count, int32_t *index,
                                void *stream)
{
    if (count > 0)
        regroup_kernel<<<count, THREADS, 0, (cudaStream_t)stream>>>(segments, index);
    return cudaGetLastError();
}

// Rows of units of type Unit. Gather: row i comes from index[i] / divide; else it goes to index[i].
// Long rows: a warp copies one, AHEAD units a lane under way: 2048 codes and their scales at once.
#define AHEAD 5

template <typename Unit, bool Gather>
__global__ static void __launch_bounds__(THREADS)
    long_rows_kernel(const Unit *from, const int32_t *index, int divide, int rows, int units,
                     Unit *to)
{
    int row = (int)((blockIdx.x * (size_t)THREADS + threadIdx.x) / 32), lane = threadIdx.x % 32;

    if (row >= rows)
        return;
    int other = index[row];
    bool copied = !Gather || other >= 0;
    from += (size_t)(Gather ? max(other, 0) / divide : row) * units;
    to += (size_t)(Gather ? row : other) * units;
    for (int base = lane; base < units; base += 32 * AHEAD) {
        Unit values[AHEAD] = {};
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (copied && base + 32 * i < units)
                values[i] = from[base + 32 * i];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (base + 32 * i < units)
                to[base + 32 * i] = values[i];
    }
}

// Short rows: a thread copies a unit.
template <typename Unit, bool Gather>
__global__ static void __launch_bounds__(THREADS)
    short_rows_kernel(const Unit *from, const int32_t *index, int divide, int rows, int units,
                      Unit *to)
{
    size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x;
    int row = (int)(i / units), unit = (int)(i % units);

    if (row >= rows)
        return;
    int other = index[row];
    if (!Gather)
        to[(size_t)other * units + unit] = from[i];
    else
        to[i] = other < 0 ? Unit() : from[(size_t)(other / divide) * units + unit];
}

template <typename Unit, bool Gather>
static void rows_launch(const void *from, const int32_t *index, int divide, int rows,
                        size_t row_bytes, void *to, cudaStream_t stream)
{
    int units = (int)(row_bytes / sizeof(Unit));
    size_t threads = (size_t)rows * (units >= 32 ? 32 : units);
    unsigned blocks = (unsigned)((threads + THREADS - 1) / THREADS);

    if (units >= 32)
        long_rows_kernel<Unit, Gather><<<blocks, THREADS, 0, stream>>>(
            (const Unit *)from, index, divide, rows, units, (Unit *)to);
    else
        short_rows_kernel<Unit, Gather><<<blocks, THREADS, 0, stream>>>(
            (const Unit *)from, index, divide, rows, units, (Unit *)to);
}

template <bool Gather>
static int rows_copy(const void *from, const int32_t *index, int divide, int rows, size_t row_bytes,
                     void *to, void *stream)
{
    uintptr_t all = (uintptr_t)from | (uintptr_t)to | row_bytes;
    cudaStream_t s = (cudaStream_t)stream;

    if (rows == 0 || row_bytes == 0)
        return cudaSuccess;
    if (all % 16 == 0)
        rows_launch<uint4, Gather>(from, index, divide, rows, row_bytes, to, s);
    else if (all % 8 == 0)
        rows_launch<uint2, Gather>(from, index, divide, rows, row_bytes, to, s);
    else if (all % 4 == 0)
        rows_launch<uint32_t, Gather>(from, index, divide, rows, row_bytes, to, s);
    else
        rows_launch<uint8_t, Gather>(from, index, divide, rows, row_bytes, to, s);
    return cudaGetLastError();
}

extern "C" int dispatch_gather(const void *from, const int32_t *index, int divide, int rows,
                               size_t row_bytes, void *to, void *stream)
{
    return rows_copy<true>(from, index, divide, rows, row_bytes, to, stream);
}

extern "C" int dispatch_scatter(const void *from, const int32_t *index, int rows, size_t row_bytes,
                                void *to, void *stream)
{
    return rows_copy<false>(from, index, 1, rows, row_bytes, to, stream);
}

#define COMBINE_AHEAD 8 // rows of a token under way at once

// A thread has eight columns of a token.
__global__ static void __launch_bounds__(THREADS, 4)
    combine_kernel(const uint16_t *rows, const int32_t *position, const float *weights,
                   const uint16_t *residual, int tokens, int top_k, int pitch, uint16_t *out)
{
    size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x;
    int units = pitch / 8, token = (int)(i / units);
    size_t column = i % units * 8, at = (size_t)token * pitch + column;
    size_t slot = (size_t)token * top_k;
    float sum[8] = {};
    uint4 packed = {};
    __nv_bfloat162 *pairs = (__nv_bfloat162 *)&packed;

    if (token >= tokens)
        return;
    if (residual)
        packed = *(const uint4 *)(residual + at);
#pragma unroll
    for (int p = 0; p < 4; p++) {
        sum[2 * p] = __low2float(pairs[p]);
        sum[2 * p + 1] = __high2float(pairs[p]);
    }
    for (int first = 0; first < top_k; first += COMBINE_AHEAD) {
        uint4 values[COMBINE_AHEAD];
        uint32_t present = 0;
#pragma unroll
        for (int k = 0; k < COMBINE_AHEAD; k++) {
            int row = first + k < top_k ? position[slot + first + k] : -1;
            if (row >= 0) {
                values[k] = __ldcs((const uint4 *)(rows + (size_t)row * pitch + column));
                present |= 1u << k;
            }
        }
#pragma unroll
        for (int k = 0; k < COMBINE_AHEAD; k++) {
            const __nv_bfloat162 *from = (const __nv_bfloat162 *)&values[k];
            if (!(present & 1u << k))
                continue;
            float weight = weights ? weights[slot + first + k] : 1;
#pragma unroll
            for (int p = 0; p < 4; p++) {
                sum[2 * p] = __fadd_rn(sum[2 * p], __fmul_rn(weight, __low2float(from[p])));
                sum[2 * p + 1] =
                    __fadd_rn(sum[2 * p + 1], __fmul_rn(weight, __high2float(from[p])));
            }
        }
    }
#pragma unroll
    for (int p = 0; p < 4; p++)
        pairs[p] = __floats2bfloat162_rn(sum[2 * p], sum[2 * p + 1]);
    *(uint4 *)(out + at) = packed;
}

extern "C" int dispatch_combine(const uint16_t *rows, const int32_t *position, const float *weights,
                                const uint16_t *residual, int tokens, int top_k, int pitch,
                                uint16_t *out, void *stream)
{
    size_t threads = (size_t)tokens * (pitch / 8);

    if (threads > 0)
        combine_kernel<<<(unsigned)((threads + THREADS - 1) / THREADS), THREADS, 0,
                         (cudaStream_t)stream>>>(rows, position, weights, residual, tokens, top_k,
                                                 pitch, out);
    return cudaGetLastError();
}
