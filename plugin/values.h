// SPDX-License-Identifier: Apache-2.0
// Values of environment variables, worked out from texts and numbers alone.
#ifndef FL_PLUGIN_VALUES_H
#define FL_PLUGIN_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Ports of NCCL's rendezvous: below the ports Linux gives to clients (32768 and up).
#define VALUES_PORT_FIRST 20000
#define VALUES_PORT_COUNT 10000

// PyTorch allocator settings with expandable_segments:True added, unless they say something of it
// themselves. -ENAMETOOLONG: does not fit into out.
int values_allocator(const char *settings, char *out, size_t size);

// Whether a value of --cpu-bind chooses where tasks run, not only whether that is shown.
bool values_binds(const char *cpu_bind);

// Two steps of one job, and jobs of neighbouring numbers, have different ports.
int values_port(uint32_t job, uint32_t step);

// OMP_NUM_THREADS of a task: at least one.
int values_threads(uint32_t cpus_per_task, int cores_bound, int cpus_allowed);

#endif
