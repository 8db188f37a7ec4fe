// SPDX-License-Identifier: Apache-2.0
// On the node: one step that is ours, from slurmstepd's start to its end.
#ifndef FL_PLUGIN_LAUNCH_H
#define FL_PLUGIN_LAUNCH_H

#include "base/error.h"
#include "report/record.h"
#include "rules.h"
#include "settings.h"
#include "stamp.h"
#include "watch.h"

#include <slurm/spank.h>
#include <stdbool.h>
#include <sys/types.h>

struct launch {
    struct stamp stamp; // this very step
    struct settings settings;
    struct rules rules;
    bool governed; // not ours, but the policy has its device memory watched, or would if it could
                   // be read; nothing else is done
    uint32_t restart, nodes, node_id, tasks, local_tasks;
    pid_t stepd;
    struct record *record;
    int record_fd;
    struct record *kept; // what this daemon knows of the ranks, for the accounting helper alone
    int kept_fd;
    int limits_fd;               // LIMITS_FD, what the core is to hold itself to; -1: nothing
    struct fl_error error;       // found too early to be shown; a task shows it
    struct watch *watch;         // over device memory; NULL: none
    bool watch_gone;             // it died, and that was told
    struct fl_error watch_error; // why it could not be started, where the step goes on without

    uint32_t exited;   // local tasks
    int64_t failed_ms; // when the first of them failed, in Unix time; 0: none did
};

// slurm_spank_init_post_opt in slurmstepd, as root: NULL for a step that is not ours, batch, extern
// and interactive ones always, unless the policy governs it, or cannot be read and might. No file
// of the user's is looked at.
struct launch *launch_create(spank_t spank, int argc, char **argv);

// slurm_spank_task_post_fork, as root: tells the watch which process is the rank.
void launch_forked(spank_t spank, struct launch *launch);

// slurm_spank_task_init in the forked child, as the user: environment, placement, and the core in
// the place of the command, which Slurm then executes. Ends the child when it cannot run.
void launch_task(spank_t spank, struct launch *launch);

// Ends the watch and gives back what the step holds. NULL-safe.
void launch_destroy(struct launch *launch);

#endif
