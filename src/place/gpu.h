// SPDX-License-Identifier: Apache-2.0
// Which GPU is a local rank's, from the lists Slurm and CUDA know.
#ifndef FL_PLACE_GPU_H
#define FL_PLACE_GPU_H

#include "base/error.h"
#include "place/device.h"

#include <stdbool.h>
#include <stdint.h>

#define GPU_LIST_MAX 4096
#define GPU_NAME_MAX 64

#define GPU_NONE   (-1) // the rank has none that this node tells of
#define GPU_HIDDEN (-2) // another task's, which this one cannot see

struct gpu_choice {
    int count;  // GPUs the task sees; 0: none
    int device; // the rank's own, counted from 0 among them
    bool mig;
    char name[GPU_NAME_MAX]; // the chosen entry: index, UUID or MIG name
};

// How one task sees the step's GPUs. Every string may be "", none is NULL.
struct gpu_view {
    const char *visible;   // CUDA_VISIBLE_DEVICES: indices, UUIDs (or their beginnings), MIG names
    const char *allocated; // SLURM_STEP_GPUS: the same GPUs in the node's own numbers
    const char *bind;      // SLURMD_TRES_BIND: gpu:map_gpu:1,0 or gpu:per_task:1 or others
    int on_node;           // GPUs of the step on this node, this task's or not; 0: unknown
    uint32_t local_rank, local_ranks;
};

// Entries of a list separated by commas.
int gpu_count(const char *list);

// The GPU of the view's own rank.
struct gpu_choice gpu_choose(const struct gpu_view *view);

// The device of a choice, GPU_NONE when none of devices[count] is it.
int gpu_of_choice(const struct gpu_view *view, const struct device *devices, int count,
                  const struct gpu_choice *choice);

// MIG instances reach no other GPU. Returns the error.
int gpu_mig_refuse(const char *name, uint32_t ep, struct fl_error *e);

// Whether Slurm gave the ranks GPUs of their own, so that each sees no other's.
bool gpu_hidden(const struct gpu_view *view);

// gpus[local_ranks]: every rank's, as an index into devices[count], in the order Slurm gave them;
// GPU_NONE, GPU_HIDDEN. An index is CUDA's: the PCI order of the devices this process may open.
// Every task of a step that sees the same, or whose Slurm tells the whole binding, gets the same
// answer.
void gpu_assign(const struct gpu_view *view, const struct device *devices, int count, int *gpus);

#endif
