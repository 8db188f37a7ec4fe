// SPDX-License-Identifier: Apache-2.0
// Grouped FP8 matrix product for Hopper: a persistent kernel, one producer warp feeding two math
// warpgroups through a ring of shared-memory stages.
//
// A block computes 128 * WAVES rows by 128 columns. Two blocks of a cluster take neighbouring
// column tiles of the same rows and share the rows by multicast, because at full rate the tiles'
// traffic would exceed what the L2 cache delivers. The tensor core sums fp8 products with about 14
// bits, so each 128 of k goes to fresh accumulators and is added, scaled, to fp32 ones; while one
// warpgroup does that, the other's products keep the tensor core busy. Whole tiles leave through
// the copy engine, which works beside the next tile's products; the tiles at a group's ragged end
// are stored by the threads, because a box knows no end but the matrix's. Rows are found through
// device-side offsets: no count ever travels to the host.
#include "fp8_gemm.h"
#include "sm90_ptx.cuh"
#include "sm90_tensor_map.cuh"

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stddef.h>

#define TILE_N      128
#define TILE_K      128 // bytes of a swizzled row, and the block of a scale
#define MATH_GROUPS 2
#define THREADS     (128 * (1 + MATH_GROUPS))
#define GROUPS_MOST 256
#define TILE_RANK   64  // bf16 columns of a swizzled row
#define CHUNK_BYTES 128 // of a row in a box on the way out
#define CHUNK       (16 * CHUNK_BYTES)
#define CHUNKS      2 // that a warp stages at once

struct gemm_arguments {
    const float *a_scale, *b_scale;
    const int32_t *offsets;
    void *d;
    int a_scale_stride;
    int n, k, groups;
    int n_tiles; // of all parts
    int parts, part_rows[FP8_GEMM_PARTS];
    int lora_rank, s_part_stride;
    float lora_scale;
    bool boxes; // d can be written by the copy engine
};

template <int WAVES, int STAGES> struct shared_memory {
    static constexpr int tile_m = 128 * WAVES;
    alignas(1024) uint8_t a[STAGES][tile_m * TILE_K];
    alignas(1024) uint8_t b[STAGES][TILE_N * TILE_K];
    alignas(1024) uint8_t out[4 * MATH_GROUPS][CHUNKS * CHUNK];
    alignas(128) float a_scale[STAGES][tile_m + 4]; // from the row's place rounded down to 16 bytes
    uint64_t full[STAGES], empty[STAGES];
    int32_t offsets[GROUPS_MOST + 1];
    int32_t first_tile[GROUPS_MOST + 1]; // row tiles before each group
};

struct place {
    int row, row_end;    // rows of a and d
    int column, columns; // rows of b within the group, columns of d
};

struct tile : place {
    int group;
    int part, scale_row; // part of n; row of b_scale within the group
};

// The tile of a unit of work: row tiles vary fastest within a group, so that the blocks at work at
// one time share weights and rows in L2.
template <int CLUSTER, class Shared>
static __device__ __forceinline__ bool tile_find(const Shared &s, const gemm_arguments &g, int unit,
                                                 int rank, tile &t)
{
    int columns = g.n_tiles / CLUSTER;
    int low = 0, high = g.groups, m_tile, n_tile, start = 0;

    if (unit >= s.first_tile[g.groups] * columns)
        return false;
    // Units of a group are consecutive: find it by its first row tile.
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (s.first_tile[middle] * columns <= unit)
            low = middle;
        else
            high = middle;
    }
    unit -= s.first_tile[low] * columns;
    int m_tiles = s.first_tile[low + 1] - s.first_tile[low];
    n_tile = unit / m_tiles;
    m_tile = unit % m_tiles;
    t.group = low;
    t.row = s.offsets[low] + m_tile * Shared::tile_m;
    t.row_end = s.offsets[low + 1];
    n_tile = n_tile * CLUSTER + rank;
    t.scale_row = n_tile;
    for (int p = 0; p < g.parts; p++) {
        int tiles = (g.part_rows[p] + TILE_N - 1) / TILE_N;
        if (n_tile < tiles) {
            t.part = p;
            t.column = start + n_tile * TILE_N;
            t.columns = min(TILE_N, g.part_rows[p] - n_tile * TILE_N);
            break;
        }
        n_tile -= tiles;
        start += g.part_rows[p];
    }
    return true;
}

// A warp's accumulators of 16 rows by 128 columns into its staging rows of 128 bytes, whose 16-byte
// pieces are permuted by the row against bank conflicts.
static __device__ __forceinline__ void chunk_stage(const float (&d)[64], int chunk,
                                                   uint32_t staging, __nv_bfloat16)
{
    int lane = threadIdx.x % 32, r = lane % 16;

#pragma unroll
    for (int j = 0; j < 4; j++) { // 16 columns each
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *from = &d[(chunk * 8 + j * 2 + i / 2) * 4 + i % 2 * 2];
            __nv_bfloat162 pair = __floats2bfloat162_rn(from[0], from[1]);
            v[i] = *(uint32_t *)&pair;
        }
        stmatrix_x4(staging + r * CHUNK_BYTES + ((j * 2 + lane / 16) ^ r % 8) * 16, v[0], v[1],
                    v[2], v[3]);
    }
}

static __device__ __forceinline__ void chunk_stage(const float (&d)[64], int chunk,
                                                   uint32_t staging, float)
{
    int lane = threadIdx.x % 32;

#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float *from = &d[(chunk * 4 + j) * 4 + half * 2];
            int r = lane / 4 + 8 * half, piece = (j * 2 + lane % 4 / 2) ^ r % 8;
            shared_store_8(staging + r * CHUNK_BYTES + piece * 16 + lane % 2 * 8, from[0], from[1]);
        }
}

// A warp's 16 rows by 128 columns: through shared memory to 16-byte stores of whole row pieces.
// out is the first row and column; rows and columns beyond the given ones are not written.
template <typename Out>
static __device__ __forceinline__ void rows_store(const float (&d)[64], uint32_t staging, Out *out,
                                                  int n, int rows, int columns, bool aligned)
{
    constexpr int chunk_n = CHUNK_BYTES / sizeof(Out), per_lane = 16 / sizeof(Out);
    int lane = threadIdx.x % 32;

    if (rows <= 0)
        return;
    bulk_wait_read<0>();
    out += (size_t)(lane / 8) * n + lane % 8 * per_lane;
    staging += lane / 8 * CHUNK_BYTES;
#pragma unroll
    for (int chunk = 0; chunk < TILE_N / chunk_n; chunk++) {
        __syncwarp();
        chunk_stage(d, chunk, staging - lane / 8 * CHUNK_BYTES, Out());
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; i++) { // rows 4 * i + lane / 8
            int c = chunk * chunk_n + lane % 8 * per_lane;
            int piece = (lane % 8) ^ (i * 4 + lane / 8) % 8;
            uint4 values = shared_load_16(staging + i * 4 * CHUNK_BYTES + piece * 16);
            Out *to = out + (size_t)(i * 4) * n + chunk * chunk_n;
            if (aligned && i * 4 + lane / 8 < rows && c + per_lane <= columns)
                *(uint4 *)to = values;
            else if (i * 4 + lane / 8 < rows)
                for (int x = 0; x < per_lane && c + x < columns; x++)
                    to[x] = ((const Out *)&values)[x];
        }
    }
}

// The same by the copy engine, all of the rows and columns, from (row, column) on.
template <typename Out>
static __device__ __forceinline__ void boxes_store(const float (&d)[64], uint32_t staging,
                                                   const CUtensorMap *map, int row, int column)
{
    constexpr int chunk_n = CHUNK_BYTES / sizeof(Out);

#pragma unroll
    for (int first = 0; first < TILE_N / chunk_n; first += CHUNKS) {
        bulk_wait_read<0>(); // only the lane that stored has something to wait for
        __syncwarp();
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
            chunk_stage(d, first + i, staging + i * CHUNK, Out());
        async_proxy_fence();
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
#pragma unroll
            for (int i = 0; i < CHUNKS; i++)
                tensor_store(map, column + (first + i) * chunk_n, row, staging + i * CHUNK);
            bulk_commit();
        }
    }
}

// Whether the copy engine may store a warp's rows from t's first one on.
static __device__ __forceinline__ bool is_box(const gemm_arguments &g, const place &t, int first)
{
    return g.boxes && t.row_end - t.row - first >= 16 && t.columns == TILE_N;
}

// The scale of the tile's block of b in block kb + lane of k; 0 behind the last one.
static __device__ __forceinline__ float scales_read(const gemm_arguments &g, const tile &t, int kb,
                                                    int k_blocks)
{
    int lane = threadIdx.x % 32;
    size_t row = (size_t)t.group * g.n_tiles + t.scale_row;

    return kb + lane < k_blocks ? __ldg(g.b_scale + row * k_blocks + kb + lane) : 0;
}

// Queues sum = one stage's product of 64 rows by 128 columns.
static __device__ __forceinline__ void block_product_fp8(float (&sum)[64], uint32_t a, uint32_t b)
{
#pragma unroll
    for (int i = 0; i < 64; i++)
        accumulator_fence(sum[i]);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < TILE_K / 32; k++)
        wgmma_m64n128k32_e4m3(sum, a + k * 2, b + k * 2, k > 0);
    wgmma_commit();
}

// The same of low-rank columns, as many as there are.
static __device__ __forceinline__ void block_product_bf16(float (&sum)[64], uint32_t a, uint32_t b,
                                                          int columns)
{
#pragma unroll
    for (int i = 0; i < 64; i++)
        accumulator_fence(sum[i]);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < TILE_RANK / 16; k++)
        if (k * 16 < columns)
            wgmma_m64n128k16_bf16(sum, a + k * 2, b + k * 2, k > 0);
    wgmma_commit();
}

static __device__ __forceinline__ void block_product_wait(float (&sum)[64])
{
#pragma unroll
    for (int i = 0; i < 64; i++)
        accumulator_fence(sum[i]);
    wgmma_wait<0>();
}

// Descriptors of a stage's operands: a warpgroup's rows of the first wave, and the columns.
struct operands {
    uint32_t a, b;
};

template <int WAVES, int STAGES, int CLUSTER, bool LOW_RANK, typename Out>
__global__ __launch_bounds__(THREADS, 1) void sm90_fp8_gemm_kernel(
    const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
    const __grid_constant__ CUtensorMap map_s, const __grid_constant__ CUtensorMap map_lora,
    const __grid_constant__ CUtensorMap map_d, const __grid_constant__ gemm_arguments g)
{
    typedef shared_memory<WAVES, STAGES> Shared;
    extern __shared__ __align__(1024) uint8_t raw[];
    Shared &s = *(Shared *)raw;
    uint32_t base = smem_address(raw); // offsets of members are compile-time constants
    uint32_t full = base + offsetof(Shared, full), empty = base + offsetof(Shared, empty);
    int rank = CLUSTER > 1 ? (int)cluster_rank() : 0;
    int k_blocks = (g.k + TILE_K - 1) / TILE_K;
    int blocks = k_blocks + (LOW_RANK ? (g.lora_rank + TILE_RANK - 1) / TILE_RANK : 0);
    int clusters = gridDim.x / CLUSTER, first_unit = blockIdx.x / CLUSTER;
    int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0), warpgroup = warp / 4,
        lane = threadIdx.x % 32;

    if (base % 1024) // swizzling would go wrong
        __trap();
    if (warp == 0) {
        // Row tiles before each group: a scan over all groups, 32 at a time.
        int before = 0;
        for (int base = 0; base < g.groups; base += 32) {
            int i = base + lane;
            int from = i < g.groups ? g.offsets[i] : 0, to = i < g.groups ? g.offsets[i + 1] : 0;
            int tiles = (to - from + Shared::tile_m - 1) / Shared::tile_m, sum = tiles;
            for (int shift = 1; shift < 32; shift *= 2) {
                int other = __shfl_up_sync(0xffffffff, sum, shift);
                if (lane >= shift)
                    sum += other;
            }
            if (i < g.groups) {
                s.offsets[i] = from;
                s.first_tile[i] = before + sum - tiles;
                if (i == g.groups - 1) {
                    s.offsets[g.groups] = to;
                    s.first_tile[g.groups] = before + sum;
                }
            }
            before += __shfl_sync(0xffffffff, sum, 31);
        }
    }
    if (threadIdx.x == 32) {
        tensor_map_prefetch(&map_a);
        tensor_map_prefetch(&map_b);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(full + i * 8, 1);
            mbarrier_init(empty + i * 8, CLUSTER * 4 * MATH_GROUPS * WARP_ARRIVALS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    if (CLUSTER > 1)
        cluster_sync();

    if (warpgroup == 0) {
        registers_give<40>();
        if (warp == 0 && elect_one()) {
            constexpr int bytes = Shared::tile_m * TILE_K + TILE_N * TILE_K;
            constexpr int share =
                Shared::tile_m / CLUSTER; // rows each block of the cluster fetches
            int stage = 0, phase = 1;
            tile t;
            for (int unit = first_unit; tile_find<CLUSTER>(s, g, unit, rank, t); unit += clusters) {
                // The tensor copy engine wants rows of a at any place, but plain copies aligned.
                int first = t.row & ~3;
                const float *a_scale = g.a_scale + first;
                uint32_t scale_bytes = min(Shared::tile_m + 4, g.a_scale_stride - first) * 4;
                for (int kb = 0; kb < blocks; kb++) {
                    uint32_t bar = full + stage * 8;
                    uint32_t a =
                        base + offsetof(Shared, a) + stage * sizeof s.a[0] + rank * share * TILE_K;
                    uint32_t b = base + offsetof(Shared, b) + stage * sizeof s.b[0];
                    bool low_rank =
                        LOW_RANK && kb >= k_blocks; // the same stage holds 64 columns of bf16
                    int column = low_rank ? (kb - k_blocks) * TILE_RANK : kb * TILE_K;
                    int a_column = low_rank ? t.part * g.s_part_stride + column : column;
                    const CUtensorMap *from_a = low_rank ? &map_s : &map_a;
                    mbarrier_wait(empty + stage * 8, phase);
                    mbarrier_arrive_expect(bar, low_rank ? bytes : bytes + scale_bytes);
                    tensor_load(b, low_rank ? &map_lora : &map_b, column, t.group * g.n + t.column,
                                bar);
                    if (CLUSTER > 1)
                        tensor_load_multicast(a, from_a, a_column, t.row + rank * share, bar,
                                              (1 << CLUSTER) - 1);
                    else
                        tensor_load(a, from_a, a_column, t.row, bar);
                    if (!low_rank)
                        bulk_load(base + offsetof(Shared, a_scale) + stage * sizeof s.a_scale[0],
                                  a_scale + (size_t)kb * g.a_scale_stride, scale_bytes, bar);
                    if (++stage == STAGES) {
                        stage = 0;
                        phase ^= 1;
                    }
                }
            }
            // Nobody leaves while the other block may still write here or signal.
            if (CLUSTER > 1)
                for (int i = 0; i < STAGES; i++) {
                    mbarrier_wait(empty + stage * 8, phase);
                    if (++stage == STAGES) {
                        stage = 0;
                        phase ^= 1;
                    }
                }
        }
    } else {
        registers_take<232>();
        int math = warpgroup - 1, quarter = warp % 4, unit = first_unit, stage = 0, phase = 0;
        int warp_row = math * 64 + quarter * 16; // of a wave
        uint32_t a_first = base + offsetof(Shared, a) + math * 64 * TILE_K;
        uint32_t a_scales = base + offsetof(Shared, a_scale) + (warp_row + lane / 4) * 4;
        uint32_t staging = base + offsetof(Shared, out) + (warp - 4) * sizeof s.out[0];
        tile t;
        bool more = tile_find<CLUSTER>(s, g, unit, rank, t);
        // Lane i holds the scale of k block 32 * j + i; the first 32 are read a tile ahead.
        float next_scales = more ? scales_read(g, t, 0, k_blocks) : 0, b_scales = 0;
        // The ring's next stage, once it is filled.
        auto stage_open = [&]() {
            operands o = {
                wgmma_descriptor(a_first + stage * (uint32_t)sizeof s.a[0]),
                wgmma_descriptor(base + offsetof(Shared, b) + stage * (uint32_t)sizeof s.b[0])};
            mbarrier_wait(full + stage * 8, phase);
            return o;
        };
        while (more) {
            float total[WAVES][64];
            bool second = WAVES > 1 && t.row_end - t.row > 128; // are there rows for another wave?
#pragma unroll
            for (int w = 0; w < WAVES; w++)
#pragma unroll
                for (int i = 0; i < 64; i++)
                    total[w][i] = 0;
            operands now = stage_open(), next = now;
            for (int kb = 0; kb < blocks; kb++) {
                uint32_t done_stage = empty + stage * 8;
                uint32_t a_scale =
                    a_scales + (t.row & 3) * 4 + stage * (uint32_t)sizeof s.a_scale[0];
                bool low_rank = LOW_RANK && kb >= k_blocks;
                if (++stage == STAGES) {
                    stage = 0;
                    phase ^= 1;
                }
                if (kb % 32 == 0) {
                    b_scales = next_scales;
                    next_scales = scales_read(g, t, kb + 32, k_blocks);
                }
#pragma unroll
                for (int w = 0; w < WAVES; w++) {
                    if (w == 0 || second) {
                        uint32_t a_wave = now.a + w * (128 * TILE_K / 16);
                        bool last = w == WAVES - 1 || !second;
                        float sum[64], scale_0 = g.lora_scale, scale_1 = g.lora_scale;
                        if (!low_rank)
                            block_product_fp8(sum, a_wave, now.b);
                        else
                            block_product_bf16(sum, a_wave, now.b,
                                               g.lora_rank - (kb - k_blocks) * TILE_RANK);
                        // While the tensor core works, all else is made ready.
                        if (!low_rank) {
                            float scale_b = __shfl_sync(0xffffffff, b_scales, kb % 32);
                            scale_0 = shared_load(a_scale + w * 512) * scale_b;
                            scale_1 = shared_load(a_scale + w * 512 + 32) * scale_b;
                        }
                        if (last && kb + 1 < blocks)
                            next = stage_open();
                        block_product_wait(sum);
                        if (last)
                            warp_arrive<CLUSTER>(done_stage);
#pragma unroll
                        for (int i = 0; i < 16; i++) {
                            total[w][i * 4] += scale_0 * sum[i * 4];
                            total[w][i * 4 + 1] += scale_0 * sum[i * 4 + 1];
                            total[w][i * 4 + 2] += scale_1 * sum[i * 4 + 2];
                            total[w][i * 4 + 3] += scale_1 * sum[i * 4 + 3];
                        }
                    }
                    // A finished wave leaves while the next one is computed.
                    if (w < WAVES - 1 && kb == blocks - 1 && is_box(g, t, w * 128 + warp_row))
                        boxes_store<Out>(total[w], staging, &map_d, t.row + w * 128 + warp_row,
                                         t.column);
                }
                now = next;
            }
            const place done = t;
            more = tile_find<CLUSTER>(s, g, unit += clusters, rank, t);
            next_scales = more ? scales_read(g, t, 0, k_blocks) : 0;
#pragma unroll
            for (int w = 0; w < WAVES; w++) {
                constexpr int per_lane = 16 / sizeof(Out);
                int row = done.row + w * 128 + warp_row;
                if (!is_box(g, done, w * 128 + warp_row))
                    rows_store(total[w], staging, (Out *)g.d + (size_t)row * g.n + done.column, g.n,
                               done.row_end - row, done.columns,
                               g.n % per_lane == 0 && done.column % per_lane == 0);
                else if (w == WAVES - 1)
                    boxes_store<Out>(total[w], staging, &map_d, row, done.column);
            }
        }
        bulk_wait_read<0>(); // shared memory stays until the copy engine has read it
    }
    if (CLUSTER > 1)
        cluster_sync();
}

template <int WAVES, int STAGES, int CLUSTER, bool LOW_RANK, typename Out>
static int launch(const struct fp8_gemm *x, const gemm_arguments &g, cudaStream_t stream)
{
    typedef shared_memory<WAVES, STAGES> Shared;
    auto kernel = sm90_fp8_gemm_kernel<WAVES, STAGES, CLUSTER, LOW_RANK, Out>;
    constexpr int bytes = sizeof(Shared);
    CUtensorMap a, b, low_rank_a, low_rank_b, d;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute[1];
    int device, processors, rc;

    static_assert(bytes <= 232448, "shared memory of a block");
    if ((rc = tensor_map_bytes(&a, x->a, x->rows, x->k, x->a_pitch, Shared::tile_m / CLUSTER)) ||
        (rc = tensor_map_bytes(&b, x->b, (uint64_t)x->groups * x->n, x->k, x->k, TILE_N)))
        return rc;
    low_rank_a = a; // valid, never read without a low-rank term
    low_rank_b = b;
    if (x->lora_rank &&
        ((rc = tensor_map_bf16(&low_rank_a, x->lora_s, x->rows, x->s_columns,
                               (uint64_t)x->s_columns * 2, Shared::tile_m / CLUSTER)) ||
         (rc = tensor_map_bf16(&low_rank_b, x->lora_b, (uint64_t)x->groups * x->n, x->lora_rank,
                               (uint64_t)x->lora_rank * 2, TILE_N))))
        return rc;
    d = a; // likewise without boxes
    if (g.boxes &&
        (rc = tensor_map_encode(
             &d,
             sizeof(Out) == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
             sizeof(Out), x->d, x->rows, x->n, (uint64_t)x->n * sizeof(Out), 16)))
        return rc;
    if ((rc = cudaGetDevice(&device)) ||
        (rc = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) ||
        (rc = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)))
        return rc;
    attribute[0].id = cudaLaunchAttributeClusterDimension;
    attribute[0].val.clusterDim.x = CLUSTER;
    attribute[0].val.clusterDim.y = attribute[0].val.clusterDim.z = 1;
    config.gridDim = dim3(processors / CLUSTER * CLUSTER);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, a, b, low_rank_a, low_rank_b, d, g);
}

template <bool LOW_RANK, typename Out>
static int dispatch(const struct fp8_gemm *x, const gemm_arguments &g, cudaStream_t stream)
{
    bool pairs = g.n_tiles % 2 == 0;

    // The two blocks of a cluster share rows of s too: they must be of one part.
    for (int p = 0; p < g.parts && LOW_RANK && g.s_part_stride; p++)
        pairs = pairs && (g.part_rows[p] + TILE_N - 1) / TILE_N % 2 == 0;
    // Tall tiles where groups are tall enough that their last tile's waste is small.
    bool tall = x->rows / x->groups >= 1024;

    if (tall)
        return pairs ? launch<2, 3, 2, LOW_RANK, Out>(x, g, stream)
                     : launch<2, 3, 1, LOW_RANK, Out>(x, g, stream);
    return pairs ? launch<1, 5, 2, LOW_RANK, Out>(x, g, stream)
                 : launch<1, 5, 1, LOW_RANK, Out>(x, g, stream);
}

extern "C" int sm90_fp8_gemm(const struct fp8_gemm *x, void *stream)
{
    gemm_arguments g = {};

    if (x->groups < 1 || x->groups > GROUPS_MOST || x->k % 16 || x->a_scale_stride % 4 ||
        x->parts < 1 || x->parts > FP8_GEMM_PARTS || x->a_pitch % 16 || x->lora_rank % 16 ||
        x->s_columns % 16 || x->s_part_stride % 16)
        return cudaErrorInvalidValue;
    if (x->rows == 0)
        return 0;
    g.a_scale = x->a_scale;
    g.b_scale = x->b_scale;
    g.offsets = x->offsets;
    g.d = x->d;
    g.a_scale_stride = x->a_scale_stride;
    g.n = x->n;
    g.k = x->k;
    g.groups = x->groups;
    g.parts = x->parts;
    g.lora_rank = x->lora_rank;
    g.s_part_stride = x->s_part_stride;
    g.lora_scale = x->lora_scale;
    g.boxes = x->n % (x->d_is_float ? 4 : 8) == 0;
    for (int p = 0; p < x->parts; p++) {
        g.part_rows[p] = x->part_rows[p];
        g.n_tiles += (x->part_rows[p] + TILE_N - 1) / TILE_N;
    }
    if (x->d_is_float)
        return x->lora_rank ? dispatch<true, float>(x, g, (cudaStream_t)stream)
                            : dispatch<false, float>(x, g, (cudaStream_t)stream);
    return x->lora_rank ? dispatch<true, __nv_bfloat16>(x, g, (cudaStream_t)stream)
                        : dispatch<false, __nv_bfloat16>(x, g, (cudaStream_t)stream);
}
