// SPDX-License-Identifier: Apache-2.0
// Closed form of the GPU backend's scratch: bytes of the operations that can need most.
#ifndef FL_JOB_GPU_SCRATCH_H
#define FL_JOB_GPU_SCRATCH_H

#include "job/spec.h"

// Of one micro-batch; numbers as in job/plan.c.
struct gpu_scratch_job {
    uint64_t layers, hidden, q, kv, width, heads, experts, experts_local, vocab;
    uint64_t samples, length; // tokens of each
    uint64_t ranks;           // of the EP group
    uint64_t mine, most;      // rows this rank's experts get of one rank; and at most one of them
    uint64_t rank;            // of the adapters
    unsigned targets;         // enum lora_target
    bool dropout, training;
};

// The operation with the largest scratch, and its bytes.
struct gpu_scratch {
    const char *name;
    uint64_t bytes;
};
struct gpu_scratch gpu_scratch_most(const struct gpu_scratch_job *job);

#endif
