// SPDX-License-Identifier: Apache-2.0
// Cores shared evenly among those who want to be near the same things.
#ifndef FL_PLACE_CORES_H
#define FL_PLACE_CORES_H

#include <hwloc.h>

// Cores, or processing units where the topology tells no cores, that meet set.
int cores_within(hwloc_topology_t topology, hwloc_const_bitmap_t set);

// cpus[count]: disjoint shares of whole cores within allowed for each of near[count]. Equal wishes
// share evenly, in order; a wish within another's comes first. NULL where there are fewer cores
// than sharers. The caller frees each. Returns 0, or -ENOMEM with nothing to free.
int cores_share(hwloc_topology_t topology, hwloc_const_bitmap_t allowed,
                const hwloc_const_bitmap_t *near, int count, hwloc_bitmap_t *cpus);

#endif
