// SPDX-License-Identifier: Apache-2.0
// S = dropout(X) A^T and dS = dY B: a read of the rows at memory speed against a few columns.
//
// No operand passes through shared memory: a contraction may take its elements in any order, so
// each thread's share of an mma fragment is 16 consecutive bytes of a row.
#include "lora.cuh"

#define THREADS   256
#define WARPS     (THREADS / 32)
#define FEW_TILES 256

static __global__ void pack_kernel(const __grid_constant__ struct lora_pack p)
{
    int columns = p.transposed ? p.rows_padded : p.cols_padded;
    int rows = p.transposed ? p.cols_padded : p.rows_padded;
    int pieces = columns / 8, each = pieces * rows, group = blockIdx.y;
    int i = blockIdx.x * THREADS + threadIdx.x;
    const float *from = p.from + (size_t)group * p.rows * p.cols;
    float v[8];

    if (i >= each)
        return;
    // Neighbouring threads read neighbouring elements.
    int row = p.transposed ? i % rows : i / pieces;
    int column = (p.transposed ? i / rows : i % pieces) * 8;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        int r = p.transposed ? column + j : row, c = p.transposed ? row : column + j;
        v[j] = r < p.rows && c < p.cols ? __ldg(from + (size_t)r * p.cols + c) : 0;
    }
    *(uint4 *)(p.to + group * p.to_group + (size_t)row * p.to_cols + column) = bf16_pack(v);
}

extern "C" int lora_pack(const struct lora_pack *p, void *stream)
{
    int columns = p->transposed ? p->rows_padded : p->cols_padded;
    int pieces = (p->transposed ? p->cols_padded : p->rows_padded) * (columns / 8);

    if (columns % 8 || p->to_cols % 8)
        return cudaErrorInvalidValue;
    if (p->groups == 0 || pieces == 0)
        return 0;
    pack_kernel<<<dim3((pieces + THREADS - 1) / THREADS, p->groups), THREADS, 0,
                  (cudaStream_t)stream>>>(*p);
    return cudaGetLastError();
}

// A block: 32 * ROW_WARPS rows by 8 * NT columns; its other warps take other parts of the
// contraction, which are added in their order.
template <int NT, int ROW_WARPS, bool QUANTISED, bool DROPOUT>
static __global__
__launch_bounds__(THREADS) void project_kernel(const lora_rows x, const lora_groups groups,
                                               const uint16_t *w, int padded_rank, float alpha,
                                               uint16_t *s, int s_columns)
{
    constexpr int k_warps = WARPS / ROW_WARPS, sums = 2 * NT * 4;
    __shared__ float staged[k_warps / 2][ROW_WARPS][sums][32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int row_warp = warp % ROW_WARPS, k_warp = warp / ROW_WARPS, first = blockIdx.x * NT * 8;
    float acc[2][NT][4] = {};
    const uint16_t *w_rows[NT];
    row_tile tile;

    if (!row_tile_find(groups, 32 * ROW_WARPS, blockIdx.y, tile))
        return;
#pragma unroll
    for (int i = 0; i < NT; i++)
        w_rows[i] =
            w + ((size_t)tile.group * padded_rank + min(first + i * 8 + g, padded_rank - 1)) *
                    x.columns;
    int row = tile.row + row_warp * 32 + g;
#pragma unroll 2
    for (int k = k_warp * 32; k < x.columns; k += k_warps * 32) {
        int column = k + t * 8;
        bool in = column < x.columns;
        row_piece<QUANTISED> piece[4];
        uint4 a[4], b[NT];
#pragma unroll
        for (int i = 0; i < 4; i++)
            piece_load(x, row + i * 8, column, in && row + i * 8 < tile.row_end, piece[i]);
#pragma unroll
        for (int i = 0; i < NT; i++)
            b[i] = in ? __ldg((const uint4 *)(w_rows[i] + column)) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = piece_bf16<DROPOUT>(x, tile.group, row + i * 8, column,
                                       in && row + i * 8 < tile.row_end, piece[i]);
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int i = 0; i < NT; i++) {
                mma_bf16(acc[m][i], a[m * 2].x, a[m * 2 + 1].x, a[m * 2].y, a[m * 2 + 1].y, b[i].x,
                         b[i].y);
                mma_bf16(acc[m][i], a[m * 2].z, a[m * 2 + 1].z, a[m * 2].w, a[m * 2 + 1].w, b[i].z,
                         b[i].w);
            }
    }
    float *mine = &acc[0][0][0];
#pragma unroll
    for (int half = k_warps / 2; half > 0; half /= 2) {
        if (k_warp >= half && k_warp < 2 * half)
#pragma unroll
            for (int i = 0; i < sums; i++)
                staged[k_warp - half][row_warp][i][lane] = mine[i];
        __syncthreads();
        if (k_warp < half)
#pragma unroll
            for (int i = 0; i < sums; i++)
                mine[i] += staged[k_warp][row_warp][i][lane];
        __syncthreads();
    }
    if (k_warp > 0)
        return;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int r = row + m * 16 + half * 8, column = first + i * 8 + t * 2;
                if (r < tile.row_end && column < padded_rank)
                    *(uint32_t *)(s + (size_t)r * s_columns + column) =
                        bf16_pair(alpha * acc[m][i][half * 2], alpha * acc[m][i][half * 2 + 1]);
            }
}

template <int NT, int ROW_WARPS>
static void project(const struct lora_rows *x, const struct lora_groups *g, const uint16_t *w,
                    int padded_rank, float alpha, uint16_t *s, int s_columns, cudaStream_t stream)
{
    dim3 grid((padded_rank + NT * 8 - 1) / (NT * 8), row_tiles_most(*g, 32 * ROW_WARPS));
    auto kernel = x->quantised
                      ? (x->dropout.keep != 0 ? project_kernel<NT, ROW_WARPS, true, true>
                                              : project_kernel<NT, ROW_WARPS, true, false>)
                      : (x->dropout.keep != 0 ? project_kernel<NT, ROW_WARPS, false, true>
                                              : project_kernel<NT, ROW_WARPS, false, false>);

    kernel<<<grid, THREADS, 0, stream>>>(*x, *g, w, padded_rank, alpha, s, s_columns);
}

extern "C" int lora_project(const struct lora_rows *x, const struct lora_groups *groups,
                            const uint16_t *w, int padded_rank, float alpha, uint16_t *s,
                            int s_columns, void *stream)
{
    cudaStream_t on = (cudaStream_t)stream;

    if (padded_rank % 16 || x->columns % 16 || x->row_columns % 8 || x->column % 8 ||
        (x->quantised && x->column))
        return cudaErrorInvalidValue;
    if (groups->rows == 0 || padded_rank == 0)
        return 0;
    // Where more columns are wanted, more rows share each read of w; few rows are cut finer, so
    // that every processor has some.
    if (padded_rank <= 16 && row_tiles_most(*groups, 64) < FEW_TILES)
        project<2, 1>(x, groups, w, padded_rank, alpha, s, s_columns, on);
    else if (padded_rank <= 16)
        project<2, 2>(x, groups, w, padded_rank, alpha, s, s_columns, on);
    else if (padded_rank <= 32)
        project<4, 2>(x, groups, w, padded_rank, alpha, s, s_columns, on);
    else
        project<8, 4>(x, groups, w, padded_rank, alpha, s, s_columns, on);
    return cudaGetLastError();
}
