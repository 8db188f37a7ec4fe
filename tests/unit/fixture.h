// SPDX-License-Identifier: Apache-2.0
// Random checkpoints of any small Qwen3-MoE shape, written to a temporary folder, for tests.
#ifndef FL_TESTS_UNIT_FIXTURE_H
#define FL_TESTS_UNIT_FIXTURE_H

#include "job/layout.h"
#include "job/model.h"
#include "weights/model_weights.h"
#include "weights/tensor.h"

#include <stddef.h>
#include <stdint.h>

struct fixture_tensor {
    struct tensor tensor; // name, type, dims, shape, bytes
    uint8_t *data;
};

struct fixture {
    struct model model;
    struct fixture_tensor *tensors;
    size_t count;
};

// Projections of type weights (F8_E4M3: with weight_scale_inv of type scales), all else of type
// others.
struct fixture *fixture_create(const struct model *model, enum tensor_type weights,
                               enum tensor_type scales, enum tensor_type others, uint32_t seed);
void fixture_destroy(struct fixture *fixture); // NULL-safe

// The tensor; fails the test when there is none.
struct fixture_tensor *fixture_find(const struct fixture *fixture, const char *name);
void fixture_remove(struct fixture *fixture, const char *name);
// Other type and shape (dims <= 2), data zero.
void fixture_reshape(struct fixture *fixture, const char *name, enum tensor_type type, int dims,
                     int64_t rows, int64_t cols);

// The element as a float.
double fixture_value(const struct fixture_tensor *tensor, size_t index);
void fixture_set(struct fixture_tensor *tensor, size_t index, double value);

// Into folder: shards 1: model.safetensors, more: an index and so many shards.
void fixture_write(const struct fixture *fixture, const char *folder, size_t shards);

// A new temporary folder (free()), and its removal with the files in it; frees folder.
char *folder_make(void);
void folder_remove(char *folder);
// Copies every file of one folder to another.
void folder_copy(const char *from, const char *to);

// Hidden and width 192: one whole and one partial block; q, k and v of 96, 48 and 48 rows restart
// their grids inside what would be one block.
extern const struct model odd_model;

// Rank of a world in which only experts are divided.
struct layout fixture_layout(const struct model *model, int ep, int rank);

// A rank's weights, loaded from folder; fixture_unload is needed after a failure too.
struct loaded {
    struct model model;
    struct layout layout;
    struct arena *arena;
    struct model_weights *weights;
    struct load_stats stats;
};
int fixture_load(struct loaded *loaded, const char *folder, const struct model *model, int ep,
                 int rank, int threads, struct fl_error *e);
void fixture_unload(struct loaded *loaded);

#endif
