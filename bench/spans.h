// SPDX-License-Identifier: Apache-2.0
// Time on a stream by what was queued: operations, and the launches each of them makes.
#ifndef FL_BENCH_SPANS_H
#define FL_BENCH_SPANS_H

#include "floors.h"

#include <stdio.h>

// One level is recorded at a time, so that the events of launches are not in an operation's time.
enum spans_level { SPANS_NONE, SPANS_OPERATIONS, SPANS_LAUNCHES };

struct spans;

struct spans *spans_create(void *stream); // a cudaStream_t
void spans_destroy(struct spans *spans);  // NULL-safe
void spans_record(struct spans *spans, enum spans_level level);

// Brackets what is queued in between. Launches belong to the operation they are made in. name must
// stay; spans NULL: nothing happens.
int spans_begin(struct spans *spans, enum spans_level level, const char *name, struct work work);
void spans_end(struct spans *spans, int span);

// A step ends, or begins when nothing was recorded: what is recorded is summed up. Waits for the
// stream. Returns 0 or a cudaError_t.
int spans_step(struct spans *spans);

// Operations by their time in a mean step, each with its launches; step_ms: of one without events.
void spans_print(const struct spans *spans, double step_ms, FILE *out);

#endif
