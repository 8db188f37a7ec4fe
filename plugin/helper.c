// SPDX-License-Identifier: Apache-2.0
// Runs a root program of ours outside slurmstepd.
#include "helper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int attributes_fill(posix_spawnattr_t *attributes)
{
    sigset_t none, all;

    sigemptyset(&none);
    sigfillset(&all);
    return posix_spawnattr_setsigmask(attributes, &none) ||
           posix_spawnattr_setsigdefault(attributes, &all) ||
           posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                                    POSIX_SPAWN_SETSID);
}

// The descriptors go through numbers above those they must not collide with.
static int actions_fill(posix_spawn_file_actions_t *actions, const int *fds, int count,
                        int errors_fd)
{
    int failed = posix_spawn_file_actions_addopen(actions, 0, "/dev/null", O_RDONLY, 0) ||
                 posix_spawn_file_actions_addopen(actions, 1, "/dev/null", O_WRONLY, 0) ||
                 posix_spawn_file_actions_adddup2(actions, errors_fd, 2);

    for (int i = 0; i < count && !failed; i++)
        failed = posix_spawn_file_actions_adddup2(actions, fds[i], HELPER_FD + i);
    return failed || posix_spawn_file_actions_addclosefrom_np(actions, HELPER_FD + count);
}

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

// Reads what the helper says until it has ended or its time is over; without the last newline.
static void errors_read(int fd, int deadline_ms, char *text, size_t size)
{
    int64_t end = now_ms() + deadline_ms;
    size_t used = 0;

    for (int64_t left; (left = end - now_ms()) > 0;) {
        struct pollfd waiting = {.fd = fd, .events = POLLIN};
        char rest[256];
        bool room = used + 1 < size;
        ssize_t got;
        if (poll(&waiting, 1, (int)left) < 0 && errno != EINTR)
            break;
        if (!waiting.revents)
            continue;
        got = read(fd, room ? text + used : rest, room ? size - 1 - used : sizeof rest);
        if (got <= 0)
            break;
        used += room ? (size_t)got : 0;
    }
    text[used] = 0;
    text[strcspn(text, "\n")] = 0;
}

// Its last word, "" without one.
static int helper_talk(const char *path, char *const *argv, bool client, const int *fds, int count,
                       int deadline_ms, char *text, size_t size, struct fl_error *e)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    char conf[4096];
    char *environment[] = {NULL, NULL};
    const char *daemon_conf = client ? getenv("SLURM_CONF") : NULL;
    int pipe_fd[2] = {-1, -1}, high[HELPER_FDS_MAX], highs = 0, code;
    pid_t pid;

    if (daemon_conf && snprintf(conf, sizeof conf, "SLURM_CONF=%s", daemon_conf) < (int)sizeof conf)
        environment[0] = conf;
    if (posix_spawn_file_actions_init(&actions))
        return error_set(e, -ENOMEM, "%s: no memory", path);
    if (posix_spawnattr_init(&attributes)) {
        posix_spawn_file_actions_destroy(&actions);
        return error_set(e, -ENOMEM, "%s: no memory", path);
    }
    if (pipe2(pipe_fd, O_CLOEXEC)) {
        code = error_set(e, -errno, "%s: pipe: %s", path, strerror(errno));
        goto out;
    }
    while (highs < count && highs < HELPER_FDS_MAX &&
           (high[highs] = fcntl(fds[highs], F_DUPFD_CLOEXEC, 16)) >= 0)
        highs++;
    if (highs < count) {
        code = error_set(e, -errno, "%s: descriptors: %s", path, strerror(errno));
        goto out;
    }
    if (attributes_fill(&attributes) || actions_fill(&actions, high, highs, pipe_fd[1])) {
        code = error_set(e, -ENOMEM, "%s: no memory", path);
        goto out;
    }
    code = -posix_spawn(&pid, path, &actions, &attributes, argv, environment);
    if (code) {
        error_set(e, code, "%s: %s", path, strerror(-code));
        goto out;
    }
    close(pipe_fd[1]);
    pipe_fd[1] = -1;
    errors_read(pipe_fd[0], deadline_ms, text, size);
    kill(pid, SIGKILL); // it is over, or its time is
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        // slurmstepd must not find a child of which it knows nothing
    }
out:
    for (int i = 0; i < 2; i++)
        if (pipe_fd[i] >= 0)
            close(pipe_fd[i]);
    while (highs)
        close(high[--highs]);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return code;
}

int helper_run(const char *path, char *const *argv, bool client, const int *fds, int count,
               struct fl_error *e)
{
    char text[512];
    int code = helper_talk(path, argv, client, fds, count, (HELPER_DEADLINE_S + 1) * 1000, text,
                           sizeof text, e);

    if (!code && !*text)
        return error_set(e, -EAGAIN, "%s: ended without a word", path);
    if (!code && strcmp(text, HELPER_DONE))
        return error_set(e, -EIO, "%s: %s", path, text);
    return code;
}

int helper_ask(const char *path, char *const *argv, int deadline_ms, char *answer, size_t size,
               struct fl_error *e)
{
    char text[512];
    int code = helper_talk(path, argv, true, NULL, 0, deadline_ms, text, sizeof text, e);

    if (code)
        return code;
    if (strncmp(text, HELPER_ANSWER, strlen(HELPER_ANSWER)))
        return error_set(e, -EIO, "%s: %s", path, *text ? text : "no answer in time");
    snprintf(answer, size, "%s", text + strlen(HELPER_ANSWER));
    return 0;
}
