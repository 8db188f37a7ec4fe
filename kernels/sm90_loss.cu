// SPDX-License-Identifier: Apache-2.0
// Cross entropy: a cluster of eight blocks holds a row in shared memory, so that a logit is read
// once and its gradient written once.
#include "loss.h"

#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <float.h>

namespace cg = cooperative_groups;

#define CLUSTER     8
#define THREADS     384
#define WARPS       (THREADS / 32)
#define SUM_THREADS 256 // a power of two

// What a block has found, for the others of its cluster.
struct found {
    float top;
    double sum; // of exp(value - top)
};

struct shared_sums {
    struct found found;
    float tops[WARPS];
    double sums[WARPS];
};

static __device__ int aligned_slice(int vocab)
{
    return (vocab + CLUSTER * 4 - 1) / (CLUSTER * 4) * 4;
}

static __device__ float round_bf16(float x)
{
    return __bfloat162float(__float2bfloat16_rn(x));
}

// The greatest of the slice's logits, which go to values, padded with -inf to a multiple of four.
static __device__ float slice_load(const float *logits, int count, bool aligned, float4 *values)
{
    float top = -FLT_MAX; // no infinity: its difference from itself is no number

    if (aligned) {
#pragma unroll 4
        for (int i = threadIdx.x; i < count / 4; i += THREADS) {
            float4 v = __ldcs((const float4 *)logits + i);
            values[i] = v;
            top = fmaxf(fmaxf(fmaxf(top, v.x), fmaxf(v.y, v.z)), v.w);
        }
        return top;
    }
    for (int i = threadIdx.x; i < (count + 3) / 4 * 4; i += THREADS) {
        float v = i < count ? logits[i] : -INFINITY;
        ((float *)values)[i] = v;
        top = fmaxf(top, v);
    }
    return top;
}

// Each value becomes exp(value - top); their sum.
static __device__ float slice_exponentials(float4 *values, int count, float top)
{
    float sum = 0;

    for (int i = threadIdx.x; i < (count + 3) / 4; i += THREADS) {
        float4 v = values[i];
        v = make_float4(expf(v.x - top), expf(v.y - top), expf(v.z - top), expf(v.w - top));
        values[i] = v;
        sum += (v.x + v.y) + (v.z + v.w);
    }
    return sum;
}

// target: in this slice, or outside it.
static __device__ void slice_store(const float4 *values, int count, bool aligned, int target,
                                   float factor, float scale, float *logits)
{
    if (aligned) {
        for (int i = threadIdx.x; i < count / 4; i += THREADS) {
            float4 v = values[i];
            v.x = round_bf16(v.x * factor - (target == 4 * i ? scale : 0));
            v.y = round_bf16(v.y * factor - (target == 4 * i + 1 ? scale : 0));
            v.z = round_bf16(v.z * factor - (target == 4 * i + 2 ? scale : 0));
            v.w = round_bf16(v.w * factor - (target == 4 * i + 3 ? scale : 0));
            ((float4 *)logits)[i] = v;
        }
        return;
    }
    for (int i = threadIdx.x; i < count; i += THREADS)
        logits[i] = round_bf16(((const float *)values)[i] * factor - (target == i ? scale : 0));
}

static __device__ void slice_clear(float *logits, int count)
{
    for (int i = threadIdx.x; i < count; i += THREADS)
        logits[i] = 0;
}

static __device__ float block_top(float top, struct shared_sums *shared)
{
    for (int offset = 16; offset; offset /= 2)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, offset));
    if (threadIdx.x % 32 == 0)
        shared->tops[threadIdx.x / 32] = top;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        top = fmaxf(top, shared->tops[w]);
    return top;
}

// In one order.
static __device__ double block_sum(float part, struct shared_sums *shared)
{
    double sum = part;

    for (int offset = 16; offset; offset /= 2)
        sum += __shfl_xor_sync(~0u, sum, offset);
    if (threadIdx.x % 32 == 0)
        shared->sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        sum += shared->sums[w];
    return sum;
}

// From what each block of the cluster has found, the same for the row.
static __device__ struct found cluster_found(const cg::cluster_group &cluster,
                                             struct shared_sums *shared)
{
    struct found blocks[CLUSTER], row = {-FLT_MAX, 0};

    cluster.sync();
#pragma unroll
    for (int i = 0; i < CLUSTER; i++)
        blocks[i] = *cluster.map_shared_rank(&shared->found, i);
    cluster.barrier_arrive(); // paired with the wait before a block leaves: the others read here
#pragma unroll
    for (int i = 0; i < CLUSTER; i++)
        row.top = fmaxf(row.top, blocks[i].top);
#pragma unroll
    for (int i = 0; i < CLUSTER; i++)
        if (blocks[i].sum > 0 || isnan(blocks[i].sum))
            row.sum += blocks[i].sum * (double)expf(blocks[i].top - row.top);
    return row;
}

__global__ static void __cluster_dims__(CLUSTER) __launch_bounds__(THREADS, 3)
    cross_entropy_kernel(float *logits, const int32_t *targets, int vocab, int gradient,
                         float scale, double *losses)
{
    extern __shared__ __align__(16) float4 values[];
    __shared__ struct shared_sums shared;
    cg::cluster_group cluster = cg::this_cluster();
    int row = blockIdx.x / CLUSTER, rank = (int)cluster.block_rank(), target = targets[row];
    int slice = aligned_slice(vocab), first = min(rank * slice, vocab);
    int count = min(slice, vocab - first);
    float *mine = logits + (size_t)row * vocab + first, wanted = 0, top;
    double sum;
    bool aligned = vocab % 4 == 0;
    struct found found;

    if (target < 0) {
        if (gradient)
            slice_clear(mine, count);
        if (rank == 0 && threadIdx.x == 0)
            losses[row] = 0;
        return;
    }
    if (rank == 0 && threadIdx.x == 0)
        wanted = logits[(size_t)row * vocab + target];
    top = block_top(slice_load(mine, count, aligned, values), &shared);
    sum = block_sum(slice_exponentials(values, count, top), &shared);
    if (threadIdx.x == 0)
        shared.found = {top, sum};
    found = cluster_found(cluster, &shared);
    if (gradient)
        slice_store(values, count, aligned, target - first,
                    scale / (float)found.sum * expf(top - found.top), scale, mine);
    if (rank == 0 && threadIdx.x == 0)
        losses[row] = log(found.sum) + found.top - wanted;
    cluster.barrier_wait();
}

// One block.
__global__ static void __launch_bounds__(SUM_THREADS)
    add_losses_kernel(const double *losses, int rows, double *loss_sum)
{
    __shared__ double sums[SUM_THREADS];
    double sum = 0;

    for (int r = threadIdx.x; r < rows; r += SUM_THREADS)
        sum += losses[r];
    sums[threadIdx.x] = sum;
    for (int half = SUM_THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        *loss_sum += sums[0];
}

extern "C" int sm90_cross_entropy(float *logits, const int32_t *targets, int rows, int vocab,
                                  int gradient, float scale, double *losses, double *loss_sum,
                                  void *stream)
{
    size_t bytes = (size_t)((vocab + CLUSTER * 4 - 1) / (CLUSTER * 4)) * sizeof(float4);
    cudaError_t rc = cudaFuncSetAttribute(cross_entropy_kernel,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);

    if (rc != cudaSuccess || rows == 0)
        return rc;
    cross_entropy_kernel<<<(unsigned)rows * CLUSTER, THREADS, bytes, (cudaStream_t)stream>>>(
        logits, targets, vocab, gradient, scale, losses);
    add_losses_kernel<<<1, SUM_THREADS, 0, (cudaStream_t)stream>>>(losses, rows, loss_sum);
    return cudaGetLastError();
}
