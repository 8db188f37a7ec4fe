// SPDX-License-Identifier: Apache-2.0
// What a task finds in its environment: who it is, its GPU, allocators, threads, rendezvous.
#ifndef FL_PLUGIN_ENVIRONMENT_H
#define FL_PLUGIN_ENVIRONMENT_H

#include "base/error.h"
#include "place/gpu.h"

#include <slurm/spank.h>
#include <stddef.h>
#include <stdint.h>

struct launch;

// What the decisions about one task rest on.
struct environment {
    uint32_t rank, local_rank, local_ranks;
    uint32_t cpus_per_task; // as Slurm counts
    uint32_t job_cpus;      // of the job on this node
    struct gpu_choice gpu;
    char gpus[GPU_LIST_MAX]; // the node's indices of the step's GPUs, as a list
    int cores;               // this plugin bound the task to; 0: it did not
};

// Reads them from Slurm. Errors: GPUs that cannot serve expert parallelism.
int environment_read(spank_t spank, const struct launch *launch, struct environment *environment,
                     struct fl_error *e);

// Sets FP8_LORA_RANK, _WORLD, _LOCAL_RANK, _EP, _DP, _DEVICE, CUDA_DEVICE_ORDER, the allocator
// settings of PyTorch, NCCL_COMM_ID, and OMP_NUM_THREADS and Open MPI's yielding where they are
// unset.
int environment_write(spank_t spank, const struct launch *launch,
                      const struct environment *environment, struct fl_error *e);

#endif
