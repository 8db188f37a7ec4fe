// SPDX-License-Identifier: Apache-2.0
// Router: load balancing loss, capacity, and the backward pass.
#include "router.h"
#include "router_mma.cuh"

#include <cuda_runtime.h>

#define THREADS 1024
#define WARPS   (THREADS / 32)

// Thread t adds up a share of the parts of expert t % experts; one block.
__global__ static void __launch_bounds__(THREADS)
    load_balance_kernel(const double *mass, const int32_t *slots, int parts, int experts,
                        double factor, double *aux)
{
    __shared__ double masses[THREADS], counts[THREADS];
    int shares = THREADS / experts, expert = threadIdx.x % experts;
    double m = 0, n = 0;

    if (threadIdx.x < shares * experts) {
#pragma unroll 8
        for (int p = threadIdx.x / experts; p < parts; p += shares) {
            m += mass[(size_t)p * experts + expert];
            n += slots[(size_t)p * experts + expert];
        }
    }
    masses[threadIdx.x] = m;
    counts[threadIdx.x] = n;
    __syncthreads();
    m = n = 0;
    if (threadIdx.x < experts)
        for (int s = 0; s < shares; s++) {
            m += masses[s * experts + expert];
            n += counts[s * experts + expert];
        }
    __syncthreads();
    masses[threadIdx.x] = m * n;
    for (int half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            masses[threadIdx.x] += masses[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        *aux = masses[0] * factor;
}

extern "C" int router_load_balance(const double *mass, const int32_t *slots, int tokens,
                                   int experts, int top_k, double *aux, void *stream)
{
    double factor = tokens ? experts / ((double)top_k * tokens * tokens) : 0;

    load_balance_kernel<<<1, THREADS, 0, (cudaStream_t)stream>>>(mass, slots, ROUTER_PARTS(tokens),
                                                                 experts, factor, aux);
    return cudaGetLastError();
}

// The capacity-th greatest weight of an expert's slots by radix selection, a byte at a time, in the
// bits of floats >= 0, which order as the floats do. *ties: how many of that very weight to keep.
static __device__ uint32_t select_weight(const int32_t *ids, const float *weights, int slots,
                                         int expert, int64_t capacity, int *histogram,
                                         uint32_t *chosen, int *ties)
{
    uint32_t prefix = 0, mask = 0;
    int need = (int)capacity;

    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += THREADS)
            histogram[i] = 0;
        __syncthreads();
        for (int s = threadIdx.x; s < slots; s += THREADS)
            if (ids[s] == expert) {
                uint32_t key = __float_as_uint(weights[s]);
                if ((key & mask) == prefix)
                    atomicAdd(&histogram[key >> shift & 255], 1);
            }
        __syncthreads();
        if (threadIdx.x == 0) {
            int bin = 255, left = need;
            for (; left > histogram[bin]; bin--)
                left -= histogram[bin];
            *chosen = (uint32_t)bin;
            *ties = left;
        }
        __syncthreads();
        prefix |= *chosen << shift;
        mask |= 255u << shift;
        need = *ties;
    }
    return prefix;
}

// Keeps slots of weights above threshold, and the first ties of those equal to it. Each warp has a
// run of slots.
static __device__ void keep(const int32_t *ids, const float *weights, int slots, int expert,
                            uint32_t threshold, int ties, int *before, uint8_t *kept)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int run = ((slots + WARPS - 1) / WARPS + 31) / 32 * 32, count = 0;
    int first = min(warp * run, slots), end = min(first + run, slots);

    for (int s = first + lane; s < end; s += 32)
        count += ids[s] == expert && __float_as_uint(weights[s]) == threshold;
    count = __reduce_add_sync(~0u, count);
    if (lane == 0)
        before[warp] = count;
    __syncthreads();
    count = 0;
    for (int w = 0; w < warp; w++)
        count += before[w];
    for (int base = first; base < end; base += 32) {
        int s = base + lane;
        bool mine = s < end && ids[s] == expert;
        uint32_t key = mine ? __float_as_uint(weights[s]) : 0;
        uint32_t equal = __ballot_sync(~0u, mine && key == threshold);
        int rank = count + __popc(equal & ((1u << lane) - 1));
        if (mine)
            kept[s] = key > threshold || (key == threshold && rank < ties);
        count += __popc(equal);
    }
}

// A block an expert.
__global__ static void __launch_bounds__(THREADS)
    capacity_kernel(const int32_t *ids, const float *weights, int slots, int64_t capacity,
                    uint8_t *kept)
{
    __shared__ int histogram[256], before[WARPS], ties, total;
    __shared__ uint32_t chosen;
    uint32_t threshold;
    int count = 0;

    if (threadIdx.x == 0)
        total = 0;
    __syncthreads();
    for (int s = threadIdx.x; s < slots; s += THREADS)
        count += ids[s] == (int)blockIdx.x;
    atomicAdd(&total, count);
    __syncthreads();
    if (total <= capacity) {
        for (int s = threadIdx.x; s < slots; s += THREADS)
            if (ids[s] == (int)blockIdx.x)
                kept[s] = 1;
        return;
    }
    threshold = select_weight(ids, weights, slots, blockIdx.x, capacity, histogram, &chosen, &ties);
    keep(ids, weights, slots, blockIdx.x, threshold, ties, before, kept);
}

extern "C" int router_capacity(const int32_t *ids, const float *weights, int slots, int experts,
                               int64_t capacity, uint8_t *kept, void *stream)
{
    if (slots > 0)
        capacity_kernel<<<experts, THREADS, 0, (cudaStream_t)stream>>>(ids, weights, slots,
                                                                       capacity, kept);
    return cudaGetLastError();
}

__global__ static void __launch_bounds__(THREADS)
    count_kernel(const int32_t *ids, int slots, int32_t *counts)
{
    __shared__ int total;
    int count = 0;

    if (threadIdx.x == 0)
        total = 0;
    __syncthreads();
#pragma unroll 8
    for (int s = threadIdx.x; s < slots; s += THREADS)
        count += ids[s] == (int)blockIdx.x;
    count = __reduce_add_sync(~0u, count);
    if (threadIdx.x % 32 == 0)
        atomicAdd(&total, count);
    __syncthreads();
    if (threadIdx.x == 0)
        counts[blockIdx.x] = total;
}

extern "C" int router_count(const int32_t *ids, int slots, int experts, int32_t *counts,
                            void *stream)
{
    count_kernel<<<experts, THREADS, 0, (cudaStream_t)stream>>>(ids, slots, counts);
    return cudaGetLastError();
}

static __device__ float warp_sum(float x)
{
    for (int offset = 16; offset; offset /= 2)
        x += __shfl_xor_sync(~0u, x, offset);
    return x;
}

#define LOGIT_THREADS 256

// A warp a token: through its slots' weights and the loads to its probabilities, then to its
// logits.
__global__ static void __launch_bounds__(LOGIT_THREADS)
    dlogits_kernel(const __grid_constant__ struct router_gradient g)
{
    extern __shared__ float rows[];
    int lane = threadIdx.x % 32, columns = ROUTER_GRADIENT_COLUMNS(g.experts);
    int token = (blockIdx.x * LOGIT_THREADS + threadIdx.x) / 32;
    const float *probs = g.probs + (size_t)token * g.experts;
    const int32_t *ids = g.ids + (size_t)token * g.top_k;
    const float *dweights = g.dweights + (size_t)token * g.top_k;
    float *row = rows + threadIdx.x / 32 * g.experts, sum = 0, dot = 0;

    if (token >= g.tokens)
        return;
    for (int i = lane; i < g.experts; i += 32)
        row[i] = g.counts ? (float)(g.load * g.counts[i]) : 0;
    for (int k = lane; k < g.top_k; k += 32) {
        sum += probs[ids[k]];
        dot += dweights[k] * probs[ids[k]];
    }
    sum = warp_sum(sum);
    dot = warp_sum(dot);
    __syncwarp();
    for (int k = lane; k < g.top_k; k += 32)
        row[ids[k]] += g.normalise ? dweights[k] / sum - dot / (sum * sum) : dweights[k];
    __syncwarp();
    dot = 0;
    for (int i = lane; i < g.experts; i += 32)
        dot += probs[i] * row[i];
    dot = warp_sum(dot);
    for (int i = lane; i < columns; i += 32) {
        float d = i < g.experts ? probs[i] * (row[i] - dot) : 0;
        __nv_bfloat16 high = __float2bfloat16_rn(d);
        __nv_bfloat16 low = __float2bfloat16_rn(d - __bfloat162float(high));
        g.dlogits_high[(size_t)token * columns + i] = __bfloat16_as_ushort(high);
        g.dlogits_low[(size_t)token * columns + i] = __bfloat16_as_ushort(low);
    }
}

#define TILE          128 // tokens, and columns of dh
#define TILE_K        32  // experts
#define STAGES        3
#define TILE_THREADS  256
#define D_STRIDE      (TILE_K + 8) // elements: no bank conflicts
#define W_STRIDE      (TILE + 4)
#define D_BYTES       (TILE * D_STRIDE * 2)
#define STAGE_BYTES   (2 * D_BYTES + TILE_K * W_STRIDE * 4)
#define PRODUCT_BYTES (STAGES * STAGE_BYTES)

static_assert(TILE * W_STRIDE * 4 <= PRODUCT_BYTES, "the result lies over the operands");

static __device__ void operands_load(const struct router_gradient &g, int token, int column,
                                     int expert, char *shared)
{
    int columns = ROUTER_GRADIENT_COLUMNS(g.experts);
    bool aligned = g.hidden % 4 == 0;

    for (int i = threadIdx.x; i < 2 * TILE * TILE_K / 8; i += TILE_THREADS) {
        int part = i / (TILE * TILE_K / 8), row = i / (TILE_K / 8) % TILE;
        int at = i % (TILE_K / 8) * 8;
        bool inside = token + row < g.tokens;
        const uint16_t *from = part ? g.dlogits_low : g.dlogits_high;
        copy_16(shared_address(shared + part * D_BYTES + (row * D_STRIDE + at) * 2),
                inside ? from + (size_t)(token + row) * columns + expert + at : from,
                inside ? 16 : 0);
    }
    for (int i = threadIdx.x; i < TILE_K * TILE / 4; i += TILE_THREADS) {
        int row = i / (TILE / 4), at = i % (TILE / 4) * 4;
        bool inside = expert + row < g.experts;
        const float *from = g.weight + (inside ? (size_t)(expert + row) * g.hidden : 0);
        copy_floats(shared_address(shared + 2 * D_BYTES + (row * W_STRIDE + at) * 4), from,
                    inside ? column + at : g.hidden, g.hidden, aligned);
    }
}

// A warp has 16 columns of all 128 tokens. high * high + high * low + low * high.
static __device__ __forceinline__ void operands_multiply(const char *shared,
                                                         float (&sum)[TILE / 16][2][4])
{
    const float *w = (const float *)(shared + 2 * D_BYTES);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t a_address = shared_address(shared + (lane % 16 * D_STRIDE + lane / 16 * 8) * 2);

#pragma unroll
    for (int k = 0; k < TILE_K; k += 16) {
        uint32_t b[2][2][2];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float *from =
                    w + (k + half * 8 + lane % 4 * 2) * W_STRIDE + warp * 16 + n * 8 + lane / 4;
                split(from[0], from[W_STRIDE], b[n][half]);
            }
#pragma unroll
        for (int m = 0; m < TILE / 16; m++) {
            uint32_t high[4], low[4];
            load_a(high, a_address + (m * 16 * D_STRIDE + k) * 2);
            load_a(low, a_address + D_BYTES + (m * 16 * D_STRIDE + k) * 2);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                mma(sum[m][n], low, b[n][0][0], b[n][1][0]);
                mma(sum[m][n], high, b[n][0][1], b[n][1][1]);
                mma(sum[m][n], high, b[n][0][0], b[n][1][0]);
            }
        }
    }
}

// dh's tile += the tile in result, eight columns at a time.
static __device__ void tile_add(const struct router_gradient &g, int token, int column,
                                const float *result)
{
    for (int i = threadIdx.x; i < TILE * TILE / 8; i += TILE_THREADS) {
        int row = i / (TILE / 8), at = i % (TILE / 8) * 8;
        const float *from = result + row * W_STRIDE + at;
        uint4 *to = (uint4 *)(g.dh + (size_t)(token + row) * g.dh_pitch + column + at);
        uint4 packed;
        __nv_bfloat162 *pairs = (__nv_bfloat162 *)&packed;
        if (token + row >= g.tokens || column + at >= g.hidden)
            continue;
        packed = *to;
#pragma unroll
        for (int p = 0; p < 4; p++) {
            float2 old = __bfloat1622float2(pairs[p]);
            pairs[p] = __floats2bfloat162_rn(old.x + from[2 * p], old.y + from[2 * p + 1]);
        }
        *to = packed;
    }
}

__global__ static void __launch_bounds__(TILE_THREADS, 2)
    dh_kernel(const __grid_constant__ struct router_gradient g)
{
    extern __shared__ __align__(16) char shared[];
    int column = blockIdx.x * TILE, token = blockIdx.y * TILE;
    int count = (g.experts + TILE_K - 1) / TILE_K;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum[TILE / 16][2][4] = {}, *result = (float *)shared;

    for (int i = 0; i < STAGES - 1; i++) {
        if (i < count)
            operands_load(g, token, column, i * TILE_K, shared + i * STAGE_BYTES);
        copy_commit();
    }
    for (int i = 0; i < count; i++) {
        int next = i + STAGES - 1;
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (next < count)
            operands_load(g, token, column, next * TILE_K, shared + next % STAGES * STAGE_BYTES);
        copy_commit();
        operands_multiply(shared + i % STAGES * STAGE_BYTES, sum);
    }
    copy_wait<0>();
    __syncthreads();
#pragma unroll
    for (int m = 0; m < TILE / 16; m++)
#pragma unroll
        for (int n = 0; n < 2; n++) {
            float *to = result + (m * 16 + lane / 4) * W_STRIDE + warp * 16 + n * 8 + lane % 4 * 2;
            *(float2 *)to = make_float2(sum[m][n][0], sum[m][n][1]);
            *(float2 *)(to + 8 * W_STRIDE) = make_float2(sum[m][n][2], sum[m][n][3]);
        }
    __syncthreads();
    tile_add(g, token, column, result);
}

extern "C" int router_backward(const struct router_gradient *g, void *stream)
{
    int warps = LOGIT_THREADS / 32;
    dim3 tiles((g->hidden + TILE - 1) / TILE, (g->tokens + TILE - 1) / TILE);
    cudaError_t rc =
        cudaFuncSetAttribute(dh_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, PRODUCT_BYTES);

    if (rc != cudaSuccess || g->tokens == 0)
        return rc;
    dlogits_kernel<<<(g->tokens + warps - 1) / warps, LOGIT_THREADS, (size_t)warps * g->experts * 4,
                     (cudaStream_t)stream>>>(*g);
    dh_kernel<<<tiles, TILE_THREADS, PRODUCT_BYTES, (cudaStream_t)stream>>>(*g);
    return cudaGetLastError();
}
