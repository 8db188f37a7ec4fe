// SPDX-License-Identifier: Apache-2.0
// What the accounting helper asks of slurmctld.
#include "controller.h"

#include "config.h"
#include "database.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_FIRST_MS 20
#define PAUSE_LAST_MS  1000
#define SETTLE_MS      100
#define SETTLE_ROUNDS  4 // times of one load and store

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void pause_ms(int64_t ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    nanosleep(&t, NULL);
}

static int slurm_fail(struct fl_error *e, const char *what, uint32_t job)
{
    int code = slurm_get_errno();

    return error_set(e, -EIO, "job %u: cannot %s: %s", job, what, slurm_strerror(code));
}

// Where a job's admin_comment is kept while it runs, and once it is over.
struct keeper {
    int (*load)(uint32_t job, char **text, struct fl_error *e);
    int (*store)(uint32_t job, char *text, struct fl_error *e);
};

// A copy of the job's admin_comment in *text (free() it), NULL when it has none.
static int comment_load(uint32_t job, char **text, struct fl_error *e)
{
    job_info_msg_t *jobs = NULL;

    *text = NULL;
    if (slurm_load_job(&jobs, job, 0))
        return slurm_fail(e, "be loaded", job);
    for (uint32_t i = 0; i < jobs->record_count && !*text; i++)
        if (jobs->job_array[i].job_id == job && jobs->job_array[i].admin_comment)
            *text = strdup(jobs->job_array[i].admin_comment);
    slurm_free_job_info_msg(jobs);
    return 0;
}

// -EALREADY: the job is cancelled or over its time, though its ranks are still ending.
static int comment_store(uint32_t job, char *text, struct fl_error *e)
{
    job_desc_msg_t update;
    bool finished;

    slurm_init_job_desc_msg(&update);
    update.job_id = job;
    update.admin_comment = text;
    if (!slurm_update_job(&update))
        return 0;
    finished = slurm_get_errno() == ESLURM_JOB_FINISHED;
    slurm_fail(e, "get its admin_comment", job);
    return e->code = finished ? -EALREADY : -EIO;
}

// Whoever loaded the text before our store will store over it within about the time that a load
// and a store take; whoever loads it later keeps what is ours. So "it is there" counts when it is
// still there a few such times later.
int controller_merge(const struct comment_key *key, const json_t *entry, int deadline_ms,
                     struct fl_error *e)
{
    static const struct keeper controller = {comment_load, comment_store},
                               database = {database_load, database_store};
    const struct keeper *keeper = &controller;
    int64_t end = now_ms() + deadline_ms, most = PAUSE_FIRST_MS, round = 0;
    bool seen = false, stored = false;
    int code;

    srand48((long)now_ms() ^ (long)getpid() << 20);
    do {
        int64_t begin = now_ms();
        char *old, *text = NULL;
        code = keeper->load(key->job, &old, e);
        if (!code && comment_has(old, key, entry)) {
            free(old);
            if (seen || !stored)
                return 0;
            seen = true;
            pause_ms(SETTLE_MS + SETTLE_ROUNDS * round);
            continue;
        }
        seen = false;
        if (!code)
            code = comment_merge(old, key, entry, COMMENT_LIMIT, &text, e);
        free(old);
        if (code == -E2BIG)
            return code;
        if (!code)
            code = keeper->store(key->job, text, e);
        free(text);
        if (code == -EALREADY && keeper == &controller) {
            keeper = &database;
            stored = false;
            continue;
        }
        stored = stored || !code;
        round = now_ms() - begin;
        pause_ms((int64_t)(drand48() * (double)most));
        most = most * 2 < PAUSE_LAST_MS ? most * 2 : PAUSE_LAST_MS;
    } while (now_ms() < end);
    return code ? code
                : error_set(e, -ETIMEDOUT,
                            "job %u: its admin_comment was written, and not seen to stay within "
                            "%d s: slurmctld is slow, or others overwrite it",
                            key->job, deadline_ms / 1000);
}

int controller_end_step(uint32_t job, uint32_t step, struct fl_error *e)
{
#ifdef HAVE_SLURM_KILL_FLAGS
    int code = slurm_kill_job_step(job, step, SIGKILL, 0);
#else
    int code = slurm_kill_job_step(job, step, SIGKILL);
#endif

    if (code && slurm_get_errno() != ESLURM_ALREADY_DONE &&
        slurm_get_errno() != ESLURM_INVALID_JOB_ID)
        return slurm_fail(e, "have its step ended", job);
    return 0;
}

// A name that the answer has no room for, or that would end in it, must not pass for another.
static int name_take(char to[CONTROLLER_NAME], const char *from, uint32_t job, struct fl_error *e)
{
    if (from && (strlen(from) >= CONTROLLER_NAME || strpbrk(from, "\t\n")))
        return error_set(e, -EINVAL,
                         "job %u: a partition, account or QOS of more than %d bytes, or with a tab "
                         "or newline in its name",
                         job, CONTROLLER_NAME - 1);
    snprintf(to, CONTROLLER_NAME, "%s", from ? from : "");
    return 0;
}

int controller_job_get(uint32_t id, struct controller_job *out, struct fl_error *e)
{
    job_info_msg_t *jobs = NULL;
    bool found = false;
    int code = 0;

    if (slurm_load_job(&jobs, id, 0))
        return slurm_fail(e, "be loaded", id);
    for (uint32_t i = 0; i < jobs->record_count && !found; i++) {
        const slurm_job_info_t *job = &jobs->job_array[i];
        if (job->job_id != id)
            continue;
        code = name_take(out->partition, job->partition, id, e);
        if (!code)
            code = name_take(out->account, job->account, id, e);
        if (!code)
            code = name_take(out->qos, job->qos, id, e);
        found = true;
    }
    slurm_free_job_info_msg(jobs);
    if (code)
        return code;
    return found ? 0 : error_set(e, -ENOENT, "job %u: slurmctld does not know it", id);
}
