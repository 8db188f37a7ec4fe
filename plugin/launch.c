// SPDX-License-Identifier: Apache-2.0
// On the node: one step that is ours, from slurmstepd's start to its end.
#include "launch.h"

#include "bind.h"
#include "environment.h"
#include "job/limits_file.h"
#include "option.h"
#include "refuse.h"

#include <errno.h>
#include <fcntl.h>
#include <slurm/slurm.h>
#include <stdio.h>
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

// Where there is a cap on device memory. The step goes on without a watch if the policy lets it.
static int watch_launch(spank_t spank, struct launch *launch, struct fl_error *e)
{
    static const enum watch_action actions[] = {
        [POLICY_WARN] = WATCH_WARN, [POLICY_REFUSE] = WATCH_REFUSE, [POLICY_KILL] = WATCH_KILL};
    const struct policy_decision *decision = &launch->rules.decision;
    struct watch_request request = {
        .program = launch->settings.watch,
        .nvml = launch->settings.nvml,
        .job = launch->stamp.job,
        .step = launch->stamp.step,
        .node = launch->node_id,
        .ranks = launch->tasks,
        .stepd = launch->stepd,
        .cap_bytes = decision->device_memory.value,
        .interval_ms = (uint32_t)decision->watch_interval_ms,
        .grace_ms = (uint32_t)decision->watch_grace_ms,
        .action = actions[decision->action],
        .on_failure = decision->watch_failure == FAILURE_END ? WATCH_END : WATCH_CONTINUE,
        .source = decision->device_memory.source,
    };
    int code;

    if (!request.cap_bytes)
        return 0;
    if (spank_get_item(spank, S_JOB_UID, &request.uid))
        code = error_set(&launch->watch_error, -EINVAL, "slurmstepd does not tell the job's user");
    else
        code = watch_start(&request, &launch->watch, &launch->watch_error);
    if (!code || request.on_failure == WATCH_CONTINUE)
        return 0;
    *e = launch->watch_error;
    return error_prefix(e, "device memory cannot be watched, and the policy ends such steps");
}

static int tasks_read(spank_t spank, struct launch *launch, struct fl_error *e)
{
    if (spank_get_item(spank, S_JOB_NNODES, &launch->nodes) ||
        spank_get_item(spank, S_JOB_NODEID, &launch->node_id) ||
        spank_get_item(spank, S_JOB_TOTAL_TASK_COUNT, &launch->tasks) ||
        spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &launch->local_tasks))
        return error_set(e, -EINVAL, "slurmstepd does not tell the step's tasks");
    return 0;
}

// The policy, and what of it can be held against numbers.
static int rules_apply(struct launch *launch, struct fl_error *e)
{
    const struct policy_limit *ranks = &launch->rules.decision.ranks;

    rules_decide_node(&launch->rules, &launch->settings, launch->stamp.job);
    if (launch->rules.unknown.code)
        slurm_error("fp8-lora: %s", launch->rules.unknown.text);
    if (!launch->governed && launch->rules.decision.action != POLICY_WARN && ranks->value &&
        launch->tasks > ranks->value) // under warn the core says so
        return error_set(e, -EPERM,
                         "%u ranks are more than the %llu of max_ranks (%s): start fewer",
                         launch->tasks, (unsigned long long)ranks->value, ranks->source);
    return 0;
}

static struct launch *launch_new(spank_t spank, const struct stamp *stamp, bool governed)
{
    static struct launch the_step; // a slurmstepd has one, and no lack of memory lets it go unheld
    struct launch *launch = &the_step;

    *launch = (struct launch){0};
    launch->stamp = *stamp;
    launch->governed = governed;
    launch->stepd = getpid();
    launch->record_fd = launch->kept_fd = launch->limits_fd = -1;
    (void)spank_get_item(spank, S_SLURM_RESTART_COUNT, &launch->restart);
    return launch;
}

// 1: the policy has the step watched; 0: it does not, or lets it go on without; a negative code:
// the step may not run.
static int governed_begin(spank_t spank, struct launch *launch, int argc, char **argv,
                          struct fl_error *e)
{
    const struct policy_decision *decision = &launch->rules.decision;
    bool normal = launch->stamp.step <= SLURM_MAX_NORMAL_STEP_ID;
    int code = settings_parse(argc, argv, &launch->settings, e);

    if (!code && !launch->settings.policy) // a cap of plugstack.conf's is for our own steps
        return 0;
    if (!code)
        code = rules_load(&launch->settings, &launch->rules, e);
    if (code)
        return settings_need_policy(argc, argv)
                   ? error_prefix(e, "without its policy this site runs no step")
                   : 0;
    if (!rules_govern(&launch->rules))
        return 0;
    code = rules_apply(launch, e);
    if (decision->enforce == ENFORCE_OPTION || (decision->enforce == ENFORCE_GPU_STEPS && !normal))
        return 0;
    if (!code)
        code = tasks_read(spank, launch, e);
    if (code)
        return decision->watch_failure == FAILURE_END ? code : 0;
    if (!launch->tasks) // a batch script's
        launch->tasks = 1;
    code = watch_launch(spank, launch, e);
    return code ? code : 1;
}

// A step without our option: only where the policy has it watched, and then that is all. A task of
// it says what is wrong. The extern step starts nothing of the user's.
static struct launch *governed_create(spank_t spank, int argc, char **argv)
{
    struct launch *launch;
    struct stamp stamp = {0};
    struct fl_error e = {0};
    int code;

    if (spank_get_item(spank, S_JOB_ID, &stamp.job) ||
        spank_get_item(spank, S_JOB_STEPID, &stamp.step))
        return NULL;
    launch = launch_new(spank, &stamp, true);
    code = governed_begin(spank, launch, argc, argv, &e);
    if (e.code)
        slurm_error("fp8-lora: %s", e.text);
    if (!code || (code < 0 && stamp.step == SLURM_EXTERN_CONT)) {
        launch_destroy(launch);
        return NULL;
    }
    if (code < 0)
        launch->error = e;
    return launch;
}

// What the core holds itself to, where no environment reaches. The number is slurmstepd's own from
// now on, so that no descriptor of a later task or plugin gets in its place.
static int limits_launch(struct launch *launch, struct fl_error *e)
{
    const struct policy_decision *decision = &launch->rules.decision;
    const struct limits limits = {
        .device = decision->device_memory,
        .host = decision->host_memory,
        .ranks = decision->ranks,
        .action = decision->action,
        .models = decision->model_roots,
        .outputs = decision->output_roots,
        .model_lists = decision->model_root_count,
        .output_lists = decision->output_root_count,
    };

    return launch->rules.policy ? limits_file_create(&limits, LIMITS_FD, &launch->limits_fd, e) : 0;
}

struct launch *launch_create(spank_t spank, int argc, char **argv)
{
    struct launch *launch;
    struct stamp stamp;

    if (!step_is_ours(spank, &stamp))
        return governed_create(spank, argc, argv);
    launch = launch_new(spank, &stamp, false);
    if (tasks_read(spank, launch, &launch->error) ||
        settings_parse(argc, argv, &launch->settings, &launch->error) ||
        settings_trusted(launch->settings.core, &launch->error) ||
        rules_load(&launch->settings, &launch->rules, &launch->error) ||
        rules_apply(launch, &launch->error) || limits_launch(launch, &launch->error))
        return launch;
    if (!record_create(launch->tasks, &launch->record, &launch->record_fd, &launch->error) &&
        !record_create(launch->tasks, &launch->kept, &launch->kept_fd, &launch->error))
        (void)watch_launch(spank, launch, &launch->error);
    return launch;
}

void launch_forked(spank_t spank, struct launch *launch)
{
    uint32_t rank;
    pid_t pid;

    if (launch->watch && !spank_get_item(spank, S_TASK_GLOBAL_ID, &rank) &&
        !spank_get_item(spank, S_TASK_PID, &pid))
        watch_task(launch->watch, pid, rank);
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
    if (launch->governed)
        return;
    if (fcntl(launch->record_fd, F_SETFD, 0) ||
        (launch->limits_fd >= 0 && fcntl(launch->limits_fd, F_SETFD, 0))) {
        error_set(&e, -errno, "record and limits: %s", strerror(errno));
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
    watch_stop(launch->watch);
    rules_clear(&launch->rules);
    record_close(launch->record);
    record_close(launch->kept);
    if (launch->record_fd >= 0)
        close(launch->record_fd);
    if (launch->kept_fd >= 0)
        close(launch->kept_fd);
    if (launch->limits_fd >= 0)
        close(launch->limits_fd);
}
