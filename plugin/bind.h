// SPDX-License-Identifier: Apache-2.0
// Binds a task to the cores and the memory near its GPU.
#ifndef FL_PLUGIN_BIND_H
#define FL_PLUGIN_BIND_H

#include <slurm/spank.h>
#include <stdbool.h>

struct environment;
struct launch;

// In the task's process. Reads the topology only where a binding could come of it, or where the
// user wants to see it; then local rank 0 of a node prints the table. The user's own --cpu-bind is
// left as it is, and so are tasks of a job that shares the node without a cpuset. A topology that
// cannot be read is said and never worth a job. Sets the environment's cores to the number bound
// to, 0 for none, and its GPU where the topology gives the ranks another order of theirs.
void bind_task(spank_t spank, const struct launch *launch, struct environment *environment);

int bind_cpus_allowed(void); // of this process
int bind_cpus_online(void);  // of the node

#endif
