// SPDX-License-Identifier: Apache-2.0
// What a plan can count and this version's trainer cannot run yet.
#ifndef FL_JOB_RUNNABLE_H
#define FL_JOB_RUNNABLE_H

#include "job/layout.h"

// 0, or -ENOTSUP with the first key of the job that the trainer refuses, and what to write instead.
int runnable_check(const struct spec *spec, struct fl_error *e);

// Whether the GPU backend's kernels have a shape: -ENOTSUP with the first that they lack. Jobs of
// other backends pass.
int runnable_shapes(const struct spec *spec, const struct model *model, const struct layout *layout,
                    struct fl_error *e);

#endif
