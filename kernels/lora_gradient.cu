// SPDX-License-Identifier: Apache-2.0
// dA = dS^T dropout(X) and dB = dY^T S: contractions over the rows of a group.
//
// A warp takes 64 columns of a chunk of rows; ROW_WARPS of a block share them, each every so many
// 16 rows: few where there are groups enough to fill the GPU, because their sums must meet.
// Fragments pair neighbouring rows, which two registers of 16-byte reads give by byte permutation:
// nothing is transposed through shared memory. Chunks of a group add to the gradient in turn, so
// that the order of the sums, and so their bits, never change.
#include "lora.cuh"

static __device__ __forceinline__ uint32_t low_halves(uint32_t a, uint32_t b)
{
    return __byte_perm(a, b, 0x5410);
}

static __device__ __forceinline__ uint32_t high_halves(uint32_t a, uint32_t b)
{
    return __byte_perm(a, b, 0x7632);
}

static __device__ __forceinline__ uint32_t pair_weigh(uint32_t pair, float weight)
{
    return bf16_pair(bf16_low(pair) * weight, bf16_high(pair) * weight);
}

// NT consecutive elements of a row of s as NT / 2 words.
template <int NT>
static __device__ __forceinline__ void words_load(const uint16_t *from, bool in, uint32_t *to)
{
#pragma unroll
    for (int i = 0; i < NT / 2; i++)
        to[i] = 0;
    if (!in)
        return;
    if (NT == 2) {
        to[0] = __ldg((const uint32_t *)from);
    } else if (NT == 4) {
        uint2 v = __ldg((const uint2 *)from);
        to[0] = v.x;
        to[1] = v.y;
    } else {
        uint4 v = __ldg((const uint4 *)from);
        to[0] = v.x;
        to[1] = v.y;
        to[2] = v.z;
        to[3] = v.w;
    }
}

static __device__ __forceinline__ int turn_read(const int32_t *turn)
{
    int v;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(turn) : "memory");
    return v;
}

static __device__ __forceinline__ void turn_write(int32_t *turn, int v)
{
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(turn), "r"(v) : "memory");
}

struct gradient_output {
    float *d;
    int rank, j_stride, c_stride;
    size_t group;
    float alpha;
    int32_t *turns;
};

template <int NT, int WARPS, int ROW_WARPS, bool QUANTISED, bool DROPOUT>
static __global__ __launch_bounds__(WARPS * 32) void gradient_kernel(
    const lora_rows x, const lora_groups groups, const uint16_t *s, int s_columns, int padded_rank,
    const float *weights, const gradient_output out)
{
    constexpr int column_warps = WARPS / ROW_WARPS, columns = column_warps * LORA_TILE_COLUMNS;
    constexpr int sums = 4 * NT * 4, pitch = LORA_TILE_COLUMNS + 1, out_size = NT * 8 * pitch;
    constexpr int sum_size = ROW_WARPS / 2 * sums * 32;
    __shared__ float shared[column_warps * (sum_size > out_size ? sum_size : out_size)];
    int row_warp = threadIdx.x / 32 % ROW_WARPS, column_warp = threadIdx.x / 32 / ROW_WARPS;
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int first_column = blockIdx.x * columns, first_rank = blockIdx.y * NT * 8;
    int column = first_column + column_warp * LORA_TILE_COLUMNS + g * 8, rank = first_rank + g * NT;
    float acc[4][NT][4] = {}; // [columns 2q and 2q + 1 of eight][columns of s][fragment]
    row_tile tile;

    if (!row_tile_find(groups, LORA_CHUNK_ROWS, blockIdx.z, tile))
        return;
#pragma unroll 2
    for (int row = tile.row + row_warp * 16; row < tile.row_end; row += ROW_WARPS * 16) {
        row_piece<QUANTISED> piece[4];
        uint32_t a[4][4], b[4][NT / 2];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = row + i / 2 * 8 + t * 2 + i % 2;
            piece_load(x, r, column, r < tile.row_end && column < x.columns, piece[i]);
            words_load<NT>(s + (size_t)r * s_columns + rank, r < tile.row_end && rank < padded_rank,
                           b[i]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = row + i / 2 * 8 + t * 2 + i % 2;
            uint4 v = piece_bf16<DROPOUT>(x, tile.group, r, column,
                                          r < tile.row_end && column < x.columns, piece[i]);
            a[i][0] = v.x;
            a[i][1] = v.y;
            a[i][2] = v.z;
            a[i][3] = v.w;
            if (weights && r < tile.row_end) {
                float weight = __ldg(weights + r);
#pragma unroll
                for (int j = 0; j < NT / 2; j++)
                    b[i][j] = pair_weigh(b[i][j], weight);
            }
        }
#pragma unroll
        for (int q = 0; q < 4; q++) {
            uint32_t a0 = low_halves(a[0][q], a[1][q]), a1 = high_halves(a[0][q], a[1][q]);
            uint32_t a2 = low_halves(a[2][q], a[3][q]), a3 = high_halves(a[2][q], a[3][q]);
#pragma unroll
            for (int i = 0; i < NT; i++) {
                uint32_t b0 = i % 2 ? high_halves(b[0][i / 2], b[1][i / 2])
                                    : low_halves(b[0][i / 2], b[1][i / 2]);
                uint32_t b1 = i % 2 ? high_halves(b[2][i / 2], b[3][i / 2])
                                    : low_halves(b[2][i / 2], b[3][i / 2]);
                mma_bf16(acc[q][i], a0, a1, a2, a3, b0, b1);
            }
        }
    }
    float *mine = &acc[0][0][0], *staged = shared + column_warp * sum_size;
#pragma unroll
    for (int half = ROW_WARPS / 2; half > 0; half /= 2) {
        if (row_warp >= half && row_warp < 2 * half)
#pragma unroll
            for (int i = 0; i < sums; i++)
                staged[((row_warp - half) * sums + i) * 32 + lane] = mine[i];
        __syncthreads();
        if (row_warp < half)
#pragma unroll
            for (int i = 0; i < sums; i++)
                mine[i] += staged[(row_warp * sums + i) * 32 + lane];
        __syncthreads();
    }
    // Through shared memory to rows of consecutive elements.
    if (row_warp == 0)
#pragma unroll
        for (int q = 0; q < 4; q++)
#pragma unroll
            for (int i = 0; i < NT; i++)
#pragma unroll
                for (int f = 0; f < 4; f++)
                    shared[column_warp * out_size + ((t * 2 + f % 2) * NT + i) * pitch + g * 8 +
                           q * 2 + f / 2] = acc[q][i][f];
    int32_t *turn =
        out.turns + ((size_t)tile.group * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    if (tile.index > 0 && threadIdx.x == 0)
        while (turn_read(turn) != tile.index)
            ;
    __syncthreads();
    float *d = out.d + tile.group * out.group;
    for (int i = threadIdx.x; i < NT * 8 * columns; i += WARPS * 32) {
        int j = out.c_stride == 1 ? i / columns : i % (NT * 8);
        int c = out.c_stride == 1 ? i % columns : i / (NT * 8);
        if (first_rank + j < out.rank && first_column + c < x.columns) {
            float *at = d + (size_t)(first_rank + j) * out.j_stride +
                        (size_t)(first_column + c) * out.c_stride;
            __stcg(at, __ldcg(at) + out.alpha * shared[c / LORA_TILE_COLUMNS * out_size +
                                                       j * pitch + c % LORA_TILE_COLUMNS]);
        }
    }
    if (tile.index + 1 < tile.count) {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0)
            turn_write(turn, tile.index + 1);
    }
}

static dim3 gradient_grid(const struct lora_rows *x, const struct lora_groups *g, int padded_rank)
{
    return dim3(lora_gradient_column_tiles(g->groups, x->columns, padded_rank),
                lora_gradient_rank_tiles(padded_rank), row_tiles_most(*g, LORA_CHUNK_ROWS));
}

template <int NT, int WARPS, int ROW_WARPS>
static void gradient(const struct lora_rows *x, const struct lora_groups *g, const uint16_t *s,
                     int s_columns, int padded_rank, const float *weights,
                     const gradient_output &out, cudaStream_t stream)
{
    auto kernel =
        x->quantised ? (x->dropout.keep != 0 ? gradient_kernel<NT, WARPS, ROW_WARPS, true, true>
                                             : gradient_kernel<NT, WARPS, ROW_WARPS, true, false>)
                     : (x->dropout.keep != 0 ? gradient_kernel<NT, WARPS, ROW_WARPS, false, true>
                                             : gradient_kernel<NT, WARPS, ROW_WARPS, false, false>);

    kernel<<<gradient_grid(x, g, padded_rank), WARPS * 32, 0, stream>>>(*x, *g, s, s_columns,
                                                                        padded_rank, weights, out);
}

extern "C" int lora_gradient(const struct lora_rows *x, const struct lora_groups *groups,
                             const uint16_t *s, int s_columns, int rank, int padded_rank,
                             const float *weights, float alpha, float *d, int j_stride,
                             int c_stride, size_t d_group, int32_t *turns, void *stream)
{
    cudaStream_t on = (cudaStream_t)stream;
    gradient_output out = {d, rank, j_stride, c_stride, d_group, alpha, turns};
    cudaError_t rc;

    if (padded_rank % 16 || s_columns % 8 || x->columns % 16 || x->row_columns % 8 ||
        x->column % 8 || (x->quantised && x->column))
        return cudaErrorInvalidValue;
    if (groups->rows == 0 || rank == 0)
        return 0;
    rc = cudaMemsetAsync(
        turns, 0, lora_gradient_turns(groups->groups, x->columns, padded_rank) * sizeof *turns, on);
    if (rc != cudaSuccess)
        return rc;
    auto launch = lora_gradient_wide(groups->groups, x->columns)
                      ? (padded_rank <= 16   ? gradient<2, 8, 2>
                         : padded_rank <= 32 ? gradient<4, 8, 2>
                                             : gradient<8, 4, 2>)
                      : (padded_rank <= 16   ? gradient<2, 8, 8>
                         : padded_rank <= 32 ? gradient<4, 8, 8>
                                             : gradient<8, 4, 4>);
    launch(x, groups, s, s_columns, padded_rank, weights, out, on);
    return cudaGetLastError();
}
