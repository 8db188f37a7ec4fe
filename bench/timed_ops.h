// SPDX-License-Identifier: Apache-2.0
// A backend whose operations are timed.
#ifndef FL_BENCH_TIMED_OPS_H
#define FL_BENCH_TIMED_OPS_H

#include "spans.h"

// Keeps references to both; destroying it leaves inner alone.
struct ops *timed_ops_create(struct ops *inner, struct spans *spans);

#endif
