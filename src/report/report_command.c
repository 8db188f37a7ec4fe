// SPDX-License-Identifier: Apache-2.0
// `fp8-lora report`: what a job's ranks used, from Slurm's accounting.
#include "report/report_command.h"

#include "base/log.h"
#include "report/comment.h"
#include "report/sacct.h"
#include "report/table.h"

#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct request {
    char job[32];
    long step; // -1: all
    bool json;
};

static void usage(FILE *out)
{
    fputs("usage: fp8-lora report [--json] JOBID[.STEP]\n"
          "\n"
          "Prints what every rank of a job planned and used, from Slurm's accounting.\n"
          "\n"
          "  --json   print JSON\n",
          out);
}

// 1: the answer was printed.
static int options_read(int argc, char **argv, struct request *request, struct fl_error *e)
{
    enum { JSON = 1, HELP };
    static const struct option options[] = {
        {"json", no_argument, NULL, JSON},
        {"help", no_argument, NULL, HELP},
        {NULL, 0, NULL, 0},
    };
    const char *dot;
    int option;

    opterr = 0;
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (option) {
        case JSON:
            request->json = true;
            break;
        case 'h':
        case HELP:
            usage(stdout);
            return 1;
        default:
            return error_set(e, -EINVAL, "unknown option '%.80s': see fp8-lora report --help",
                             argv[optind - 1]);
        }
    }
    if (optind + 1 != argc)
        return error_set(e, -EINVAL, "give one job number: fp8-lora report 1234");
    dot = strchrnul(argv[optind], '.');
    request->step = -1;
    if (*dot) {
        char *rest;
        request->step = strtol(dot + 1, &rest, 10);
        if (rest == dot + 1 || *rest || request->step < 0)
            return error_set(e, -EINVAL, "'%.40s': a step is a number, such as 1234.0",
                             argv[optind]);
    }
    if (snprintf(request->job, sizeof request->job, "%.*s", (int)(dot - argv[optind]),
                 argv[optind]) >= (int)sizeof request->job)
        return error_set(e, -EINVAL, "'%.40s' is no job number", argv[optind]);
    return 0;
}

static bool step_wanted(const char *key, long wanted, unsigned *step, unsigned *restart)
{
    *step = *restart = 0;
    return sscanf(key, "%*u.%u.%u", step, restart) == 2 && (wanted < 0 || (long)*step == wanted);
}

static int steps_print(const struct request *request, const struct sacct_job *job, json_t *steps,
                       struct fl_error *e)
{
    json_t *wanted = json_object(), *step;
    unsigned number, restart;
    json_int_t tasks;
    const char *key;
    int code = 0;

    json_object_foreach(steps, key, step) if (step_wanted(key, request->step, &number, &restart))
        json_object_set(wanted, key, step);
    if (!json_object_size(wanted) && request->step < 0) {
        code = error_set(e, -ENOENT, "job %s: its admin_comment names no step of fp8-lora",
                         request->job);
    } else if (!json_object_size(wanted)) {
        code = error_set(e, -ENOENT, "job %s: no record of step %ld", request->job, request->step);
    } else if (request->json) {
        json_t *root = json_pack("{s:s%, s:s%, s:s%, s:O}", "job", job->id, strlen(job->id),
                                 "state", job->state, strlen(job->state), "exit_code",
                                 job->exit_code, strlen(job->exit_code), "steps", wanted);
        json_dumpf(root, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(6));
        putchar('\n');
        json_decref(root);
    } else {
        printf("job %s: %s, exit code %s\n", job->id, job->state, job->exit_code);
        json_object_foreach(wanted, key, step)
        {
            (void)step_wanted(key, -1, &number, &restart);
            tasks = json_integer_value(json_object_get(step, "tasks"));
            printf("\nstep %u%s: %lld rank%s\n", number, restart ? " after a restart" : "",
                   (long long)tasks, tasks == 1 ? "" : "s");
            table_print(stdout, step);
        }
    }
    json_decref(wanted);
    return code;
}

int report_command(int argc, char **argv)
{
    struct request request = {0};
    struct sacct_job job = {0};
    struct fl_error e;
    json_t *steps = NULL;
    int code;

    code = options_read(argc, argv, &request, &e);
    if (code > 0)
        return 0;
    if (code) {
        log_error("%s", e.text);
        return 2;
    }
    code = sacct_load(request.job, &job, &e);
    if (code)
        goto out;
    steps = comment_parse(job.admin_comment, &e);
    code = steps ? steps_print(&request, &job, steps, &e) : e.code;
    if (!steps && code == -EBADMSG)
        error_prefix(&e, "job %s", job.id);
    if (!steps && code == -ENOENT)
        error_set(&e, code,
                  "job %s (%s) has no record of fp8-lora: was it started with srun "
                  "--fp8-lora, and did a step end?",
                  job.id, job.state);
out:
    if (code)
        log_error("%s", e.text);
    json_decref(steps);
    sacct_free(&job);
    return code ? 1 : 0;
}
