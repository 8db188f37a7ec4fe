// SPDX-License-Identifier: Apache-2.0
// In slurmstepd, as root: what a task's end means for its step.
#ifndef FL_PLUGIN_ACCOUNT_H
#define FL_PLUGIN_ACCOUNT_H

#include "launch.h"

// slurm_spank_task_exit: completes the rank's slot. A failed task tells the others to stop, and
// starts a helper that ends the whole step if they do not. The last task's end starts the helper
// that writes the ranks into the job's record, and waits for it, because a finished job takes no
// more.
void account_task_exit(spank_t spank, struct launch *launch);

#endif
