// SPDX-License-Identifier: Apache-2.0
// Ends a client or a task with one line.
//
// Slurm honours a hook's error code only where plugstack.conf says `required`; a refusal must hold
// under `optional` too, so it ends the process as Slurm itself would after such an error.
#ifndef FL_PLUGIN_REFUSE_H
#define FL_PLUGIN_REFUSE_H

#include "base/error.h"

// In srun, sbatch or salloc: exit status 1. Before the queue no job exists; later, srun's own
// shepherd process cancels the job.
_Noreturn void refuse_client(const struct fl_error *e);

// In the forked child that would become the task: exit status 1; slurmstepd goes on.
_Noreturn void refuse_task(const struct fl_error *e);

#endif
