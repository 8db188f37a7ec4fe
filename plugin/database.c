// SPDX-License-Identifier: Apache-2.0
// What the accounting helper asks of slurmdbd, for jobs of which slurmctld takes no more.
#include "database.h"

#include <errno.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/slurmdb.h>
#include <string.h>

typedef __typeof__(((slurmdb_job_cond_t *)NULL)->step_list) list_handle; // renamed in 23.11

// A question about one job; the list keeps a pointer to step.
struct question {
    slurm_selected_step_t step;
    slurmdb_job_cond_t condition;
    void *connection;
};

static int database_fail(struct fl_error *e, const char *what, uint32_t job)
{
    return error_set(e, -EIO, "job %u: slurmdbd does not %s: %s", job, what,
                     slurm_strerror(slurm_get_errno()));
}

static void question_clear(struct question *question)
{
    if (question->condition.step_list)
        slurm_list_destroy(question->condition.step_list);
    if (question->connection)
        slurmdb_connection_close(&question->connection);
}

static int question_begin(struct question *question, uint32_t job, struct fl_error *e)
{
    uint16_t flags = 0;

    *question = (struct question){
        .step = {.array_task_id = NO_VAL,
                 .het_job_offset = NO_VAL,
                 .step_id = {.job_id = job, .step_het_comp = NO_VAL, .step_id = NO_VAL}},
        .condition = {.db_flags = SLURMDB_JOB_FLAG_NOTSET,
                      .flags = JOBCOND_FLAG_NO_STEP | JOBCOND_FLAG_NO_TRUNC |
                               JOBCOND_FLAG_NO_DEFAULT_USAGE},
    };
    question->condition.step_list = slurm_list_create(NULL);
    slurm_list_append(question->condition.step_list, &question->step);
    question->connection = slurmdb_connection_get(&flags);
    if (!question->connection)
        return database_fail(e, "answer", job);
    return 0;
}

int database_load(uint32_t job, char **text, struct fl_error *e)
{
    struct question question;
    list_handle jobs = NULL;
    slurmdb_job_rec_t *found;
    int code = question_begin(&question, job, e);

    *text = NULL;
    if (code)
        goto out;
    jobs = slurmdb_jobs_get(question.connection, &question.condition);
    found = jobs ? slurm_list_pop(jobs) : NULL;
    if (!found) {
        code = database_fail(e, "know it", job);
        goto out;
    }
    if (found->admin_comment && *found->admin_comment)
        *text = strdup(found->admin_comment);
    slurmdb_destroy_job_rec(found);
out:
    if (jobs)
        slurm_list_destroy(jobs);
    question_clear(&question);
    return code;
}

int database_store(uint32_t job, char *text, struct fl_error *e)
{
    slurmdb_job_rec_t change = {
        .admin_comment = text, .array_task_id = NO_VAL, .derived_ec = NO_VAL, .lft = NO_VAL};
    struct question question;
    list_handle changed = NULL;
    int code = question_begin(&question, job, e);

    if (code)
        goto out;
    changed = slurmdb_job_modify(question.connection, &question.condition, &change);
    if (!changed || !slurm_list_count(changed))
        code = database_fail(e, "take its admin_comment", job);
    else if (slurmdb_connection_commit(question.connection, true))
        code = database_fail(e, "keep its admin_comment", job);
out:
    if (changed)
        slurm_list_destroy(changed);
    question_clear(&question);
    return code;
}
