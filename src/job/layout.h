// SPDX-License-Identifier: Apache-2.0
// Which rank does what: expert-parallel group, data-parallel rank, local experts, accumulation.
#ifndef FL_JOB_LAYOUT_H
#define FL_JOB_LAYOUT_H

#include "job/model.h"
#include "job/spec.h"

// Ranks of one expert-parallel group are consecutive: rank = group * ep + ep_rank.
struct layout {
    int world, rank;
    int tp, dp, dp_rank; // dp = world / tp
    int ep, ep_rank, ep_group;
    int replicas;                    // of every expert: world / ep
    int experts_local, expert_first; // this rank holds experts [first, first + local)
    int accumulation;                // micro-batches a rank runs in an iteration
};

// Errors: EP must divide the world and the experts; global batch = micro batch * dp * accumulation.
int layout_make(const struct spec *spec, const struct model *model, int world, int rank,
                struct layout *layout, struct fl_error *e);

#endif
