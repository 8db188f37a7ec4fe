// SPDX-License-Identifier: Apache-2.0
// Router, forward: logits on tensor cores with the accuracy of fp32, softmax and top-k behind them.
//
// A cluster of two blocks computes the logits of 64 tokens, each block half of the contraction. The
// bf16 rows are exact and a fp32 weight is the exact sum of three bf16, so that only sums round:
// tensor cores cut where fp32 rounds, hence every 64 terms leave them for registers. The two
// partial sums meet through distributed shared memory, each block taking 32
// tokens, whose experts it then chooses.
#include "router.h"
#include "router_mma.cuh"

#include <cooperative_groups.h>
#include <cuda_runtime.h>

namespace cg = cooperative_groups;

#define CLUSTER      2
#define TILE_TOKENS  64
#define TILE_EXPERTS 128
#define TILE_K       64
#define STAGES       3
#define THREADS      256
#define WARPS        (THREADS / 32)
#define OWN_TOKENS   ROUTER_TOKENS_A_PART
#define H_STRIDE     (TILE_K + 8) // elements: no bank conflicts
#define W_STRIDE     (TILE_K + 8)
#define SUM_STRIDE   (TILE_EXPERTS + 4)
#define H_BYTES      (TILE_TOKENS * H_STRIDE * 2)
#define STAGE_BYTES  (H_BYTES + TILE_EXPERTS * W_STRIDE * 4)
#define TOKEN_TILES  (TILE_TOKENS / 16)

static_assert(TILE_TOKENS == CLUSTER * OWN_TOKENS, "each block chooses for its half");
static_assert(TILE_TOKENS * SUM_STRIDE * 4 <= STAGES * STAGE_BYTES, "sums lie over the stages");

static __device__ void stage_load(const struct router &r, int token, int expert, int k, char *stage)
{
    bool aligned = r.hidden % 4 == 0;

    for (int i = threadIdx.x; i < TILE_TOKENS * TILE_K / 8; i += THREADS) {
        int row = i / (TILE_K / 8), column = i % (TILE_K / 8) * 8;
        int count = token + row < r.tokens ? min(max(r.hidden - k - column, 0), 8) : 0;
        const uint16_t *from = r.h + (size_t)(token + row) * r.h_pitch + k + column;
        copy_16(shared_address(stage + (row * H_STRIDE + column) * 2), count ? from : r.h,
                count * 2);
    }
    for (int i = threadIdx.x; i < TILE_EXPERTS * TILE_K / 4; i += THREADS) {
        int row = i / (TILE_K / 4), column = i % (TILE_K / 4) * 4;
        bool inside = expert + row < r.experts;
        const float *from = r.weight + (inside ? (size_t)(expert + row) * r.hidden : 0);
        copy_floats(shared_address(stage + H_BYTES + (row * W_STRIDE + column) * 4), from,
                    inside ? k + column : r.hidden, r.hidden, aligned);
    }
}

// sum [16-token tile][8-expert tile] += the stage's products; a warp has 16 experts of all tokens.
static __device__ __forceinline__ void stage_multiply(const char *stage,
                                                      float (&sum)[TOKEN_TILES][2][4])
{
    const float *w = (const float *)(stage + H_BYTES);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t a_address = shared_address(stage + (lane % 16 * H_STRIDE + lane / 16 * 8) * 2);
    float part[TOKEN_TILES][2][4] = {};

#pragma unroll
    for (int k = 0; k < TILE_K; k += 16) {
        uint32_t b[2][2][3];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int expert = warp * 16 + n * 8 + lane / 4;
                float2 pair =
                    *(const float2 *)(w + expert * W_STRIDE + k + half * 8 + lane % 4 * 2);
                split(pair.x, pair.y, b[n][half]);
            }
#pragma unroll
        for (int m = 0; m < TOKEN_TILES; m++) {
            uint32_t a[4];
            load_a(a, a_address + (m * 16 * H_STRIDE + k) * 2);
#pragma unroll
            for (int p = 2; p >= 0; p--)
#pragma unroll
                for (int n = 0; n < 2; n++)
                    mma(part[m][n], a, b[n][0][p], b[n][1][p]);
        }
    }
#pragma unroll
    for (int m = 0; m < TOKEN_TILES; m++)
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[m][n][i] += part[m][n][i];
}

// This block's share of the contraction for 64 tokens and 128 experts, into sums [TILE_TOKENS,
// SUM_STRIDE], which lies over the stages.
static __device__ void tile_multiply(const struct router &r, int token, int expert, int rank,
                                     char *stages)
{
    int tiles = (r.hidden + TILE_K - 1) / TILE_K;
    int first = tiles * rank / CLUSTER, count = tiles * (rank + 1) / CLUSTER - first;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum[TOKEN_TILES][2][4] = {}, *sums = (float *)stages;

    for (int i = 0; i < STAGES - 1; i++) {
        if (i < count)
            stage_load(r, token, expert, (first + i) * TILE_K, stages + i * STAGE_BYTES);
        copy_commit();
    }
    for (int i = 0; i < count; i++) {
        int next = i + STAGES - 1;
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (next < count)
            stage_load(r, token, expert, (first + next) * TILE_K,
                       stages + next % STAGES * STAGE_BYTES);
        copy_commit();
        stage_multiply(stages + i % STAGES * STAGE_BYTES, sum);
    }
    copy_wait<0>();
    __syncthreads();
#pragma unroll
    for (int m = 0; m < TOKEN_TILES; m++)
#pragma unroll
        for (int n = 0; n < 2; n++) {
            float *to = sums + (m * 16 + lane / 4) * SUM_STRIDE + warp * 16 + n * 8 + lane % 4 * 2;
            *(float2 *)to = make_float2(sum[m][n][0], sum[m][n][1]);
            *(float2 *)(to + 8 * SUM_STRIDE) = make_float2(sum[m][n][2], sum[m][n][3]);
        }
}

// Sums of both blocks for this block's tokens, into logits [OWN_TOKENS, experts].
static __device__ void tile_gather(const struct router &r, int expert,
                                   const cg::cluster_group &cluster, float *sums, float *logits)
{
    const float *from[CLUSTER];

    for (int i = 0; i < CLUSTER; i++)
        from[i] = cluster.map_shared_rank(sums, i) + cluster.block_rank() * OWN_TOKENS * SUM_STRIDE;
    for (int i = threadIdx.x; i < OWN_TOKENS * TILE_EXPERTS; i += THREADS) {
        int row = i / TILE_EXPERTS, column = i % TILE_EXPERTS, at = row * SUM_STRIDE + column;
        if (expert + column < r.experts)
            logits[row * r.experts + expert + column] = from[0][at] + from[1][at];
    }
}

// Logits of one token become probabilities, in shared memory and outside; a warp's work. An expert
// is lane + 32 * i.
template <int Count>
static __device__ void probabilities(const struct router &r, int token, float *row)
{
    int lane = threadIdx.x % 32;
    size_t at = (size_t)token * r.experts;
    float x[Count], top = -INFINITY, sum = 0;

#pragma unroll
    for (int i = 0; i < Count; i++) {
        int expert = lane + 32 * i;
        x[i] = expert < r.experts ? row[expert] : -INFINITY;
        top = fmaxf(top, x[i]);
    }
    for (int offset = 16; offset; offset /= 2)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, offset));
#pragma unroll
    for (int i = 0; i < Count; i++) {
        int expert = lane + 32 * i;
        if (expert < r.experts) {
            r.logits[at + expert] = x[i];
            x[i] = expf(x[i] - top);
            sum += x[i];
        }
    }
    for (int offset = 16; offset; offset /= 2)
        sum += __shfl_xor_sync(~0u, sum, offset);
#pragma unroll
    for (int i = 0; i < Count; i++) {
        int expert = lane + 32 * i;
        if (expert < r.experts)
            r.probs[at + expert] = row[expert] = x[i] / sum;
    }
    __syncwarp();
}

// The most probable expert that is not taken; keys: 0 where taken. A NaN counts as no probability,
// so that top_k different experts come out whatever went wrong; the loss will show it.
template <int Count> static __device__ int best(const uint32_t (&keys)[Count])
{
    uint32_t most = keys[0], number = ~0u;

#pragma unroll
    for (int i = 1; i < Count; i++)
        most = max(most, keys[i]);
    most = __reduce_max_sync(~0u, most);
#pragma unroll
    for (int i = Count - 1; i >= 0; i--)
        if (keys[i] == most)
            number = threadIdx.x % 32 + 32 * i;
    return (int)__reduce_min_sync(~0u, number);
}

// Experts and weights of one token; a warp's work. counts [experts]: the block's slots.
template <int Count>
static __device__ void choose(const struct router &r, int token, const float *row, int *counts)
{
    int lane = threadIdx.x % 32, ids[2] = {};
    size_t at = (size_t)token * r.top_k;
    uint32_t keys[Count];
    float weights[2] = {}, sum = 0;

#pragma unroll
    for (int i = 0; i < Count; i++) {
        float p = lane + 32 * i < r.experts ? row[lane + 32 * i] : 0;
        keys[i] = p > 0 ? __float_as_uint(p) + 1 : 1;
        if (lane + 32 * i >= r.experts)
            keys[i] = 0;
    }
    for (int k = 0; k < r.top_k; k++) {
        int expert = r.replay ? r.ids[at + k] : best(keys);
        float p = row[expert];
#pragma unroll
        for (int i = 0; i < Count; i++)
            if (expert == lane + 32 * i)
                keys[i] = 0;
        if (k % 32 == lane) {
            ids[k / 32] = expert;
            weights[k / 32] = p;
        }
        sum += p;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int k = lane + 32 * i;
        if (k >= r.top_k)
            continue;
        r.weights[at + k] = r.normalise ? weights[i] / sum : weights[i];
        atomicAdd(&counts[ids[i]], 1);
        if (!r.replay) {
            r.ids[at + k] = ids[i];
            r.kept[at + k] = 1;
        }
    }
}

// Count: experts a lane.
template <int Count>
__global__ static void __cluster_dims__(CLUSTER) __launch_bounds__(THREADS, 1)
    router_kernel(const __grid_constant__ struct router r)
{
    extern __shared__ __align__(16) char shared[];
    cg::cluster_group cluster = cg::this_cluster();
    float *logits = (float *)(shared + STAGES * STAGE_BYTES);
    int *counts = (int *)shared; // after the products
    int rank = (int)cluster.block_rank(), first = blockIdx.x / CLUSTER * TILE_TOKENS;
    int own = min(max(r.tokens - first - rank * OWN_TOKENS, 0), OWN_TOKENS);

    for (int expert = 0; expert < r.experts; expert += TILE_EXPERTS) {
        tile_multiply(r, first, expert, rank, shared);
        cluster.sync();
        tile_gather(r, expert, cluster, (float *)shared, logits);
        cluster.sync();
    }
    for (int i = threadIdx.x; i < r.experts; i += THREADS)
        counts[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x / 32; i < own; i += WARPS) {
        probabilities<Count>(r, first + rank * OWN_TOKENS + i, logits + i * r.experts);
        choose<Count>(r, first + rank * OWN_TOKENS + i, logits + i * r.experts, counts);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < r.experts; i += THREADS) {
        double mass = 0;
        for (int t = 0; t < own; t++)
            mass += logits[t * r.experts + i];
        r.mass[(size_t)blockIdx.x * r.experts + i] = mass;
        r.slots[(size_t)blockIdx.x * r.experts + i] = counts[i];
    }
}

template <int Count> static int launch(const struct router *r, cudaStream_t stream)
{
    int bytes = STAGES * STAGE_BYTES + OWN_TOKENS * r->experts * 4;
    cudaError_t rc = cudaFuncSetAttribute(router_kernel<Count>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);

    if (rc != cudaSuccess)
        return rc;
    router_kernel<Count><<<ROUTER_PARTS(r->tokens), THREADS, bytes, stream>>>(*r);
    return cudaGetLastError();
}

extern "C" int sm90_router_forward(const struct router *r, void *stream)
{
    if (r->experts > ROUTER_EXPERTS_MOST || r->top_k > ROUTER_TOP_K_MOST)
        return cudaErrorInvalidValue;
    if (r->tokens == 0)
        return cudaSuccess;
    if (r->experts <= 128)
        return launch<4>(r, (cudaStream_t)stream);
    if (r->experts <= 256)
        return launch<8>(r, (cudaStream_t)stream);
    return launch<16>(r, (cudaStream_t)stream);
}
