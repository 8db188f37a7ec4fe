// SPDX-License-Identifier: Apache-2.0
// Which backend runs a job, and its start on this rank.
#ifndef FL_TRAIN_BACKEND_H
#define FL_TRAIN_BACKEND_H

#include "job/spec.h"
#include "mem/arena.h"
#include "ops/ops.h"

// Settles BACKEND_AUTO as job/runnable.h says. Refuses backend cuda where it cannot be had: no
// device, or exact numerics. What this version cannot run is job/runnable.h's to refuse.
int backend_choose(struct spec *spec, struct fl_error *e);

// Device (a number of the visible GPUs; the CPU backend has none), arena and operations. What was
// made is the caller's, also when a later part fails.
int backend_open(const struct spec *spec, const struct model *model, int device, uint64_t cap_bytes,
                 struct arena **arena, struct ops **ops, struct fl_error *e);

#endif
