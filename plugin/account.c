// SPDX-License-Identifier: Apache-2.0
// In slurmstepd, as root: what a task's end means for its step.
#include "account.h"

#include "helper.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define HELPER_STARTS 3

static int64_t unix_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

// In place of a cause that the rank itself wrote.
static void cause_fill(struct record_rank *slot, const struct launch *launch, int status)
{
    uint32_t first;

    if (slot->cause[0])
        return;
    if ((watch_ends(launch->watch, &first) || record_aborted(launch->record, &first, NULL)) &&
        first != slot->rank)
        snprintf(slot->cause, sizeof slot->cause, "stopped because rank %u failed", first);
    else if (WIFSIGNALED(status))
        snprintf(slot->cause, sizeof slot->cause, "killed by signal %d (%s)", WTERMSIG(status),
                 sigdescr_np(WTERMSIG(status)) ? sigdescr_np(WTERMSIG(status)) : "unknown");
    else
        snprintf(slot->cause, sizeof slot->cause, "exited with code %d", WEXITSTATUS(status));
}

// What is measured comes from the watch alone: the ranks can write whatever they like.
static void watch_apply(const struct launch *launch, struct record_rank *slot)
{
    struct record_rank seen = {.watch = launch->watch_error.code ? WATCH_BLIND : WATCH_NONE};

    if (launch->watch && !watch_rank(launch->watch, slot->rank, &seen))
        seen = (struct record_rank){.watch = WATCH_STARTING};
    slot->watch = seen.watch;
    slot->members = seen.members;
    slot->measured = seen.measured;
    if (seen.cap)
        slot->cap = seen.cap;
    if (!slot->gpu[0])
        memcpy(slot->gpu, seen.gpu, sizeof slot->gpu);
    if (seen.state == RANK_FAILED)
        slot->state = RANK_FAILED;
    if (seen.state == RANK_FAILED || (seen.cause[0] && !slot->cause[0]))
        memcpy(slot->cause, seen.cause, sizeof slot->cause);
}

static void slot_complete(spank_t spank, struct launch *launch, uint32_t rank, uint32_t local_rank,
                          int status)
{
    struct record_rank slot;

    if (record_read(launch->record, rank, &slot)) // never written, or unfit to be read
        slot = (struct record_rank){.rank = rank, .local_rank = local_rank};
    slot.exit_code = status & 0xffff;
    if (spank_getenv(spank, "SLURMD_NODENAME", slot.node, sizeof slot.node))
        snprintf(slot.node, sizeof slot.node, "node%u", launch->node_id);
    watch_apply(launch, &slot);
    if (status) {
        slot.state = RANK_FAILED;
        cause_fill(&slot, launch, status);
    }
    record_write(launch->record, &slot);
    record_write(launch->kept, &slot);
}

// A helper may be killed with the step's tasks before it has left slurmstepd's family.
static void helper_start(const struct launch *launch, const char *what, const char *numbers[],
                         int count, const int *record_fd)
{
    char *argv[12] = {(char *)"fp8-lora-account", (char *)what};
    struct fl_error e;
    int code;

    for (int i = 0; i < count; i++)
        argv[2 + i] = (char *)numbers[i];
    code = settings_trusted(launch->settings.account, &e);
    if (!code) {
        int starts = HELPER_STARTS;
        do
            code =
                helper_run(launch->settings.account, argv, true, record_fd, record_fd ? 1 : 0, &e);
        while (code == -EAGAIN && --starts);
    }
    if (code)
        slurm_error("fp8-lora: %s", e.text);
}

static void step_end_later(const struct launch *launch)
{
    char job[16], step[16], stepd[16], nodes[16];

    snprintf(job, sizeof job, "%u", launch->stamp.job);
    snprintf(step, sizeof step, "%u", launch->stamp.step);
    snprintf(stepd, sizeof stepd, "%d", launch->stepd);
    snprintf(nodes, sizeof nodes, "%u", launch->nodes);
    helper_start(launch, "end", (const char *[]){job, step, stepd, nodes}, 4, NULL);
}

// Into the record that the ranks cannot write: what other nodes' ranks told theirs, and what the
// watch has measured since a task ended.
static void record_complete(const struct launch *launch)
{
    struct record_rank slot;
    uint32_t first;
    int status;

    for (uint32_t rank = 0; rank < launch->tasks; rank++) {
        if (!record_read(launch->kept, rank, &slot))
            watch_apply(launch, &slot);
        else if (!record_read(launch->record, rank, &slot)) {
            slot.exit_code = RECORD_EXIT_UNKNOWN;
            slot.watch = slot.members = 0;
            slot.measured = 0;
        } else
            continue;
        record_write(launch->kept, &slot);
    }
    if (record_aborted(launch->record, &first, &status))
        record_abort(launch->kept, first, status);
}

static void step_account(const struct launch *launch)
{
    char job[16], step[16], restart[16], node[16], tasks[16], failed[24];

    record_complete(launch);
    snprintf(job, sizeof job, "%u", launch->stamp.job);
    snprintf(step, sizeof step, "%u", launch->stamp.step);
    snprintf(restart, sizeof restart, "%u", launch->restart);
    snprintf(node, sizeof node, "%u", launch->node_id);
    snprintf(tasks, sizeof tasks, "%u", launch->tasks);
    snprintf(failed, sizeof failed, "%lld", (long long)launch->failed_ms);
    helper_start(launch, "write", (const char *[]){job, step, restart, node, tasks, failed}, 6,
                 &launch->kept_fd);
}

// A watch that died is told once, by the first task's end after it.
static void watch_check(struct launch *launch)
{
    if (launch->watch_error.code && !launch->error.code && !launch->exited)
        slurm_error("fp8-lora: the cap on device memory is not in force: %s",
                    launch->watch_error.text);
    if (!launch->watch || launch->watch_gone || !watch_lost(launch->watch))
        return;
    launch->watch_gone = true;
    slurm_error("fp8-lora: the watch over the device memory died: its cap is not in force");
    if (watch_must_end(launch->watch) && launch->exited + 1 < launch->local_tasks)
        step_end_later(launch);
}

void account_task_exit(spank_t spank, struct launch *launch)
{
    uint32_t rank, blamed;
    int status = 0, local_rank = 0;
    bool ended;

    if (launch->governed) {
        watch_check(launch);
        launch->exited++;
        return;
    }
    if (!launch->kept || spank_get_item(spank, S_TASK_GLOBAL_ID, &rank) ||
        spank_get_item(spank, S_TASK_ID, &local_rank) ||
        spank_get_item(spank, S_TASK_EXIT_STATUS, &status))
        return;
    watch_check(launch);
    slot_complete(spank, launch, rank, (uint32_t)local_rank, status);
    launch->exited++;
    ended = watch_ends(launch->watch, &blamed);
    if ((status || ended) && !launch->failed_ms) {
        launch->failed_ms = unix_ms();
        record_abort(launch->record, ended ? blamed : rank, status);
        if (launch->exited < launch->local_tasks || launch->nodes > 1)
            step_end_later(launch);
    }
    if (launch->exited == launch->local_tasks)
        step_account(launch);
}
