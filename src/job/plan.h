// SPDX-License-Identifier: Apache-2.0
// Bytes of a rank by category, known from spec and config.json alone.
#ifndef FL_JOB_PLAN_H
#define FL_JOB_PLAN_H

#include "base/category.h"
#include "job/layout.h"

struct plan {
    struct layout layout;
    uint64_t base_params, trainable_params;             // of one rank
    uint64_t base_params_total, trainable_params_total; // of the model
    uint64_t bytes[MEMORY_CATEGORIES], total_bytes;     // of one rank, at its peak
};

// Pure. All ranks have equal plans. cap_bytes 0: no cap; else a plan above it is an error that
// names the largest categories.
int plan_make(const struct spec *spec, const struct model *model, int world, uint64_t cap_bytes,
              struct plan *plan, struct fl_error *e);

#endif
