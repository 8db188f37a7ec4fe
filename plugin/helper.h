// SPDX-License-Identifier: Apache-2.0
// Runs the accounting helper outside slurmstepd.
#ifndef FL_PLUGIN_HELPER_H
#define FL_PLUGIN_HELPER_H

#include "base/error.h"

#define HELPER_RECORD_FD  3  // where the helper finds the record
#define HELPER_DEADLINE_S 15 // it ends itself by then
#define HELPER_GRACE_S    10 // what failed steps get before they are ended

#define HELPER_DONE "ok" // the last word of a helper that succeeded

// Starts path with argv, no environment but the daemon's own SLURM_CONF, default signals,
// /dev/null as input and output, record_fd (or none for -1) as descriptor 3 and no others, and
// waits until it and its children have closed standard error. What they said there is the error,
// unless it is HELPER_DONE; -EAGAIN: nothing, so that something killed it.
int helper_run(const char *path, char *const *argv, int record_fd, struct fl_error *e);

#endif
