// SPDX-License-Identifier: Apache-2.0
// What the accounting helper asks of slurmctld.
#ifndef FL_PLUGIN_CONTROLLER_H
#define FL_PLUGIN_CONTROLLER_H

#include "base/error.h"
#include "report/comment.h"

// Merges entry into the job's admin_comment and reads back until it stays there. Nodes and other
// programs write the same text without a lock, so this repeats with growing random pauses, for at
// most deadline_ms. Of a job that was cancelled or ran out of time slurmctld takes no more: then
// the same is done in slurmdbd. Needs Slurm's own user or root.
int controller_merge(const struct comment_key *key, const json_t *entry, int deadline_ms,
                     struct fl_error *e);

// Ends the step on all its nodes. A step that is over already is no error.
int controller_end_step(uint32_t job, uint32_t step, struct fl_error *e);

#define CONTROLLER_NAME 128

struct controller_job {
    char partition[CONTROLLER_NAME], account[CONTROLLER_NAME], qos[CONTROLLER_NAME];
};
// What slurmctld says of a job; "" where it has none.
int controller_job_get(uint32_t job, struct controller_job *out, struct fl_error *e);

#endif
