// SPDX-License-Identifier: Apache-2.0
// On the node: one step that is ours, from slurmstepd's start to its end.
#include "launch.h"

#include "bind.h"
#include "environment.h"
#include "option.h"
#include "refuse.h"

#include <errno.h>
#include <fcntl.h>
#include <slurm/slurm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The word of the command that the core's path replaced.
#define ARGV0_ENV "FP8_LORA_ARGV0"

static bool step_is_ours(spank_t spank, struct stamp *stamp)
{
    uint32_t job, step;
    char text[STAMP_MAX];

    return option_given() && spank_get_item(spank, S_JOB_ID, &job) == ESPANK_SUCCESS &&
           spank_get_item(spank, S_JOB_STEPID, &step) == ESPANK_SUCCESS &&
           step <= SLURM_MAX_NORMAL_STEP_ID &&
           spank_getenv(spank, STAMP_ENV, text, sizeof text) == ESPANK_SUCCESS &&
           stamp_parse(text, stamp) == 0 && stamp->job == job && stamp->step == step;
}

struct launch *launch_create(spank_t spank, int argc, char **argv)
{
    struct launch *launch;
    struct stamp stamp;

    if (!step_is_ours(spank, &stamp))
        return NULL;
    launch = calloc(1, sizeof *launch);
    if (!launch)
        return NULL;
    launch->stamp = stamp;
    launch->stepd = getpid();
    launch->record_fd = -1;
    (void)spank_get_item(spank, S_SLURM_RESTART_COUNT, &launch->restart);
    if (spank_get_item(spank, S_JOB_NNODES, &launch->nodes) ||
        spank_get_item(spank, S_JOB_NODEID, &launch->node_id) ||
        spank_get_item(spank, S_JOB_TOTAL_TASK_COUNT, &launch->tasks) ||
        spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &launch->local_tasks)) {
        error_set(&launch->error, -EINVAL, "slurmstepd does not tell the step's tasks");
        return launch;
    }
    if (settings_parse(argc, argv, &launch->settings, &launch->error) ||
        settings_trusted(launch->settings.core, &launch->error))
        return launch;
    (void)record_create(launch->tasks, &launch->record, &launch->record_fd, &launch->error);
    return launch;
}

// From 23.11 on Slurm has a call to put a program before the task's words. Before, the forked
// child's own copy of the words is the only place: the core replaces the first, which it then finds
// in FP8_LORA_ARGV0. Slurm executes it after this hook, so that limits, prolog exports and later
// plugins apply to the core as to any program.
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 11, 0)
static int core_prepend(spank_t spank, struct launch *launch, struct fl_error *e)
{
    const char *words[] = {launch->settings.core};

    spank_unsetenv(spank, ARGV0_ENV);
    if (spank_prepend_task_argv(spank, 1, words))
        return error_set(e, -EINVAL, "Slurm does not let the trainer be put before the command");
    return 0;
}
#else
static int core_prepend(spank_t spank, struct launch *launch, struct fl_error *e)
{
    int argc;
    char **argv;

    if (spank_get_item(spank, S_JOB_ARGV, &argc, &argv) || argc < 1)
        return error_set(e, -EINVAL, "slurmstepd does not tell the step's command");
    if (spank_setenv(spank, ARGV0_ENV, argv[0], 1))
        return error_set(e, -ENOMEM, "cannot set " ARGV0_ENV);
    argv[0] = (char *)launch->settings.core;
    return 0;
}
#endif

void launch_task(spank_t spank, struct launch *launch)
{
    struct fl_error e = launch->error;
    struct environment environment;
    char number[16];

    if (e.code)
        refuse_task(&e);
    if (fcntl(launch->record_fd, F_SETFD, 0)) {
        error_set(&e, -errno, "record: %s", strerror(errno));
        refuse_task(&e);
    }
    snprintf(number, sizeof number, "%d", launch->record_fd);
    spank_setenv(spank, RECORD_FD_ENV, number, 1);
    spank_unsetenv(spank, STAMP_ENV);
    if (environment_read(spank, launch, &environment, &e))
        refuse_task(&e);
    bind_task(spank, launch, &environment);
    if (environment_write(spank, launch, &environment, &e) || core_prepend(spank, launch, &e))
        refuse_task(&e);
}

void launch_destroy(struct launch *launch)
{
    if (!launch)
        return;
    record_close(launch->record);
    if (launch->record_fd >= 0)
        close(launch->record_fd);
    free(launch);
}
