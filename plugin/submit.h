// SPDX-License-Identifier: Apache-2.0
// In the client, as its user: refuse before the queue, then stamp the step.
#ifndef FL_PLUGIN_SUBMIT_H
#define FL_PLUGIN_SUBMIT_H

#include <slurm/spank.h>
#include <stdbool.h>

// While options are read: whether the option is this client's own, not inherited from an
// allocation. Ends the client when srun is used in a form that cannot run a job.
bool submit_accepts(const char *argument);

// slurm_spank_init_post_opt: reads and plans the job; ends the client when it cannot run.
void submit_check(int argc, char **argv);

// slurm_spank_local_user_init: plans for the step's real number of tasks and stamps it for the
// nodes.
void submit_stamp(spank_t spank, int argc, char **argv);

#endif
