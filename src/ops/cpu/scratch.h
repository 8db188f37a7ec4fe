// SPDX-License-Identifier: Apache-2.0
// How much scratch the reference backend's operations take, without a call of BLAS: the operations
// allocate by these sizes, and a dry run allocates nothing else.
#ifndef FL_OPS_CPU_SCRATCH_H
#define FL_OPS_CPU_SCRATCH_H

#include "ops/ops.h"

#define CPU_TILE_ROWS      256   // of a frozen matrix, dequantised together
#define CPU_LORA_ROWS      256   // whose low-rank products are made together
#define CPU_HEAD_ROWS      1024  // of the head, widened together
#define CPU_ATTENTION_ROWS 128   // query rows whose scores exist together
#define CPU_SUM_CHUNK      65536 // elements summed together

#define CPU_SCRATCHES 3

// What one operation pushes, in this order, until it returns.
struct cpu_scratch {
    int count;
    size_t bytes[CPU_SCRATCHES];
};

// Bytes of a row, stream or quantised.
size_t cpu_row_size(int cols);

// Reals of one dequantised tile of w.
size_t base_tile_size(const struct fp8_matrix *w);
// Reals of the low-rank products of one group (an expert, or 0 for dense modules); x [rows, in].
size_t lora_scratch_size(const struct lora *lora, int in);
// Rows of the widest part; 0 without parts.
int lora_widest_part(const struct lora *lora);
// Reals of one tile of scores: of CPU_ATTENTION_ROWS rows and the longest sample's keys.
size_t attention_tile_size(const int32_t *starts, int samples);
// Reals a thread has in the experts' products: a tile, then the low-rank products'.
size_t expert_worker_size(const struct fp8_matrix *w, const struct lora *lora);

// Each operation's pushes; see there for what they hold.
struct cpu_scratch cpu_linear_forward_scratch(const struct fp8_matrix *w, const struct lora *lora);
struct cpu_scratch cpu_linear_backward_scratch(const struct fp8_matrix *w, const struct lora *lora,
                                               int rows);
struct cpu_scratch cpu_attention_forward_scratch(const int32_t *starts, int samples, int threads);
struct cpu_scratch cpu_attention_backward_scratch(const int32_t *starts, int samples, int threads);
struct cpu_scratch cpu_router_forward_scratch(const struct model *model, int tokens,
                                              int64_t capacity, bool replay);
struct cpu_scratch cpu_router_backward_scratch(const struct model *model, int tokens);
// Of fc1_forward, fc2_forward and fc2_backward.
struct cpu_scratch cpu_expert_scratch(const struct fp8_matrix *w, const struct lora *lora,
                                      int threads);
struct cpu_scratch cpu_fc1_backward_scratch(const struct fp8_matrix *w, const struct lora *lora,
                                            int rows, int threads);
// Of both directions.
struct cpu_scratch cpu_head_scratch(const struct model *model);
struct cpu_scratch cpu_cross_entropy_scratch(int rows);
struct cpu_scratch cpu_sum_squares_scratch(size_t count);

#endif
