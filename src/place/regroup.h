// SPDX-License-Identifier: Apache-2.0
// Another order of the same GPUs, where the given one tears expert-parallel groups apart.
#ifndef FL_PLACE_REGROUP_H
#define FL_PLACE_REGROUP_H

#include "place/near.h"

#include <stdbool.h>
#include <stdint.h>

// Reorders gpus[ranks], indices into islands, one GPU a rank, island after island, when a group
// crosses islands as they are and none would then. Returns whether it did; unknown islands and
// GPUs, and shared ones, are left as they are.
bool regroup(const struct island *islands, const uint32_t *global, int ranks, int ep, int *gpus);

#endif
