// SPDX-License-Identifier: Apache-2.0
// Gradients summed over the ranks, clipped by their global norm, applied with AdamW.
#ifndef FL_TRAIN_OPTIMIZER_H
#define FL_TRAIN_OPTIMIZER_H

#include "comm/comm.h"
#include "net/adapters.h"
#include "ops/ops.h"

struct optimizer_config {
    const struct spec *spec;
    struct adapters *adapters;
    struct ops *ops;
    struct arena *arena;
    struct comm *world;    // holds the same replicated adapters
    struct comm *replicas; // holds the same experts
};

struct optimizer;

// Keeps references to everything in config; allocates both moments in the storage types of the
// spec (MEMORY_OPTIMIZER). The parameters are their own fp32 main parameters.
int optimizer_create(const struct optimizer_config *config, struct optimizer **out,
                     struct fl_error *e);
void optimizer_destroy(struct optimizer *optimizer); // NULL-safe

// Sets the gradients to zero.
int optimizer_clear(struct optimizer *optimizer, struct fl_error *e);

// Sums replicated gradients over all ranks and those of an expert over its replicas. *norm: of the
// whole model's gradient, each adapter counted once; the same bits on every rank.
int optimizer_reduce(struct optimizer *optimizer, double *norm, struct fl_error *e);

// One AdamW step with the gradients times min(1, clip_grad / norm).
int optimizer_step(struct optimizer *optimizer, double lr, double norm, struct fl_error *e);

#endif
