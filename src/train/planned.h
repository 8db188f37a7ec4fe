// SPDX-License-Identifier: Apache-2.0
// The plan a job is judged by: its closed form, and a dry run of all that the trainer can run.
#ifndef FL_TRAIN_PLANNED_H
#define FL_TRAIN_PLANNED_H

#include "job/plan.h"

// As plan_make_threads; but where the trainer can run the job, plan->dry is set, the bytes are
// those of a dry run under the worst routing, the total is that of the moment of its peak, and the
// cap is held against what the arena would map, granules included. recompute auto is settled here:
// plan->recompute, of the experts where it is selective.
int planned_make(const struct spec *spec, const struct model *model, int world, int threads,
                 uint64_t cap_bytes, struct plan *plan, struct fl_error *e);

#endif
