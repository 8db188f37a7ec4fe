// SPDX-License-Identifier: Apache-2.0
// Whether a job stays within what the administrator allows it, as its own user sees the files.
#ifndef FL_TRAIN_ALLOWED_H
#define FL_TRAIN_ALLOWED_H

#include "job/plan.h"
#include "train/launch.h"

// Of a plan_make's -ENOSPC the place the cap comes from is put before the message. Otherwise: host
// memory above its cap, -ENOSPC; a model or an output folder (or where it would be made) outside of
// the roots, links followed: -EPERM.
int allowed_check(const struct launch *launch, const struct spec *spec, const struct plan *plan,
                  int plan_code, struct fl_error *e);

#endif
