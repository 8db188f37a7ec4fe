// SPDX-License-Identifier: Apache-2.0
// A rank's share of the frozen base weights: one copy, FP8 where the checkpoint is FP8.
#ifndef FL_WEIGHTS_MODEL_WEIGHTS_H
#define FL_WEIGHTS_MODEL_WEIGHTS_H

#include "base/error.h"
#include "job/layout.h"
#include "job/model.h"
#include "mem/arena.h"

#include <stdbool.h>
#include <stdint.h>

struct ops;

#define MATRIX_PARTS 3

// count matrices [rows, cols] of e4m3, W = data * scale, row-major, one after another. Rows are
// made of parts (q, k, v or gate, up) whose 128-blocks restart: the scale grid of one matrix has
// scale_rows = sum over parts of ceil(part_rows / 128) rows and scale_cols = ceil(cols / 128)
// columns.
struct fp8_matrix {
    uint8_t *data; // [count, rows, cols]
    float *scale;  // [count, scale_rows, scale_cols]
    int count, rows, cols;
    int parts, part_rows[MATRIX_PARTS];
    int scale_rows, scale_cols;
};

struct layer_weights {
    float *input_norm, *post_norm; // [hidden]
    float *q_norm, *k_norm;        // [head_dim]
    struct fp8_matrix qkv;         // count 1, parts q, k, v: [heads*D + 2*kv_heads*D, hidden]
    struct fp8_matrix proj;        // count 1: [hidden, heads*D]
    float *router;                 // [experts, hidden]
    struct fp8_matrix fc1;         // count experts_local, parts gate, up: [2*width, hidden]
    struct fp8_matrix fc2;         // count experts_local: [hidden, width]
};

struct model_weights {
    uint16_t *embed; // [vocab, hidden] bfloat16
    uint16_t *head;  // [vocab, hidden] bfloat16; the same memory as embed when tied
    float *final_norm;
    struct layer_weights *layers; // [model.layers]
};

// Fills in shapes and allocates everything of one rank in the arena's MEMORY_WEIGHTS, zeroed: one
// allocation for each array above, and none for a tied head.
int model_weights_create(const struct model *model, const struct layout *layout,
                         struct arena *arena, struct model_weights **out, struct fl_error *e);
void model_weights_destroy(struct model_weights *weights); // the arena keeps the buffers; NULL-safe

struct load_stats {
    uint64_t bytes; // of tensor data this rank read or made
    bool made;      // by synth://
    double seconds;
    int quantised; // projections that were not FP8 in the checkpoint
};

// Reads this rank's tensors of the source's checkpoint (job/source.h) straight to their places,
// with so many threads (0: one); those of synth:// are made there. Projections stored in BF16, F16
// or F32 are quantised on the way, a block row at a time: scale = amax / 448 of each 128x128 block.
// Errors name shard, tensor and remedy: missing shard or tensor, truncation, wrong shape or dtype,
// a weight that is not finite, a scale not finite or not positive. A zero scale is taken when all
// of its block is zero. The first failing tensor is reported, whatever the number of threads. stats
// may be NULL. ops: of the device that holds weights; NULL: the host does.
int model_weights_load(struct model_weights *weights, const char *source, const struct model *model,
                       const struct layout *layout, int threads, struct ops *ops,
                       struct load_stats *stats, struct fl_error *e);

#endif
