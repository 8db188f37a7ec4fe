// SPDX-License-Identifier: Apache-2.0
// Binds a task to the cores near its GPU.
#ifndef FL_PLUGIN_BIND_H
#define FL_PLUGIN_BIND_H

struct environment;

// In the task's process. Does nothing where Slurm already bound the task, where the job shares the
// node, on small machines, and when the topology cannot be read: placement is never worth a job.
// Returns the number of cores bound to, 0 for none.
int bind_task(const struct environment *environment);

int bind_cpus_allowed(void); // of this process
int bind_cpus_online(void);  // of the node

#endif
