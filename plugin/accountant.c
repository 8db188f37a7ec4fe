// SPDX-License-Identifier: Apache-2.0
// fp8-lora-account: what slurmstepd has done for it by a program of its own, started as root with
// numbers for arguments and the record on descriptor 3.
#include "controller.h"
#include "helper.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int64_t number(const char *text)
{
    char *rest;
    long long value = isdigit((unsigned char)*text) ? strtoll(text, &rest, 10) : -1;

    return value >= 0 && !*rest ? value : -1;
}

// Slurm kills a step's tasks with all descendants of slurmstepd: be none.
static int family_leave(struct fl_error *e)
{
    pid_t child = fork();

    if (child < 0)
        return error_set(e, -errno, "fork: %s", strerror(errno));
    if (child)
        _exit(EXIT_SUCCESS);
    return 0;
}

// write JOB STEP RESTART NODE TASKS FAILED_MS: the record's ranks into the job's admin_comment.
static int command_write(const int64_t *numbers, struct fl_error *e)
{
    struct comment_node node = {
        .key = {(uint32_t)numbers[0], (uint32_t)numbers[1], (uint32_t)numbers[2]},
        .node = (uint32_t)numbers[3],
        .tasks = (uint32_t)numbers[4],
        .failed_ms = numbers[5],
    };
    struct record *record;
    json_t *entry;
    int code;

    alarm(HELPER_DEADLINE_S);
    code = record_open(HELPER_FD, &record, e);
    if (code)
        return code;
    entry = comment_entry(&node, record);
    code = controller_merge(&node.key, entry, (HELPER_DEADLINE_S - 3) * 1000, e);
    json_decref(entry);
    record_close(record);
    return code;
}

// end JOB STEP SLURMSTEPD NODES: in the background, waits until slurmstepd is gone or its tasks
// have had time to stop, then ends the step where it still runs: here, or on the other nodes.
static int command_end(const int64_t *numbers, struct fl_error *e)
{
    struct pollfd stepd = {.events = POLLIN};
    int null;

    stepd.fd = (int)syscall(SYS_pidfd_open, (pid_t)numbers[2], 0);
    if (stepd.fd < 0)
        return error_set(e, -errno, "slurmstepd %d: %s", (int)numbers[2], strerror(errno));
    null = open("/dev/null", O_WRONLY);
    fputs(HELPER_DONE "\n", stderr);
    dup2(null, STDERR_FILENO); // slurmstepd waits no longer
    if (poll(&stepd, 1, HELPER_GRACE_S * 1000) > 0 && numbers[3] == 1)
        return 0;
    alarm(HELPER_DEADLINE_S);
    return controller_end_step((uint32_t)numbers[0], (uint32_t)numbers[1], e);
}

// Nobody waits longer for an answer.
#define JOB_DEADLINE_S 3

// job JOB: the answer is its partition, account and QOS, a tab between.
static int command_job(const int64_t *numbers, struct fl_error *e)
{
    struct controller_job job;
    int code;

    alarm(JOB_DEADLINE_S);
    code = controller_job_get((uint32_t)numbers[0], &job, e);

    if (code)
        return code;
    fprintf(stderr, HELPER_ANSWER "%s\t%s\t%s\n", job.partition, job.account, job.qos);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int numbers;
        int (*run)(const int64_t *numbers, struct fl_error *e);
    } commands[] = {{"write", 6, command_write}, {"end", 4, command_end}, {"job", 1, command_job}};
    struct fl_error e = {0};
    int64_t numbers[6];

    for (size_t c = 0; c < 3 && argc > 1; c++) {
        int good = !strcmp(argv[1], commands[c].name) && argc == 2 + commands[c].numbers;
        for (int i = 0; good && i < commands[c].numbers; i++)
            good = (numbers[i] = number(argv[2 + i])) >= 0;
        if (!good)
            continue;
        if (family_leave(&e) == 0 && commands[c].run(numbers, &e) == 0) {
            if (commands[c].run != command_job)
                fputs(HELPER_DONE "\n", stderr);
            return EXIT_SUCCESS;
        }
        fprintf(stderr, "%s\n", e.text);
        return EXIT_FAILURE;
    }
    fprintf(stderr,
            "started by the plugin: write JOB STEP RESTART NODE TASKS FAILED_MS, end JOB STEP "
            "SLURMSTEPD NODES, or job JOB\n");
    return EXIT_FAILURE;
}
