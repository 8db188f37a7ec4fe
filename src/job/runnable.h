// SPDX-License-Identifier: Apache-2.0
// What a plan can count and this version's trainer cannot run yet.
#ifndef FL_JOB_RUNNABLE_H
#define FL_JOB_RUNNABLE_H

#include "job/gpus.h"
#include "job/layout.h"

// Which backend the trainer takes: AUTO is the CPU's, the GPU is taken where the job asks for it.
enum backend runnable_backend(const struct spec *spec);

// The first thing of a job that stands in the way, and what to write instead.
struct runnable_gap {
    const char *what, *instead;
};

// Whether something does on world ranks: on GPUs, or on CPUs. gpu NULL: any with kernels.
bool runnable_gap(const struct spec *spec, bool on_gpu, const struct gpu *gpu, int world,
                  struct runnable_gap *gap);

// 0, or -ENOTSUP with that gap, of the backend that the trainer takes.
int runnable_check(const struct spec *spec, int world, struct fl_error *e);

// Whether the network is written for what the job asks, whatever it runs on: a dry run can follow.
bool runnable_network(const struct spec *spec);

// Whether the GPU backend's kernels have a shape: -ENOTSUP with the first that they lack. Jobs of
// other backends pass.
int runnable_shapes(const struct spec *spec, const struct model *model, const struct layout *layout,
                    struct fl_error *e);

#endif
