// SPDX-License-Identifier: Apache-2.0
// Which GPU of a list is a local rank's.
#ifndef FL_PLACE_GPU_H
#define FL_PLACE_GPU_H

#include <stdbool.h>
#include <stdint.h>

#define GPU_LIST_MAX 4096
#define GPU_NAME_MAX 64

struct gpu_choice {
    int count;  // GPUs the task sees; 0: none
    int device; // the rank's own, counted from 0 among them
    bool mig;
    char name[GPU_NAME_MAX]; // the chosen entry: index, UUID or MIG name
};

// Entries of a list separated by commas.
int gpu_count(const char *list);

// visible: as in CUDA_VISIBLE_DEVICES, entries separated by commas.
struct gpu_choice gpu_choose(const char *visible, uint32_t local_rank, uint32_t local_ranks);

// The node's index of local rank's GPU in a list of indices; -1: the list has none for it.
int gpu_index(const char *indices, uint32_t local_rank, uint32_t local_ranks);

#endif
