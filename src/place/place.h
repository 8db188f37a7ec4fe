// SPDX-License-Identifier: Apache-2.0
// Where every rank of a node runs: its GPU, the cores and memory near it, the nearest NIC, and what
// lies between the GPUs of its expert-parallel group.
#ifndef FL_PLACE_PLACE_H
#define FL_PLACE_PLACE_H

#include "base/error.h"
#include "place/device.h"

#include <hwloc.h>
#include <stdbool.h>
#include <stdint.h>

#define PLACE_WARNINGS_MAX 8
#define PLACE_HIDES_PEERS                                                                          \
    "tasks are bound to GPUs of their own, which hides their peers; "                              \
    "use --gpus-per-node without --gpus-per-task or --gpu-bind"

struct place_request {
    int ranks;              // of this node
    const uint32_t *global; // [ranks] each one's number in the step
    int ep;                 // ranks of an expert-parallel group, which follow each other
    const struct device *devices;
    int device_count;
    const int *gpus;              // [ranks] each rank's, from gpu_assign and place_regroup
    bool regrouped;               // place_regroup changed their order
    hwloc_const_bitmap_t allowed; // processing units of the step on this node
    const char *keep;             // why no rank is to be bound; NULL: bind
    bool hides_peers;             // each task sees its own GPUs alone
};

struct place_rank {
    uint32_t global;
    int gpu; // into the request's devices; GPU_NONE, GPU_HIDDEN
    char pci[16], uuid[DEVICE_UUID_MAX];
    int cores;             // 0: stay as you are
    hwloc_bitmap_t cpus;   // processing units of those cores, within allowed; NULL without cores
    hwloc_bitmap_t memory; // the NUMA nodes of those; NULL without cores
    char nic[16];          // the nearest; "": none
    char group[48];        // number of the expert-parallel group and what it lies in; "": of one
    char reason[96];
};

struct placement {
    int ranks;
    struct place_rank *rank; // [ranks]
    int warnings;
    char warning[PLACE_WARNINGS_MAX][192];
};

// The machine's own topology, or the one in an XML file. hwloc_topology_destroy() it.
int place_topology_load(const char *xml, hwloc_topology_t *out, struct fl_error *e);

// Reorders gpus[request->ranks] within the request's GPUs, so that no expert-parallel group crosses
// islands, where their order as given does and another does not. Returns whether it did.
bool place_regroup(hwloc_topology_t topology, const struct place_request *request, int *gpus);

// Pure: the same request gives the same answer in every task. No two ranks of one answer have a
// processing unit in common. Where other tasks' GPUs are hidden, cores are dealt to GPUs instead of
// ranks, so that tasks agree without knowing each other. placement_destroy() it.
int place_decide(hwloc_topology_t topology, const struct place_request *request,
                 struct placement **out, struct fl_error *e);

void placement_destroy(struct placement *placement); // NULL-safe

// A line for each rank below a line of titles, then a line for each warning. The caller frees it;
// NULL: no memory.
char *placement_table(const struct placement *placement);

#endif
