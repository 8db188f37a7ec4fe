// SPDX-License-Identifier: Apache-2.0
// A backend whose operations only allocate, as much as a real one's do.
#ifndef FL_OPS_DRY_DRY_H
#define FL_OPS_DRY_DRY_H

#include "job/layout.h"
#include "ops/ops.h"

#define DRY_PLACE 64

struct ops_dry_config {
    const struct model *model;
    const struct layout *layout;
    struct arena *arena; // as arena_create_dry makes them
    bool cpu;            // scratch and rows of the CPU backend, else of the GPU's
    enum numerics numerics;
    int threads; // of the CPU backend
    double skew; // of the routing: ops/dry/routing.h
};

// What the operations saw of the arena, and where: "layer 3 backward: fc1_backward".
struct ops_dry_sight {
    uint64_t mapped, peak_total; // bytes, at most
    char peak_where[DRY_PLACE];
    uint64_t largest; // bytes of the largest transient allocation
    enum memory_category largest_category;
    char largest_where[DRY_PLACE];
};

// Keeps references to model, layout and arena. Device memory is never touched; what is read from it
// is zero.
int ops_dry_create(const struct ops_dry_config *config, struct ops **out, struct fl_error *e);
// By whose addresses layers are known.
void ops_dry_weights(struct ops *ops, const struct model_weights *weights);
void ops_dry_sight(struct ops *ops, struct ops_dry_sight *sight);

#endif
