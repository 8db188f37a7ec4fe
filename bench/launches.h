// SPDX-License-Identifier: Apache-2.0
// Every kernel launch of the backend, timed. The linker sends the calls of the launchers here
// (bench/build).
#ifndef FL_BENCH_LAUNCHES_H
#define FL_BENCH_LAUNCHES_H

#include "spans.h"

// Those of this process, from now on; NULL: no more.
void launches_watch(struct spans *spans);

#endif
