// SPDX-License-Identifier: Apache-2.0
// The training itself: steps, validation, reports, saved adapters.
#ifndef FL_TRAIN_TRAINER_H
#define FL_TRAIN_TRAINER_H

#include "comm/comm.h"
#include "data/loader.h"
#include "job/plan.h"
#include "net/net.h"
#include "train/slot.h"

struct trainer_config {
    const struct spec *spec;
    const struct model *model;
    const struct plan *plan;
    struct arena *arena;
    struct ops *ops;
    struct net *net;
    struct adapters *adapters;
    struct comm *world, *replicas;     // all ranks; those with the same experts
    struct loader *train, *validation; // validation NULL: none
    struct slot *slot;
    // Writes the adapters; called by all ranks together, the result need not be equal on them.
    int (*save)(void *context, struct fl_error *e);
    void *save_context;
};

struct trainer_end {
    int64_t iterations; // done
    int signal;         // that ended the training early, the adapters being saved; else 0
};

// Iterations the job has: train_iters, else epochs.
int64_t trainer_iterations(const struct spec *spec, const struct loader *train);

// The objective of an iteration, whatever the number of ranks and rounds:
//   sum of the cross entropy over the global batch / its targets
//   + aux_loss_coeff * mean over its micro-batches of (sum over layers of aux).
// An iteration whose loss or gradient is not finite is left out and counted; three in a row are an
// error. On an error that not all ranks share, the world is abandoned.
int trainer_run(const struct trainer_config *config, struct trainer_end *end, struct fl_error *e);

#endif
