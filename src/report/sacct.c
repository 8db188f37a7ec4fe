// SPDX-License-Identifier: Apache-2.0
// One job's accounting record, asked of sacct.
#include "report/sacct.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUTPUT_LIMIT ((size_t)1 << 20) // bytes

extern char **environ;

static bool job_valid(const char *job)
{
    size_t digits = strspn(job, "0123456789");

    if (digits < 1 || digits > 10)
        return false;
    if (job[digits] == '_') {
        size_t task = strspn(job + digits + 1, "0123456789");
        return task >= 1 && task <= 10 && !job[digits + 1 + task];
    }
    return !job[digits];
}

// Everything fd gives up to the limit, NUL behind it; NULL without memory.
static char *output_read(int fd)
{
    size_t used = 0, room = 0;
    char *text = NULL;
    ssize_t got = 1;

    while (got > 0) {
        if (used + 1 >= room) {
            char *more = room < OUTPUT_LIMIT ? realloc(text, room + (room ? room : 8192)) : NULL;
            if (!more)
                break;
            text = more;
            room += room ? room : 8192;
        }
        got = read(fd, text + used, room - 1 - used);
        if (got < 0 && errno == EINTR)
            got = 1;
        else if (got > 0)
            used += (size_t)got;
    }
    if (text)
        text[used] = 0;
    return text;
}

int sacct_load(const char *job, struct sacct_job *out, struct fl_error *e)
{
    char jobs[64], *text;
    char *argv[] = {(char *)"sacct",
                    (char *)"--noheader",
                    (char *)"--parsable2",
                    (char *)"--allocations",
                    jobs,
                    (char *)"--format=JobID,State,ExitCode,AdminComment",
                    NULL};
    posix_spawn_file_actions_t actions;
    int fds[2], code, status;
    pid_t pid;

    if (!job_valid(job))
        return error_set(e, -EINVAL, "'%.40s' is no job number, such as 1234 or 1234_7", job);
    snprintf(jobs, sizeof jobs, "--jobs=%s", job);
    if (pipe2(fds, O_CLOEXEC))
        return error_set(e, -errno, "pipe: %s", strerror(errno));
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);
    code = -posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(fds[1]);
    if (code) {
        close(fds[0]);
        return error_set(e, code, "sacct: %s: run this where Slurm's commands are installed",
                         strerror(-code));
    }
    text = output_read(fds[0]);
    close(fds[0]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (!text || status) {
        free(text);
        return error_set(e, -EIO, "sacct failed: see its message above");
    }
    return sacct_parse(text, job, out, e);
}

// Cuts text at its first '|'; returns what is behind, or NULL.
static char *field_cut(char *text)
{
    char *bar = text ? strchr(text, '|') : NULL;

    if (!bar)
        return NULL;
    *bar = 0;
    return bar + 1;
}

int sacct_parse(char *text, const char *job, struct sacct_job *out, struct fl_error *e)
{
    size_t length = strlen(text);

    *out = (struct sacct_job){.text = text, .id = text};
    while (length && text[length - 1] == '\n')
        text[--length] = 0;
    if (!length) {
        sacct_free(out);
        return error_set(e, -ENOENT, "job %s: sacct shows no such job of yours", job);
    }
    out->state = field_cut(out->id);
    out->exit_code = field_cut(out->state);
    out->admin_comment = field_cut(out->exit_code);
    if (!out->admin_comment || strchr(out->id, '\n')) {
        sacct_free(out);
        return error_set(e, -EBADMSG, "job %s: sacct's answer has not the four fields asked for",
                         job);
    }
    if (!strncmp(out->id, job, strlen(job)) && out->id[strlen(job)] == '_') {
        error_set(e, -EINVAL, "job %s is an array: name one of its jobs, such as %.40s", job,
                  out->id);
        sacct_free(out);
        return e->code;
    }
    return 0;
}

void sacct_free(struct sacct_job *job)
{
    free(job->text);
    *job = (struct sacct_job){0};
}
