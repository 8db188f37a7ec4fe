// SPDX-License-Identifier: Apache-2.0
// The skinny products of LoRA, grouped by expert: bf16 operands, fp32 sums.
//
// All pointers are the device's unless marked "host" and begin on 16 bytes; numbers of columns are
// multiples of 16. Row formats: rows.h. Groups are rows [offsets[g], offsets[g + 1]). R, the padded
// rank, is a multiple of 16; what lies between the rank and R is 0. The launchers return 0 or a
// cudaError_t; no rows: nothing is queued.
#ifndef FL_KERNELS_LORA_H
#define FL_KERNELS_LORA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LORA_PARTS      3
#define LORA_CHUNK_ROWS 512 // rows whose share of a gradient is summed at once

// How a gradient [padded_rank, columns] of each group is cut into tiles of LORA_TILE_COLUMNS.
#define LORA_TILE_COLUMNS 64

// Whether groups and columns alone fill the GPU.
static inline int lora_gradient_wide(int groups, int columns)
{
    return (size_t)groups * (size_t)columns / LORA_TILE_COLUMNS >= 1024;
}

static inline int lora_gradient_column_tiles(int groups, int columns, int padded_rank)
{
    int each = LORA_TILE_COLUMNS * (!lora_gradient_wide(groups, columns) ? 1
                                    : padded_rank <= 32                  ? 4
                                                                         : 2);

    return (columns + each - 1) / each;
}

static inline int lora_gradient_rank_tiles(int padded_rank)
{
    int each = padded_rank <= 16 ? 16 : padded_rank <= 32 ? 32 : 64;

    return (padded_rank + each - 1) / each;
}

static inline size_t lora_gradient_turns(int groups, int columns, int padded_rank)
{
    return (size_t)groups * (size_t)lora_gradient_column_tiles(groups, columns, padded_rank) *
           (size_t)lora_gradient_rank_tiles(padded_rank);
}

struct lora_groups {
    const int32_t *offsets; // [groups + 1]
    int groups, rows;       // offsets[groups] <= rows
};

// Dropout of the element (row, column): a number of 16 bits of Philox 4x32-10 under key and the
// counter (keys[row], column / 8, group_first + group) that is below threshold makes it 0,
// otherwise it counts keep times. keep 0: no dropout.
struct lora_dropout {
    uint32_t key[2];
    const uint64_t *keys; // [rows]
    uint32_t threshold, group_first;
    float keep;
};

// Columns [column, column + columns) of rows as the products read them: rounded to bf16 after
// dropout, whose columns count from column.
struct lora_rows {
    const void *x; // stream rows; quantised rows if quantised
    int quantised, row_columns;
    int column, columns; // column: a multiple of 8; 0 in quantised rows
    struct lora_dropout dropout;
};

// One parameter matrix a group to bf16: from [groups, rows, cols] to a block at column of
// to [groups, to_rows, to_cols], zeros where the block [rows_padded, cols_padded] is larger than
// the matrix. transposed: the block is [cols_padded, rows_padded]. The block's columns and their
// place are multiples of 8.
struct lora_pack {
    const float *from;
    int groups, rows, cols, rows_padded, cols_padded, transposed;
    uint16_t *to; // the block's first element in group 0
    int to_cols;
    size_t to_group; // elements between groups
};

int lora_pack(const struct lora_pack *pack, void *stream);

// s[r, j] = bf16(alpha * sum over c of x[r, c] w[g, j, c]), j < R; w [groups, R, columns].
int lora_project(const struct lora_rows *x, const struct lora_groups *groups, const uint16_t *w,
                 int padded_rank, float alpha, uint16_t *s, int s_columns, void *stream);

// d[g, j * j_stride + c * c_stride] += alpha * sum over r of bf16(weights[r] * s[r, j]) x[r, c] for
// j < rank; weights NULL: 1. The chunks of a group are added in their order.
// turns: int32_t [lora_gradient_turns(...)], scratch.
int lora_gradient(const struct lora_rows *x, const struct lora_groups *groups, const uint16_t *s,
                  int s_columns, int rank, int padded_rank, const float *weights, float alpha,
                  float *d, int j_stride, int c_stride, size_t d_group, int32_t *turns,
                  void *stream);

// v[r, c] = base[r - base_row, c] + sum over parts p of dropout_p(sum over j of ds[r, p R + j]
// at[g, c, p R + j]); rounded to the stream rows dx [rows, columns], with act after the factor
// weights[r], and dweights[r] = sum over c of v[r, c] act[r, c].
struct lora_input {
    const float *base;
    int base_row, columns;
    int parts, padded_rank;  // parts 0: no low-rank term
    const uint16_t *ds, *at; // [rows, parts * R], [groups, columns, parts * R]
    struct lora_dropout dropout[LORA_PARTS];
    const uint16_t *act;  // stream rows [rows, columns] or NULL
    const float *weights; // [rows], with act
    float *dweights;      // [rows], with act
    uint16_t *dx;
};

int lora_input(const struct lora_input *input, const struct lora_groups *groups, void *stream);

#ifdef __cplusplus
}
#endif

#endif
