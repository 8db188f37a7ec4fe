// SPDX-License-Identifier: Apache-2.0
// How much scratch the GPU backend's operations take, in bytes and without CUDA: the operations
// allocate by these sizes, and a dry run allocates nothing else.
#ifndef FL_OPS_CUDA_SCRATCH_H
#define FL_OPS_CUDA_SCRATCH_H

#include "ops/ops.h"

#define CUDA_BLAS_BYTES ((size_t)32 << 20) // cuBLASLt's workspace

#define CUDA_SCRATCHES 3

// What one operation pushes, in this order, until it returns.
struct cuda_scratch {
    int count;
    size_t bytes[CUDA_SCRATCHES];
};

// Each operation's pushes; see there for what they hold.
struct cuda_scratch cuda_attention_forward_scratch(const int32_t *starts, int samples);
struct cuda_scratch cuda_attention_backward_scratch(const struct model *model,
                                                    const int32_t *starts, int samples);
struct cuda_scratch cuda_router_forward_scratch(const struct model *model, int tokens);
struct cuda_scratch cuda_router_backward_scratch(const struct model *model, int tokens);
struct cuda_scratch cuda_dispatch_plan_scratch(const struct model *model, int tokens);
struct cuda_scratch cuda_regroup_plan_scratch(int sources, int experts);
struct cuda_scratch cuda_head_forward_scratch(void);
struct cuda_scratch cuda_head_backward_scratch(const struct model *model, int rows);
struct cuda_scratch cuda_cross_entropy_scratch(int rows);
struct cuda_scratch cuda_sum_squares_scratch(void);

// Attention's tiles of a batch, and the rows of its statistics.
int attention_tile_count(const int32_t *starts, int samples);
int attention_stat_stride(const int32_t *starts, int samples);

// The products with frozen matrices push their parts one after another; groups: experts, or 1.
size_t product_offsets_bytes(int groups);
// Elements between two columns of a left operand's scales.
int product_scale_stride(int rows);
// Scales of quantised rows as a left operand.
size_t operand_scales_bytes(int rows, int cols);
// A gradient as a left operand, every part of w padded to whole blocks: columns, codes, scales.
int gradient_operand_columns(const struct fp8_matrix *w);
size_t gradient_codes_bytes(const struct fp8_matrix *w, int rows);
size_t gradient_scales_bytes(const struct fp8_matrix *w, int rows);

// Low-rank terms. The padded rank; 0 without adapters.
int lora_rank(const struct lora *lora);
// One module's parameter as bf16 [groups, rows, cols].
size_t lora_matrix_bytes(int groups, int rows, int cols);
// S or its gradient: bf16 [rows, columns].
size_t lora_rows_bytes(int rows, int columns);
// Columns of S for the product of w: one padded rank, or one for each part of w.
int lora_term_columns(const struct fp8_matrix *w, const struct lora *lora);
size_t lora_turns_bytes(int groups, int columns, int padded_rank);

// dX of a product is made for a range of groups at a time: [first, end) and their rows.
struct product_range {
    int first, end, row, rows;
};
// Whether the product stays fp32 until low-rank terms and weights are in it; act: with weights.
bool product_finishes(const struct lora *lora, bool act);
// What a gradient's product contracts over: the rows of w, every part but the last in whole blocks.
int gradient_columns(const struct fp8_matrix *w);
// The next groups whose transposed weights, and rows where they stay fp32, fit the scratch; none:
// first = groups. *range starts as zeros; counts: rows of each group.
void product_range_next(const struct fp8_matrix *w, int groups, const int64_t *counts,
                        bool finishes, struct product_range *range);
// Transposed weights, their scales, fp32 rows (0 bytes unless finishes) of the widest ranges.
struct cuda_scratch cuda_product_ranges_scratch(const struct fp8_matrix *w, int groups,
                                                const int64_t *counts, bool finishes);

#endif
