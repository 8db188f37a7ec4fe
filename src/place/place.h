// SPDX-License-Identifier: Apache-2.0
// Which cores a rank runs on: the ones near its GPU, shared evenly with the ranks of the same
// place.
#ifndef FL_PLACE_PLACE_H
#define FL_PLACE_PLACE_H

#include "base/error.h"

#include <hwloc.h>

#define PLACE_CORES_MIN 2 // cores for each rank below which ranks are left to the kernel

struct place_request {
    int local_rank, local_ranks;
    const int *gpus;        // [local_ranks] each rank's GPU, counted in PCI order; -1: none
    hwloc_bitmap_t allowed; // processing units this rank may use
};

struct place_decision {
    int cores;           // 0: stay as you are
    hwloc_bitmap_t cpus; // processing units of those cores, within allowed; NULL without cores
    int numa;            // operating system's number of the NUMA node nearest to them; -1: none
    char reason[96];
};

// The machine's own topology, or the one in an XML file. hwloc_topology_destroy() it.
int place_topology_load(const char *xml, hwloc_topology_t *out, struct fl_error *e);

// Pure. The same request with another local_rank gives a disjoint set. Errors: a GPU the topology
// lacks.
int place_decide(hwloc_topology_t topology, const struct place_request *request,
                 struct place_decision *decision, struct fl_error *e);

void place_decision_clear(struct place_decision *decision);

#endif
