// SPDX-License-Identifier: Apache-2.0
// Attention forward pass for Hopper: a persistent kernel, one producer warp feeding two math
// warpgroups, each with 64 queries of a tile against 128 keys at a time.
//
// Shah et al., "FlashAttention-3" (2024): a warpgroup's softmax overlaps its own product with the
// values of the tile before, and the two warpgroups take turns at the tensor core.
#include "attention.cuh"
#include "sm90_tensor_map.cuh"

#include <math.h>

#define STAGES 2

template <int D> struct forward_memory {
    bf16_tile<ATTENTION_TILE, D> q, k[STAGES], v[STAGES];
    alignas(128) uint8_t out[MATH_WARPS][16 * D * 2];
    uint64_t q_full, q_empty, k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

// Scores to unnormalised probabilities; tops and sums of rows g and g + 8 of the warp's 16. Returns
// in shrink what earlier sums and outputs are to be multiplied by.
template <bool FIRST>
static __device__ __forceinline__ void softmax(float (&s)[64], float scale, float (&top)[2],
                                               float (&sum)[2], float (&shrink)[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float highest = FIRST ? -INFINITY : top[half], total = 0;
#pragma unroll
        for (int j = 0; j < 32; j++)
            highest = fmaxf(highest, s[j / 2 * 4 + half * 2 + j % 2]);
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 2));
        shrink[half] = FIRST ? 0 : exp2_fast((top[half] - highest) * scale);
        top[half] = highest;
        float offset = highest * scale;
#pragma unroll
        for (int j = 0; j < 32; j++) {
            float &x = s[j / 2 * 4 + half * 2 + j % 2];
            x = exp2_fast(fmaf(x, scale, -offset));
            total += x;
        }
        sum[half] = FIRST ? total : sum[half] * shrink[half] + total;
    }
}

// Keys after the query, in the tile whose rows are keys and queries alike.
static __device__ __forceinline__ void mask_diagonal(float (&s)[64], int row)
{
    int column = threadIdx.x % 4 * 2;

#pragma unroll
    for (int i = 0; i < 64; i++)
        if (i / 4 * 8 + column + i % 2 > row + i % 4 / 2 * 8)
            s[i] = -INFINITY;
}

template <int D>
__global__ __launch_bounds__(THREADS, 1) void sm90_attention_forward_kernel(
    const __grid_constant__ CUtensorMap map_qk, const __grid_constant__ CUtensorMap map_qkv,
    const __grid_constant__ attention a, __nv_bfloat16 *out, float *lse, float scale)
{
    typedef forward_memory<D> Shared;
    extern __shared__ uint8_t raw[];
    uint32_t base = (smem_address(raw) + 1023) & ~1023u;
    uint32_t q = base + offsetof(Shared, q), k = base + offsetof(Shared, k),
             v = base + offsetof(Shared, v);
    uint32_t q_full = base + offsetof(Shared, q_full), q_empty = base + offsetof(Shared, q_empty),
             k_full = base + offsetof(Shared, k_full), k_empty = base + offsetof(Shared, k_empty),
             v_full = base + offsetof(Shared, v_full), v_empty = base + offsetof(Shared, v_empty);
    constexpr uint32_t tile_bytes = sizeof(bf16_tile<ATTENTION_TILE, D>);
    int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    query_work w;

    if (threadIdx.x == 0) {
        mbarrier_init(q_full, 1);
        mbarrier_init(q_empty, MATH_WARPS * WARP_ARRIVALS);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(k_full + i * 8, 1);
            mbarrier_init(v_full + i * 8, 1);
            mbarrier_init(k_empty + i * 8, MATH_WARPS * WARP_ARRIVALS);
            mbarrier_init(v_empty + i * 8, MATH_WARPS * WARP_ARRIVALS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();

    if (warp < 4) {
        registers_give<24>();
        if (warp == 0 && elect_one()) {
            ring r = {0, 1};
            for (int round = 0; query_work_find(a, round, w); round++) {
                int kv = w.head / (a.heads / a.kv_heads);
                mbarrier_wait(q_empty, round % 2 ^ 1);
                mbarrier_arrive_expect(q_full, tile_bytes);
                tile_load<ATTENTION_TILE, D>(q, &map_qk, w.head * D, w.tile.row, q_full);
                for (int row = w.tile.row; row >= w.tile.first; row -= ATTENTION_TILE) {
                    uint32_t bar = k_full + r.stage * 8;
                    mbarrier_wait(k_empty + r.stage * 8, r.phase);
                    mbarrier_arrive_expect(bar, tile_bytes);
                    tile_load<ATTENTION_TILE, D>(k + r.stage * tile_bytes, &map_qk,
                                                 (a.heads + kv) * D, row, bar);
                    bar = v_full + r.stage * 8;
                    mbarrier_wait(v_empty + r.stage * 8, r.phase);
                    mbarrier_arrive_expect(bar, tile_bytes);
                    tile_load<ATTENTION_TILE, D>(v + r.stage * tile_bytes, &map_qkv,
                                                 (a.heads + a.kv_heads + kv) * D, row, bar);
                    ring_step<STAGES>(r);
                }
            }
        }
    } else {
        registers_take<240>();
        int math = warp / 4 - 1, first = math * 64 + warp % 4 * 16; // the warp's rows of the tile
        uint32_t staging = base + offsetof(Shared, out) + (warp - 4) * sizeof(Shared::out[0]);
        uint32_t q_operand = operand<ATTENTION_TILE>(q + math * 64 * 128);
        ring rk = {0, 0}, rv = {0, 0};
        if (math == 1)
            turn_pass(math);
        for (int round = 0; query_work_find(a, round, w); round++) {
            float s[64], o[D / 2], top[2], sum[2], shrink[2];
            uint32_t p[ATTENTION_TILE / 16][4];
            clear(o);
            mbarrier_wait(q_full, round % 2);
            mbarrier_wait(k_full + rk.stage * 8, rk.phase);
            turn_wait(math);
            product_columns<D, ATTENTION_TILE>(s, q_operand,
                                               operand<ATTENTION_TILE>(k + rk.stage * tile_bytes));
            turn_pass(math);
            wgmma_wait<0>();
            warp_arrive(k_empty + rk.stage * 8);
            ring_step<STAGES>(rk);
            mask_diagonal(s, first + lane / 4);
            softmax<true>(s, scale * LOG2_E, top, sum, shrink);
            pack(s, p);
            for (int row = w.tile.row; row > w.tile.first; row -= ATTENTION_TILE) {
                mbarrier_wait(k_full + rk.stage * 8, rk.phase);
                turn_wait(math);
                product_columns<D, ATTENTION_TILE>(
                    s, q_operand, operand<ATTENTION_TILE>(k + rk.stage * tile_bytes));
                mbarrier_wait(v_full + rv.stage * 8, rv.phase);
                product_rows(o, p, operand<ATTENTION_TILE>(v + rv.stage * tile_bytes));
                turn_pass(math);
                wgmma_wait<1>();
                warp_arrive(k_empty + rk.stage * 8);
                ring_step<STAGES>(rk);
                softmax<false>(s, scale * LOG2_E, top, sum, shrink);
                wgmma_wait<0>();
                warp_arrive(v_empty + rv.stage * 8);
                ring_step<STAGES>(rv);
#pragma unroll
                for (int i = 0; i < D / 2; i++)
                    o[i] *= shrink[i % 4 / 2];
                pack(s, p);
            }
            warp_arrive(q_empty);
            mbarrier_wait(v_full + rv.stage * 8, rv.phase);
            product_rows(o, p, operand<ATTENTION_TILE>(v + rv.stage * tile_bytes));
            wgmma_wait<0>();
            warp_arrive(v_empty + rv.stage * 8);
            ring_step<STAGES>(rv);

            int token = w.tile.row + first, rows = w.tile.end - token;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 1);
                sum[half] += __shfl_xor_sync(0xffffffff, sum[half], 2);
                int row = lane / 4 + half * 8;
                if (lane % 4 == 0 && row < rows)
                    lse[(size_t)w.head * a.tokens + token + row] =
                        top[half] * scale + logf(sum[half]);
            }
            warp_store<D>(o, 1 / sum[0], 1 / sum[1], staging,
                          out + ((size_t)token * a.heads + w.head) * D, (size_t)a.heads * D, rows);
        }
        if (math == 0)
            turn_wait(math);
    }
}

template <int D>
static int forward(const struct attention *a, __nv_bfloat16 *out, float *lse, cudaStream_t stream)
{
    auto kernel = sm90_attention_forward_kernel<D>;
    constexpr int bytes = sizeof(forward_memory<D>) + 1024;
    CUtensorMap qk, qkv;
    int device, processors, rc, wide = (a->heads + a->kv_heads) * D,
                                wider = (a->heads + 2 * a->kv_heads) * D;

    static_assert(bytes <= 232448, "shared memory of a block");
    if ((rc = tensor_map_bf16(&qk, a->qk, a->tokens, wide, wide * 2, BOX_ROWS)) ||
        (rc = tensor_map_bf16(&qkv, a->qkv, a->tokens, wider, wider * 2, BOX_ROWS)) ||
        (rc = cudaGetDevice(&device)) ||
        (rc = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) ||
        (rc = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)))
        return rc;
    kernel<<<processors, THREADS, bytes, stream>>>(qk, qkv, *a, out, lse, 1 / sqrtf((float)D));
    return cudaGetLastError();
}

extern "C" int sm90_attention_forward(const struct attention *a, void *out, float *lse,
                                      void *stream)
{
    if (a->tiles == 0)
        return 0;
    if (a->head_dim == 128)
        return forward<128>(a, (__nv_bfloat16 *)out, lse, (cudaStream_t)stream);
    if (a->head_dim == 64)
        return forward<64>(a, (__nv_bfloat16 *)out, lse, (cudaStream_t)stream);
    return cudaErrorInvalidValue;
}

struct tile_chunk {
    int count;
    attention_tile tile[240]; // a launch's parameters hold no more
};

__global__ static void tiles_store_kernel(const __grid_constant__ tile_chunk chunk,
                                          attention_tile *to)
{
    if (threadIdx.x < chunk.count)
        to[threadIdx.x] = chunk.tile[threadIdx.x];
}

extern "C" int attention_tiles_store(const struct attention_tile *host, int count,
                                     struct attention_tile *device, void *stream)
{
    constexpr int most = sizeof(tile_chunk::tile) / sizeof(attention_tile);
    tile_chunk chunk;

    for (int done = 0; done < count; done += chunk.count) {
        chunk.count = count - done < most ? count - done : most;
        for (int i = 0; i < chunk.count; i++)
            chunk.tile[i] = host[done + i];
        tiles_store_kernel<<<1, 256, 0, (cudaStream_t)stream>>>(chunk, device + done);
    }
    return cudaGetLastError();
}
