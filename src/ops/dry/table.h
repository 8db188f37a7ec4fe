// SPDX-License-Identifier: Apache-2.0
// Inside the dry backend: its state, and how an operation tells where it is and what it takes.
#ifndef FL_OPS_DRY_TABLE_H
#define FL_OPS_DRY_TABLE_H

#include "ops/dry/dry.h"

struct dry_place {
    int layer; // -1: none
    bool backward;
    const char *operation;
};

struct dry {
    struct ops table; // first: a struct ops * is a struct dry *
    struct ops_dry_config config;
    const struct model_weights *weights;
    int64_t capacity; // of the layer's router
    struct dry_place here, peak, largest;
    struct arena_stats seen;
};

static inline struct dry *dry_of(struct ops *ops)
{
    return (struct dry *)ops;
}

// An operation begins: what was allocated since the last one is for it. weight: one of its layer's
// arrays, NULL where it has none.
struct arena_mark dry_begin(struct ops *ops, const char *operation, const void *weight);
// Pushes scratch.
int dry_push(struct ops *ops, size_t bytes, struct fl_error *e);
int dry_push_all(struct ops *ops, const size_t *bytes, int count, struct fl_error *e);
// It ends: scratch is released. Returns rc.
int dry_end(struct ops *ops, struct arena_mark mark, int rc);

// What this rank sends to every expert, counts [experts], under the capacity of the last router.
void dry_dispatch(struct ops *ops, int tokens, int64_t *counts);

// Fill in the operations that take scratch, and row_bytes. A new operation of ops.h belongs into
// dry.c if no backend's takes any, else into both, by functions of ops/cpu/scratch.h and
// ops/cuda/scratch.h that the backends allocate by.
void dry_cpu_fill(struct ops *table);
void dry_cuda_fill(struct ops *table);

#endif
