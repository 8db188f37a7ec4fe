// SPDX-License-Identifier: Apache-2.0
// Attention backward pass for Hopper, without atomics: one kernel for dQ by tiles of queries, one
// for dK and dV by tiles of keys, which recompute the probabilities from the forward pass's lse.
//
// With P = exp(S - lse) and D = rowsum(dO O): dV = P^T dO, dP = dO V^T, dS = P (dP - D),
// dQ = dS K, dK = dS^T Q: Dao, "FlashAttention-2" (2023). The second kernel computes S and dP
// transposed, so that in both all left operands of second products come from registers.
#include "attention.cuh"
#include "sm90_tensor_map.cuh"

#include <math.h>

#define QUERY_STAGES 2
#define KEY_STAGES   3
#define KEY_QUERIES  64 // queries of a stage of the kernel by keys

// What the kernels know of a query: lse log2(e) and D.
static __device__ __forceinline__ float2 *stat_row(float2 *stats, int head, int stride, int row)
{
    return stats + (size_t)head * stride + row;
}

// Stats of a tile's rows of one head; D / 8 lanes a row.
template <int D>
__global__ static void attention_stats_kernel(const __grid_constant__ attention a,
                                              const __nv_bfloat16 *out, const __nv_bfloat16 *dout,
                                              const float *lse, float2 *stats, int stride)
{
    constexpr int lanes = D / 8;
    attention_tile t = tile_get(a.by_keys, blockIdx.x);
    int head = blockIdx.y, rows = min(ATTENTION_TILE, t.end - t.row), part = threadIdx.x % lanes;

    for (int base = 0; base < ATTENTION_TILE; base += blockDim.x / lanes) {
        int row = base + threadIdx.x / lanes;
        float dot = 0;
        if (row < rows) {
            size_t at = ((size_t)(t.row + row) * a.heads + head) * D + part * 8;
            uint4 x = __ldg((const uint4 *)(out + at)), y = __ldg((const uint4 *)(dout + at));
            const __nv_bfloat162 *u = (const __nv_bfloat162 *)&x, *v = (const __nv_bfloat162 *)&y;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float2 f = __bfloat1622float2(u[i]), g = __bfloat1622float2(v[i]);
                dot += f.x * g.x + f.y * g.y;
            }
        }
#pragma unroll
        for (int shift = lanes / 2; shift; shift /= 2)
            dot += __shfl_xor_sync(0xffffffff, dot, shift);
        if (row < rows && part == 0)
            *stat_row(stats, head, stride, t.stat + row) =
                make_float2(lse[(size_t)head * a.tokens + t.row + row] * LOG2_E, dot);
    }
}

template <int D> struct query_memory {
    bf16_tile<ATTENTION_TILE, D> q, dout, k[QUERY_STAGES], v[QUERY_STAGES];
    alignas(128) uint8_t out[MATH_WARPS][16 * D * 2];
    uint64_t q_full, q_empty;
    uint64_t k_full[QUERY_STAGES], k_empty[QUERY_STAGES];
    uint64_t v_full[QUERY_STAGES], v_empty[QUERY_STAGES];
};

template <int D>
__global__ __launch_bounds__(THREADS, 1) void sm90_attention_dq_kernel(
    const __grid_constant__ CUtensorMap map_qk, const __grid_constant__ CUtensorMap map_qkv,
    const __grid_constant__ CUtensorMap map_dout, const __grid_constant__ attention a,
    float2 *stats, int stat_stride, __nv_bfloat16 *dqkv, float scale)
{
    typedef query_memory<D> Shared;
    extern __shared__ uint8_t raw[];
    uint32_t base = (smem_address(raw) + 1023) & ~1023u;
    uint32_t q = base + offsetof(Shared, q), dout = base + offsetof(Shared, dout),
             k = base + offsetof(Shared, k), v = base + offsetof(Shared, v);
    uint32_t q_full = base + offsetof(Shared, q_full), q_empty = base + offsetof(Shared, q_empty),
             k_full = base + offsetof(Shared, k_full), k_empty = base + offsetof(Shared, k_empty),
             v_full = base + offsetof(Shared, v_full), v_empty = base + offsetof(Shared, v_empty);
    constexpr uint32_t tile_bytes = sizeof(bf16_tile<ATTENTION_TILE, D>);
    int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    query_work w;

    if (threadIdx.x == 0) {
        mbarrier_init(q_full, 1);
        mbarrier_init(q_empty, MATH_WARPS * WARP_ARRIVALS);
        for (int i = 0; i < QUERY_STAGES; i++) {
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
                mbarrier_arrive_expect(q_full, 2 * tile_bytes);
                tile_load<ATTENTION_TILE, D>(q, &map_qk, w.head * D, w.tile.row, q_full);
                tile_load<ATTENTION_TILE, D>(dout, &map_dout, w.head * D, w.tile.row, q_full);
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
                    ring_step<QUERY_STAGES>(r);
                }
            }
        }
    } else {
        registers_take<240>();
        int math = warp / 4 - 1, first = math * 64 + warp % 4 * 16; // the warp's rows of the tile
        uint32_t staging = base + offsetof(Shared, out) + (warp - 4) * sizeof(Shared::out[0]);
        uint32_t q_operand = operand<ATTENTION_TILE>(q + math * 64 * 128);
        uint32_t dout_operand = operand<ATTENTION_TILE>(dout + math * 64 * 128);
        ring r = {0, 0};
        if (math == 1)
            turn_pass(math);
        for (int round = 0; query_work_find(a, round, w); round++) {
            float s[64], dp[64], dq[D / 2];
            uint32_t ds[ATTENTION_TILE / 16][4];
            const float2 *stat =
                stat_row(stats, w.head, stat_stride, w.tile.stat + first + lane / 4);
            float2 stat_0 = __ldg(stat), stat_8 = __ldg(stat + 8);
            int before = 0; // stage of the tile whose product into dq is still queued
            clear(dq);
            mbarrier_wait(q_full, round % 2);
            for (int row = w.tile.row; row >= w.tile.first; row -= ATTENTION_TILE) {
                uint32_t k_operand = operand<ATTENTION_TILE>(k + r.stage * tile_bytes);
                mbarrier_wait(k_full + r.stage * 8, r.phase);
                turn_wait(math);
                product_columns<D, ATTENTION_TILE>(s, q_operand, k_operand);
                wgmma_wait<1>();
                if (row != w.tile.row)
                    warp_arrive(k_empty + before * 8);
                mbarrier_wait(v_full + r.stage * 8, r.phase);
                product_columns<D, ATTENTION_TILE>(
                    dp, dout_operand, operand<ATTENTION_TILE>(v + r.stage * tile_bytes));
                turn_pass(math);
                wgmma_wait<1>();
                if (row == w.tile.row) {
#pragma unroll
                    for (int i = 0; i < 64; i++)
                        if (i / 4 * 8 + lane % 4 * 2 + i % 2 > first + lane / 4 + i % 4 / 2 * 8)
                            s[i] = -INFINITY;
                }
#pragma unroll
                for (int i = 0; i < 64; i++)
                    s[i] = exp2_fast(fmaf(s[i], scale * LOG2_E, i % 4 / 2 ? -stat_8.x : -stat_0.x));
                wgmma_wait<0>();
                warp_arrive(v_empty + r.stage * 8);
#pragma unroll
                for (int i = 0; i < 64; i++)
                    s[i] *= dp[i] - (i % 4 / 2 ? stat_8.y : stat_0.y);
                pack(s, ds);
                product_rows(dq, ds, k_operand);
                before = r.stage;
                ring_step<QUERY_STAGES>(r);
            }
            warp_arrive(q_empty);
            wgmma_wait<0>();
            warp_arrive(k_empty + before * 8);
            int token = w.tile.row + first, wide = (a.heads + 2 * a.kv_heads) * D;
            warp_store<D>(dq, scale, scale, staging, dqkv + (size_t)token * wide + w.head * D, wide,
                          w.tile.end - token);
        }
        if (math == 0)
            turn_wait(math);
    }
}

template <int D> struct key_memory {
    bf16_tile<ATTENTION_TILE, D> k, v; // in the end: the other block's share of dk or dv
    bf16_tile<KEY_QUERIES, D> q[KEY_STAGES], dout[KEY_STAGES]; // in the end: staging
    alignas(128) float2 stats[KEY_STAGES][KEY_QUERIES];
    uint64_t kv_full, full[KEY_STAGES], empty[KEY_STAGES];
};

// Probabilities and dS of 64 keys by 64 queries, transposed: keys are rows. The masks are of
// queries before the key (where the tiles coincide) and beyond the sample.
template <bool MASKED>
static __device__ __forceinline__ void probabilities(float (&s)[32], uint32_t stats, float scale,
                                                     bool diagonal, int queries)
{
    int lane = threadIdx.x % 32, key = threadIdx.x / 32 % 4 * 16 + lane / 4;

#pragma unroll
    for (int j = 0; j < 8; j++) { // two queries each
        uint4 pair = shared_load_16(stats + (j * 8 + lane % 4 * 2) * 8);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float &x = s[j * 4 + i];
            int query = j * 8 + lane % 4 * 2 + i % 2;
            x = exp2_fast(fmaf(x, scale, -__uint_as_float(i % 2 ? pair.z : pair.x)));
            if (MASKED && (query >= queries || (diagonal && query < key + i / 2 * 8)))
                x = 0;
        }
    }
}

// s = probability * (dp - D), but 0 where the probability is.
template <bool MASKED>
static __device__ __forceinline__ void score_gradient(float (&s)[32], const float (&dp)[32],
                                                      uint32_t stats)
{
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint4 pair = shared_load_16(stats + (j * 8 + lane % 4 * 2) * 8);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float &x = s[j * 4 + i], d = dp[j * 4 + i];
            float gradient = x * (d - __uint_as_float(i % 2 ? pair.w : pair.y));
            x = MASKED && x == 0 ? 0 : gradient;
        }
    }
}

// The accumulators into the other block's memory; each thread's are read there by its namesake.
template <int N>
static __device__ __forceinline__ void send(const float (&d)[N], uint32_t to, uint32_t rank)
{
    uint32_t remote;

    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(to), "r"(rank));
#pragma unroll
    for (int i = 0; i < N; i += 4)
        asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(
                         remote + (i / 4 * 128 * MATH_GROUPS + threadIdx.x - 128) * 16),
                     "f"(d[i]), "f"(d[i + 1]), "f"(d[i + 2]), "f"(d[i + 3])
                     : "memory");
}

template <int N> static __device__ __forceinline__ void receive(float (&d)[N], uint32_t from)
{
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        uint4 x = shared_load_16(from + (i / 4 * 128 * MATH_GROUPS + threadIdx.x - 128) * 16);
        d[i] += __uint_as_float(x.x);
        d[i + 1] += __uint_as_float(x.y);
        d[i + 2] += __uint_as_float(x.z);
        d[i + 3] += __uint_as_float(x.w);
    }
}

// Two blocks of a cluster own a tile of keys of one kv head. Each takes half of the pairs (query
// head of the group, tile of queries); in the end the first adds up dk, the second dv.
template <int D>
__global__ __cluster_dims__(2) __launch_bounds__(THREADS, 1) void sm90_attention_dkv_kernel(
    const __grid_constant__ CUtensorMap map_qk, const __grid_constant__ CUtensorMap map_qkv,
    const __grid_constant__ CUtensorMap map_dout, const __grid_constant__ attention a,
    float2 *stats, int stat_stride, __nv_bfloat16 *dqkv, float scale)
{
    typedef key_memory<D> Shared;
    extern __shared__ uint8_t raw[];
    uint32_t base = (smem_address(raw) + 1023) & ~1023u;
    uint32_t k = base + offsetof(Shared, k), v = base + offsetof(Shared, v),
             q = base + offsetof(Shared, q), dout = base + offsetof(Shared, dout),
             stage_stats = base + offsetof(Shared, stats);
    uint32_t kv_full = base + offsetof(Shared, kv_full), full = base + offsetof(Shared, full),
             empty = base + offsetof(Shared, empty);
    constexpr uint32_t tile_bytes = sizeof(bf16_tile<KEY_QUERIES, D>),
                       stat_bytes = sizeof(Shared::stats[0]);
    int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    uint32_t rank = cluster_rank();
    int item = blockIdx.x / 2, kv = item % a.kv_heads, group = a.heads / a.kv_heads;
    attention_tile t = tile_get(a.by_queries, item / a.kv_heads);
    int tiles = (t.end - t.row + KEY_QUERIES - 1) / KEY_QUERIES, pairs = group * tiles;
    int begin = rank ? pairs / 2 : 0, end = rank ? pairs : pairs / 2;

    if (threadIdx.x == 0) {
        mbarrier_init(kv_full, 1);
        for (int i = 0; i < KEY_STAGES; i++) {
            mbarrier_init(full + i * 8, 1);
            mbarrier_init(empty + i * 8, MATH_WARPS * WARP_ARRIVALS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();

    if (warp < 4) {
        registers_give<24>();
        if (warp == 0 && elect_one()) {
            ring r = {0, 1};
            mbarrier_arrive_expect(kv_full, 2 * sizeof(bf16_tile<ATTENTION_TILE, D>));
            tile_load<ATTENTION_TILE, D>(k, &map_qk, (a.heads + kv) * D, t.row, kv_full);
            tile_load<ATTENTION_TILE, D>(v, &map_qkv, (a.heads + a.kv_heads + kv) * D, t.row,
                                         kv_full);
            int head = kv * group + begin / tiles, tile = begin % tiles;
            for (int pair = begin; pair < end; pair++) {
                int from = tile * KEY_QUERIES;
                uint32_t bar = full + r.stage * 8;
                mbarrier_wait(empty + r.stage * 8, r.phase);
                mbarrier_arrive_expect(bar, 2 * tile_bytes + stat_bytes);
                tile_load<KEY_QUERIES, D>(q + r.stage * tile_bytes, &map_qk, head * D, t.row + from,
                                          bar);
                tile_load<KEY_QUERIES, D>(dout + r.stage * tile_bytes, &map_dout, head * D,
                                          t.row + from, bar);
                bulk_load(stage_stats + r.stage * stat_bytes,
                          stat_row(stats, head, stat_stride, t.stat + from), stat_bytes, bar);
                ring_step<KEY_STAGES>(r);
                if (++tile == tiles) {
                    tile = 0;
                    head++;
                }
            }
        }
        __syncwarp();
        cluster_sync();
        cluster_sync();
    } else {
        registers_take<240>();
        int math = warp / 4 - 1, first = math * 64 + warp % 4 * 16; // the warp's rows of the tile
        uint32_t k_operand = operand<ATTENTION_TILE>(k + math * 64 * 128);
        uint32_t v_operand = operand<ATTENTION_TILE>(v + math * 64 * 128);
        ring r = {0, 0};
        float dk[D / 2], dv[D / 2];
        int before = -1; // stage whose last products are still queued
        int tile = begin % tiles;
        clear(dk);
        clear(dv);
        mbarrier_wait(kv_full, 0);
        for (int pair = begin; pair < end; pair++) {
            float s[KEY_QUERIES / 2], dp[KEY_QUERIES / 2];
            uint32_t p[KEY_QUERIES / 16][4], ds[KEY_QUERIES / 16][4];
            uint32_t q_operand = operand<KEY_QUERIES>(q + r.stage * tile_bytes);
            uint32_t dout_operand = operand<KEY_QUERIES>(dout + r.stage * tile_bytes);
            uint32_t stat = stage_stats + r.stage * stat_bytes;
            int queries = t.end - t.row - tile * KEY_QUERIES;
            bool masked = tile <= math || queries < KEY_QUERIES;
            mbarrier_wait(full + r.stage * 8, r.phase);
            product_columns<D, ATTENTION_TILE>(s, k_operand, q_operand);
            wgmma_wait<1>();
            if (before >= 0)
                warp_arrive(empty + before * 8);
            product_columns<D, ATTENTION_TILE>(dp, v_operand, dout_operand);
            wgmma_wait<1>();
            if (masked)
                probabilities<true>(s, stat, scale * LOG2_E, tile == math,
                                    tile < math ? 0 : queries);
            else
                probabilities<false>(s, stat, scale * LOG2_E, false, 0);
            pack(s, p);
            wgmma_wait<0>();
            if (masked)
                score_gradient<true>(s, dp, stat);
            else
                score_gradient<false>(s, dp, stat);
            pack(s, ds); // before the next products: none may be queued while operands are written
            product_rows(dv, p, dout_operand);
            product_rows(dk, ds, q_operand);
            before = r.stage;
            ring_step<KEY_STAGES>(r);
            tile = tile + 1 < tiles ? tile + 1 : 0;
        }
        wgmma_wait<0>();
        cluster_sync(); // both have read k and v
        if (rank)
            send(dk, k, 0);
        else
            send(dv, k, 1);
        cluster_sync();
        int token = t.row + first, wide = (a.heads + 2 * a.kv_heads) * D;
        uint32_t staging = q + (warp - 4) * 16 * D * 2;
        __nv_bfloat16 *to = dqkv + (size_t)token * wide + (a.heads + kv) * D;
        if (rank) {
            receive(dv, k);
            warp_store<D>(dv, 1, 1, staging, to + a.kv_heads * D, wide, t.end - token);
        } else {
            receive(dk, k);
            warp_store<D>(dk, scale, scale, staging, to, wide, t.end - token);
        }
    }
}

template <int D>
static int backward(const struct attention *a, const __nv_bfloat16 *out, const float *lse,
                    const __nv_bfloat16 *dout, float2 *stats, int stat_stride, __nv_bfloat16 *dqkv,
                    cudaStream_t stream)
{
    auto dq = sm90_attention_dq_kernel<D>;
    auto dkv = sm90_attention_dkv_kernel<D>;
    constexpr int dq_bytes = sizeof(query_memory<D>) + 1024,
                  dkv_bytes = sizeof(key_memory<D>) + 1024;
    float scale = 1 / sqrtf((float)D);
    CUtensorMap map_qk, map_qkv, map_dout;
    int device, processors, rc, narrow = a->heads * D, wide = (a->heads + a->kv_heads) * D,
                                wider = (a->heads + 2 * a->kv_heads) * D;

    static_assert(dq_bytes <= 232448 && dkv_bytes <= 232448, "shared memory of a block");
    static_assert(offsetof(key_memory<D>, q) >= ATTENTION_TILE * D * 4, "room for another's share");
    if ((rc = tensor_map_bf16(&map_qk, a->qk, a->tokens, wide, wide * 2, BOX_ROWS)) ||
        (rc = tensor_map_bf16(&map_qkv, a->qkv, a->tokens, wider, wider * 2, BOX_ROWS)) ||
        (rc = tensor_map_bf16(&map_dout, dout, a->tokens, narrow, narrow * 2, BOX_ROWS)) ||
        (rc = cudaGetDevice(&device)) ||
        (rc = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) ||
        (rc = cudaFuncSetAttribute(dq, cudaFuncAttributeMaxDynamicSharedMemorySize, dq_bytes)) ||
        (rc = cudaFuncSetAttribute(dkv, cudaFuncAttributeMaxDynamicSharedMemorySize, dkv_bytes)))
        return rc;
    attention_stats_kernel<D>
        <<<dim3(a->tiles, a->heads), 256, 0, stream>>>(*a, out, dout, lse, stats, stat_stride);
    dkv<<<2 * a->tiles * a->kv_heads, THREADS, dkv_bytes, stream>>>(
        map_qk, map_qkv, map_dout, *a, stats, stat_stride, dqkv, scale);
    dq<<<processors, THREADS, dq_bytes, stream>>>(map_qk, map_qkv, map_dout, *a, stats, stat_stride,
                                                  dqkv, scale);
    return cudaGetLastError();
}

extern "C" int sm90_attention_backward(const struct attention *a, const void *out, const float *lse,
                                       const void *dout, float *stats, int stat_stride, void *dqkv,
                                       void *stream)
{
    if (a->tiles == 0)
        return 0;
    if (a->head_dim == 128)
        return backward<128>(a, (const __nv_bfloat16 *)out, lse, (const __nv_bfloat16 *)dout,
                             (float2 *)stats, stat_stride, (__nv_bfloat16 *)dqkv,
                             (cudaStream_t)stream);
    if (a->head_dim == 64)
        return backward<64>(a, (const __nv_bfloat16 *)out, lse, (const __nv_bfloat16 *)dout,
                            (float2 *)stats, stat_stride, (__nv_bfloat16 *)dqkv,
                            (cudaStream_t)stream);
    return cudaErrorInvalidValue;
}
