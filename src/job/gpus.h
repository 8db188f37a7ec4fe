// SPDX-License-Identifier: Apache-2.0
// GPUs that plans are made for, and what connects them.
#ifndef FL_JOB_GPUS_H
#define FL_JOB_GPUS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define GPU_PRESET "H100"

struct gpu {
    const char *name;
    uint64_t total_mib, visible_mib; // as nvidia-smi tells; what CUDA shows of it to programs
    double fp8, bf16;                // dense peak, FLOP/s; fp8 0: it has none, bf16 takes its place
    double memory;                   // bytes/s
    const char *link_name;
    double link;      // to other GPUs of the same node, bytes/s in one direction
    int link_gpus;    // that it joins; 0: all of a node, else the rest is reached over PCIe
    double host_link; // to host memory, likewise
    bool kernels;     // this version has kernels for it
};

// The rest of the machine.
struct fabric {
    int node_gpus;
    const char *network_name; // NULL: a bare rate
    double network;           // of one GPU to other nodes, bytes/s in one direction
    double network_used;      // share of it that large messages get
    double host_memory;       // of a node, bytes/s
};

// A 400 Gb/s adapter for each GPU, as DGX H100 and its like have.
#define FABRIC_PRESET                                                                              \
    ((struct fabric){.node_gpus = 8,                                                               \
                     .network_name = "InfiniBand-NDR",                                             \
                     .network = 50e9,                                                              \
                     .network_used = 0.8,                                                          \
                     .host_memory = 300e9})

// -EINVAL with all names for an unknown one.
int gpu_find(const char *name, const struct gpu **out, struct fl_error *e);

// Bytes that programs can have on it, the driver's own part aside.
uint64_t gpu_visible_bytes(const struct gpu *gpu);

// Bytes a second, used by large messages, between ranks of a group of consecutive ones; *name: of
// what they go over.
double gpu_link(const struct gpu *gpu, const struct fabric *fabric, int ranks, const char **name);

// A name of a network, or bytes a second. Unknown names are -EINVAL with all of them.
int network_find(const char *text, struct fabric *fabric, struct fl_error *e);

#endif
