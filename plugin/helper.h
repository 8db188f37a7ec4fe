// SPDX-License-Identifier: Apache-2.0
// Runs a root program of ours outside slurmstepd.
#ifndef FL_PLUGIN_HELPER_H
#define FL_PLUGIN_HELPER_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

#define HELPER_FD         3 // where the helper finds the first of its descriptors
#define HELPER_FDS_MAX    4
#define HELPER_DEADLINE_S 15 // it ends itself by then
#define HELPER_GRACE_S    10 // what failed steps get before they are ended

#define HELPER_DONE   "ok"      // the last word of a helper that succeeded
#define HELPER_ANSWER "answer " // what one that was asked begins with

// Starts path with argv, an empty environment or, for a client of Slurm's, none but the daemon's
// own SLURM_CONF, default signals, /dev/null as input and output, count descriptors as 3, 4, ...
// and no others, and waits until it and its children have closed standard error. What they said
// there is the error, unless it is HELPER_DONE; -EAGAIN: nothing, so that something killed it.
int helper_run(const char *path, char *const *argv, bool client, const int *fds, int count,
               struct fl_error *e);

// The same for a client of Slurm's that says HELPER_ANSWER and its answer, within deadline_ms.
int helper_ask(const char *path, char *const *argv, int deadline_ms, char *answer, size_t size,
               struct fl_error *e);

#endif
