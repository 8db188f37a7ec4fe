// SPDX-License-Identifier: Apache-2.0
// Whether a job stays within what the administrator allows it, as its own user sees the files.
#ifndef FL_TRAIN_ALLOWED_H
#define FL_TRAIN_ALLOWED_H

#include "job/plan.h"
#include "train/launch.h"

#define ALLOWED_WARNINGS 3

// What is above a cap that only warns: a line for each.
struct allowed_warnings {
    struct fl_error line[ALLOWED_WARNINGS];
    int count;
};

// Of a planned_make's -ENOSPC the place the cap comes from is put before the message. Otherwise:
// device or host memory above its cap, -ENOSPC, or more ranks than there may be, -EPERM: a warning
// where the policy only warns; a model or an output folder (or where it would be made) outside of
// the roots, links followed: -EPERM, whatever the policy does about caps. Every message names the
// policy's line.
int allowed_check(const struct launch *launch, const struct spec *spec, const struct plan *plan,
                  int plan_code, struct allowed_warnings *warnings, struct fl_error *e);

#endif
