// SPDX-License-Identifier: Apache-2.0
// Which backend runs a job, and its start on this rank.
#ifndef FL_TRAIN_BACKEND_H
#define FL_TRAIN_BACKEND_H

#include "comm/comm.h"
#include "job/spec.h"
#include "mem/arena.h"
#include "ops/ops.h"

// Settles BACKEND_AUTO: the GPU where the build has CUDA, a device is visible and the job's
// numerics and number of ranks (of the step) are the GPU's; else the CPU. Refuses backend cuda
// where it cannot be had.
int backend_choose(struct spec *spec, int ranks, struct fl_error *e);

// Threads, device (a number of the visible GPUs; the CPU backend has none), arena and operations.
// All ranks of world call together. What was made is the caller's, also when a later part fails.
int backend_open(const struct spec *spec, const struct model *model, struct comm *world, int device,
                 uint64_t cap_bytes, struct arena **arena, struct ops **ops, struct fl_error *e);

#endif
