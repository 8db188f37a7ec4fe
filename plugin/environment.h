// SPDX-License-Identifier: Apache-2.0
// What a task finds in its environment: who it is, its GPU, allocators, threads, rendezvous.
#ifndef FL_PLUGIN_ENVIRONMENT_H
#define FL_PLUGIN_ENVIRONMENT_H

#include "base/error.h"
#include "place/gpu.h"

#include <slurm/spank.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct launch;

// What the decisions about one task rest on.
struct environment {
    uint32_t rank, local_rank, local_ranks;
    uint32_t cpus_per_task; // as Slurm counts
    uint32_t job_cpus;      // of the job on this node
    struct gpu_choice gpu;
    bool gpu_hidden;              // the task sees none of the other tasks'
    int node_gpus;                // of the step on this node; 0: unknown
    char visible[GPU_LIST_MAX];   // CUDA_VISIBLE_DEVICES
    char gpus[GPU_LIST_MAX];      // the same as the node's own numbers
    char gpu_bind[GPU_LIST_MAX];  // how Slurm bound GPUs to tasks
    bool cpu_masked;              // Slurm bound each task to a mask
    char cpu_masks[GPU_LIST_MAX]; // of every local task, as a list
    bool memory_bound;            // with --mem-bind
    int cores;                    // this plugin bound the task to; 0: it did not
};

struct gpu_view environment_view(const struct environment *environment);

// Reads them from Slurm. Errors: GPUs that cannot serve expert parallelism.
int environment_read(spank_t spank, const struct launch *launch, struct environment *environment,
                     struct fl_error *e);

// Sets FP8_LORA_RANK, _WORLD, _LOCAL_RANK, _EP, _DP, _DEVICE, CUDA_DEVICE_ORDER, the allocator
// settings of PyTorch, NCCL_COMM_ID, and OMP_NUM_THREADS and Open MPI's yielding where they are
// unset.
int environment_write(spank_t spank, const struct launch *launch,
                      const struct environment *environment, struct fl_error *e);

#endif
