// SPDX-License-Identifier: Apache-2.0
// plugin/controller: what slurmctld says of a job is told whole or not at all, beside a slurmctld
// of the test's own.
#include "unit/check.h"

#include "plugin/controller.h"
#include "plugin/database.h"

#include <errno.h>
#include <slurm/slurm.h>
#include <stdlib.h>

static slurm_job_info_t job;
static int answers; // whether slurmctld does

int slurm_load_job(job_info_msg_t **out, uint32_t id, uint16_t flags)
{
    (void)id;
    (void)flags;
    if (!answers)
        return -1;
    *out = calloc(1, sizeof **out);
    (*out)->record_count = 1;
    (*out)->job_array = &job;
    return 0;
}

void slurm_free_job_info_msg(job_info_msg_t *jobs)
{
    free(jobs);
}

int slurm_get_errno(void)
{
    return 5;
}

char *slurm_strerror(int code)
{
    (void)code;
    return (char *)"no answer";
}

void slurm_init_job_desc_msg(job_desc_msg_t *update)
{
    memset(update, 0, sizeof *update);
}

int slurm_update_job(job_desc_msg_t *update)
{
    (void)update;
    return -1;
}

#ifdef HAVE_SLURM_KILL_FLAGS
int slurm_kill_job_step(uint32_t id, uint32_t step, uint16_t signal, uint16_t flags)
{
    (void)flags;
#else
int slurm_kill_job_step(uint32_t id, uint32_t step, uint16_t signal)
{
#endif
    (void)id;
    (void)step;
    (void)signal;
    return -1;
}

int database_load(uint32_t id, char **text, struct fl_error *e)
{
    (void)text;
    return error_set(e, -EIO, "job %u: no database", id);
}

int database_store(uint32_t id, char *text, struct fl_error *e)
{
    (void)text;
    return error_set(e, -EIO, "job %u: no database", id);
}

static void names(void **state)
{
    static char longest[CONTROLLER_NAME + 1];
    struct controller_job out;
    struct fl_error e;
    (void)state;

    check_error(controller_job_get(77, &out, &e), &e, "job 77: cannot be loaded: no answer");
    answers = 1;
    job = (slurm_job_info_t){.job_id = 77, .partition = (char *)"gpu", .qos = (char *)"high"};
    check_ok(controller_job_get(77, &out, &e), &e);
    assert_string_equal(out.partition, "gpu");
    assert_string_equal(out.account, "");
    assert_string_equal(out.qos, "high");
    check_error(controller_job_get(78, &out, &e), &e, "job 78: slurmctld does not know it");
    // Cut, or with a tab in it, it would be another's name, whose limits may be wider.
    job.account = memset(longest, 'a', CONTROLLER_NAME);
    check_error(controller_job_get(77, &out, &e), &e,
                "job 77: a partition, account or QOS of more");
    longest[CONTROLLER_NAME - 1] = 0;
    check_ok(controller_job_get(77, &out, &e), &e);
    assert_string_equal(out.account, longest);
    job.account = (char *)"a\thigh";
    check_error(controller_job_get(77, &out, &e), &e, "with a tab or newline in its name");
    job.account = NULL;
    job.qos = (char *)"low\nhigh";
    check_error(controller_job_get(77, &out, &e), &e, "with a tab or newline in its name");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names)};

    return cmocka_run_group_tests_name("controller", tests, NULL, NULL);
}
