// SPDX-License-Identifier: Apache-2.0
// What the accounting helper asks of slurmdbd, for jobs of which slurmctld takes no more.
#ifndef FL_PLUGIN_DATABASE_H
#define FL_PLUGIN_DATABASE_H

#include "base/error.h"

#include <stdint.h>

// A copy of the latest job's admin_comment in *text (free() it), NULL when it has none. Errors:
// -EIO, without slurmdbd or without the job.
int database_load(uint32_t job, char **text, struct fl_error *e);

// Replaces it. Needs an operator of slurmdbd, as Slurm's own user and root are.
int database_store(uint32_t job, char *text, struct fl_error *e);

#endif
