// SPDX-License-Identifier: Apache-2.0
// A rank's memory found by running its training on nothing: the same network, optimizer and arena
// over a backend that only allocates.
#ifndef FL_TRAIN_DRY_RUN_H
#define FL_TRAIN_DRY_RUN_H

#include "job/layout.h"
#include "ops/dry/dry.h"

struct dry_job {
    const struct spec *spec;
    const struct model *model;
    const struct layout *layout;
    bool cpu;    // the CPU backend, else the GPU's
    int threads; // of the CPU backend
    double skew; // of the routing: ROUTING_BALANCED ... ROUTING_WORST of ops/dry/routing.h
};

struct dry_result {
    uint64_t peak[MEMORY_CATEGORIES];    // bytes of each category, each at its own peak
    uint64_t at_peak[MEMORY_CATEGORIES]; // at the peak of all together
    struct ops_dry_sight sight;          // that peak, what is mapped for it, the largest transient
};

// Weights, adapters, optimizer; a micro-batch full of samples of max_length trained on, reduced and
// stepped; and one evaluated if the job has validation data. Reads and computes nothing.
int dry_run(const struct dry_job *job, struct dry_result *result, struct fl_error *e);

#endif
