// SPDX-License-Identifier: Apache-2.0
// OUTPUT_DIR/metrics.jsonl: one JSON object a line, each written in one call.
#ifndef FL_TRAIN_METRICS_H
#define FL_TRAIN_METRICS_H

#include "base/error.h"
#include "job/plan.h"
#include "train/console.h"

struct metrics;

// Starts the file anew: it belongs to the adapters that this run leaves beside it. Until it is
// destroyed no other job gets into the folder: -EBUSY.
int metrics_create(const char *output_dir, struct metrics **out, struct fl_error *e);
void metrics_destroy(struct metrics *metrics); // NULL-safe

// {"event":"start",...}: what runs where.
int metrics_start(struct metrics *metrics, const struct spec *spec, const struct plan *plan,
                  int64_t samples, int64_t iterations, struct fl_error *e);
// {"event":"train",...}; numbers that are not finite become null.
int metrics_train(struct metrics *metrics, const struct progress *p, struct fl_error *e);
// {"event":"validation",...}
int metrics_validation(struct metrics *metrics, const struct validation *v, struct fl_error *e);
// {"event":"memory",...}: of every category the plan of a rank, and the peak of the rank where it was
// the greatest; peaks [MEMORY_CATEGORIES].
int metrics_memory(struct metrics *metrics, const struct plan *plan, const uint64_t *peaks,
                   uint64_t peak_total, struct fl_error *e);
// {"event":"end",...}: reason "done" or "signal 15".
int metrics_end(struct metrics *metrics, int64_t iteration, const char *reason, struct fl_error *e);

#endif
