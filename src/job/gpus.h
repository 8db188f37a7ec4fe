// SPDX-License-Identifier: Apache-2.0
// GPUs the trainer runs on, and what connects them, for estimates.
#ifndef FL_JOB_GPUS_H
#define FL_JOB_GPUS_H

#include "base/error.h"

#include <stdint.h>

struct gpu {
    const char *name;
    uint64_t memory_bytes;
    double fp8, bf16; // dense peak, FLOP/s
    double memory;    // bytes/s
    double link;      // to the GPUs of the same node, bytes/s in one direction
    double host_link; // to host memory, likewise
};

// The rest of the machine.
struct fabric {
    int node_gpus;
    double network;     // of one GPU to other nodes, bytes/s in one direction
    double host_memory; // of a node, bytes/s
};

#define FABRIC_PRESET ((struct fabric){.node_gpus = 8, .network = 50e9, .host_memory = 300e9})

// -EINVAL with all names for an unknown one.
int gpu_find(const char *name, const struct gpu **out, struct fl_error *e);

#endif
