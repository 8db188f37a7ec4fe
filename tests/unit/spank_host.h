// SPDX-License-Identifier: Apache-2.0
// A small Slurm around the real fp8_lora.so: what the plugin finds in the program that loads it,
// its hooks, and a step as slurmstepd has it.
#ifndef FL_TESTS_UNIT_SPANK_HOST_H
#define FL_TESTS_UNIT_SPANK_HOST_H

#include "unit/check.h"

#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdbool.h>

#define VARS  64
#define TASKS 2

struct spank_handle {
    spank_context_t context;
    uint32_t job, step, local_task;
    int exit_status;
    uint16_t cpus;  // of the job on the node
    uint32_t tasks; // of the step, here
    pid_t task_pid;
    char *env[VARS]; // of the job, NAME=VALUE
    char *argv[4];
    int argc;
};

extern struct spank_handle *host;               // what the hooks are called with
extern struct spank_option option, show_option; // in the order of registration
extern char launch_params[64];                  // of slurm.conf
extern spank_f *init, *init_post_opt, *local_user_init, *task_init, *post_fork, *task_exit, *finish;

// The plugin's arguments in plugstack.conf.
extern char *arguments[8];
extern int argument_count;

// Fills the hooks from the build folder's plugin; ends the program when it is not as Slurm wants
// it.
void plugin_load(void);

// A variable of the job's environment as it is stored, and its value; NULL: there is none.
char **variable(spank_t spank, const char *name);
const char *value_of(struct spank_handle *spank, const char *name);

// A step of the job with this stamp (NULL: none), its first hooks, and its end.
struct spank_handle step_begin(const char *stamp);
void step_init(struct spank_handle *spank, bool with_option);
void step_end(struct spank_handle *spank);

#endif
