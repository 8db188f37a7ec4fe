// SPDX-License-Identifier: Apache-2.0
// fp8-lora-watch: measures what a step's processes hold on the node's devices, and ends a step that
// holds more than its cap. Started by slurmstepd as root; see watch_wire.h.
//
// Two processes: this one samples; its guardian does what the policy says when this one dies or
// hangs. Both leave slurmstepd's family, whose descendants Slurm kills with the step, and end when
// slurmstepd does: its pidfd says so, where PR_SET_PDEATHSIG would tell of the wrong parent.
#include "base/bytes.h"
#include "guardian.h"
#include "nvml.h"
#include "verdict.h"
#include "watch_wire.h"
#include "watched.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define USES_MAX     8192
#define LIMIT_TRIES  3
#define STARTS_MS    40000 // what the driver may take to start, beyond the guardian's patience
#define CGROUP_MOUNT "/sys/fs/cgroup"

struct sampler {
    struct watched *watched;
    struct verdict verdict;
    struct nvml *nvml; // NULL: there is none, see error
    struct fl_error error;
    pid_t guardian;
    uint32_t limited; // ranks whose cgroup has the driver's limit
    int limit_tries;  // left
    struct nvml_use all[USES_MAX];
    struct use ours[USES_MAX];
};

static int numbers_parse(int argc, char **argv, uint64_t *numbers)
{
    for (int i = 0; i < WIRE_NUMBERS; i++) {
        char *rest;
        if (argc != 1 + WIRE_NUMBERS || !isdigit((unsigned char)*argv[1 + i]))
            return -EINVAL;
        errno = 0;
        numbers[i] = strtoull(argv[1 + i], &rest, 10);
        if (*rest || errno)
            return -EINVAL;
    }
    return 0;
}

// ---- a sample

static int uses_take(struct sampler *s, size_t *count, struct fl_error *e)
{
    size_t all = 0;
    int code;

    *count = 0;
    if (!s->nvml) {
        *e = s->error;
        return e->code;
    }
    code = nvml_sample(s->nvml, s->all, USES_MAX, &all, e);
    for (size_t i = 0; i < all && !code; i++) {
        int32_t rank;
        if (!family_has(&s->watched->family, s->all[i].pid, &rank))
            continue;
        if (s->all[i].bytes == NVML_UNKNOWN)
            return error_set(e, -ENODATA, "NVML: %s: does not tell what process %d holds",
                             nvml_uuid(s->nvml, s->all[i].device), s->all[i].pid);
        s->ours[(*count)++] = (struct use){s->all[i].device, s->all[i].pid, rank, s->all[i].bytes};
    }
    return code;
}

// The driver's own limit on the cgroup that each rank has for itself.
static void limits_set(struct sampler *s)
{
    struct watched *watched = s->watched;
    char folder[1200];
    struct fl_error e;
    int code;

    while (s->nvml && watched->cap_bytes && watched->action != WATCH_WARN && s->limit_tries &&
           s->limited < watched->ranks) {
        size_t used = strlen(CGROUP_MOUNT);
        memcpy(folder, CGROUP_MOUNT, used);
        code =
            family_rank_cgroup(&watched->family, s->limited, folder + used, sizeof folder - used);
        if (!code && access(folder, F_OK)) // version 2 is mounted elsewhere, beside version 1
            code = -ENOENT;
        if (!code)
            code = nvml_limit(s->nvml, folder, watched->cap_bytes, &e);
        if (code) {
            s->limit_tries = code == -ENOSYS ? 0 : s->limit_tries - 1;
            return;
        }
        s->limited++;
    }
}

static enum watch_state state_of(const struct sampler *s, int code)
{
    if (code)
        return s->nvml && s->verdict.failures < VERDICT_FAILURES
                   ? (enum watch_state)s->watched->slot[0].watch
                   : WATCH_BLIND;
    if (!s->watched->cap_bytes)
        return WATCH_MEASURES;
    return s->limited == s->watched->ranks ? WATCH_LIMITS : WATCH_WATCHES;
}

// "over the cap of 80.00 GiB (plugstack.conf): process 4711 held 85.00 GiB on GPU-..."
static void over_print(const struct sampler *s, const struct use_sum *worst, const char *verb,
                       char *text, size_t size)
{
    char cap[BYTES_TEXT], held[BYTES_TEXT], largest[BYTES_TEXT], sum[64] = "";

    if (worst->bytes != worst->largest_bytes)
        snprintf(sum, sizeof sum, "its processes %s %s, of these ", verb,
                 bytes_format(worst->bytes, held));
    snprintf(text, size, "over the cap of %s (%s): %sprocess %d %s %s on %s",
             bytes_format(s->verdict.cap_bytes, cap), s->watched->source, sum, worst->largest, verb,
             bytes_format(worst->largest_bytes, largest), nvml_uuid(s->nvml, worst->device));
}

static void act(struct sampler *s, enum verdict_call call, const struct use_sum *worst,
                const struct fl_error *e)
{
    struct watched *watched = s->watched;
    char text[RECORD_CAUSE], who[32] = "a process of the step";

    if (worst->rank != FAMILY_NO_RANK)
        snprintf(who, sizeof who, "rank %d", worst->rank);
    switch (call) {
    case CALL_NOTHING:
        break;
    case CALL_TELL:
        over_print(s, worst, "holds", text, sizeof text);
        if (watched->action == WATCH_WARN)
            watched_tell(watched, "warning: %s is %s", who, text);
        else
            watched_tell(watched, "%s is %s; the step ends unless that falls within %.1f s", who,
                         text, watched->grace_ms / 1000.0);
        if (watched->action == WATCH_WARN) {
            over_print(s, worst, "held", text, sizeof text);
            watched_cause(watched, worst->rank, text, false);
        }
        break;
    case CALL_BLIND:
        if (!watched->cap_bytes)
            break;
        snprintf(text, sizeof text, "the cap is not in force: %.180s", e->text);
        watched_tell(watched, "warning: %s", text);
        watched_cause(watched, FAMILY_NO_RANK, text, false);
        break;
    case CALL_TERM:
        if (e->code)
            snprintf(text, sizeof text,
                     "device memory cannot be measured, and the policy ends such steps: %.180s",
                     e->text);
        else
            over_print(s, worst, "held", text, sizeof text);
        watched_cause(watched, worst->rank, text, true);
        watched_tell(watched, "the step is ended: %s%s%s", e->code ? "" : who, e->code ? "" : ": ",
                     text);
        family_signal(&watched->family, SIGTERM);
        break;
    case CALL_KILL:
        family_signal(&watched->family, SIGKILL);
        break;
    }
}

static void sample(struct sampler *s)
{
    struct watched *watched = s->watched;
    enum watch_members members = family_members(&watched->family);
    struct use_sum worst = {.rank = FAMILY_NO_RANK};
    struct fl_error e = {0};
    enum verdict_call call;
    size_t count;
    int code;

    if (members == MEMBERS_FAMILY)
        family_scan(&watched->family); // those that leave later are known by then
    limits_set(s);
    code = uses_take(s, &count, &e);
    call = code ? verdict_failure(&s->verdict, !s->nvml, watched_now_ms())
                : verdict_sample(&s->verdict, s->ours, count, watched_now_ms(), &worst);
    for (uint32_t i = 0; i < watched->ranks && !code; i++) {
        struct use_sum sum;
        if (uses_sum(s->ours, count, (int32_t)watched->slot[i].rank, &sum))
            watched_measured(watched, i, sum.bytes, nvml_uuid(s->nvml, sum.device));
    }
    watched_state(watched, state_of(s, code), members);
    act(s, call, &worst, &e);
}

// ---- the loop

// Every waiting message. false: slurmstepd has closed its end.
static bool messages_take(struct watched *watched)
{
    struct wire_message message;
    ssize_t got;

    while ((got = recv(WIRE_SOCKET, &message, sizeof message, MSG_DONTWAIT)) > 0) {
        if (got != sizeof message)
            continue;
        message.text[sizeof message.text - 1] = 0;
        if (message.kind == WIRE_TELLS_SOURCE)
            memcpy(watched->source, message.text, sizeof watched->source);
        else if (message.kind == WIRE_TELLS_RANK)
            watched_rank(watched, message.pid, message.rank);
    }
    return got < 0;
}

static void guardian_keep(struct sampler *s)
{
    if (s->guardian > 0 && waitpid(s->guardian, NULL, WNOHANG) == 0)
        return;
    s->guardian = guardian_start(s->watched);
    s->watched->family.spared[1] = s->guardian > 0 ? s->guardian : 0;
}

static void watch_step(struct sampler *s)
{
    struct watched *watched = s->watched;
    struct pollfd fds[] = {{.fd = watched->stepd_fd, .events = POLLIN},
                           {.fd = WIRE_SOCKET, .events = POLLIN}};
    int64_t next = 0;

    for (;;) {
        int64_t now = watched_now_ms(), wait = next - now;
        // Without a rank there is nothing to measure, and no standard error to say it on.
        int ready = poll(fds, 2, watched->ranks ? (int)(wait > 0 ? wait : 0) : 1000);
        if ((ready > 0 && fds[0].revents) || !messages_take(watched))
            return;
        atomic_store(&watched->alive_ms, watched_now_ms());
        if (!watched->ranks || watched_now_ms() < next)
            continue;
        guardian_keep(s);
        sample(s);
        next = watched_now_ms() + watched->interval_ms;
    }
}

int main(int argc, char **argv)
{
    static struct sampler sampler;
    uint64_t numbers[WIRE_NUMBERS];
    struct fl_error e = {0};
    struct watched *watched = NULL;
    int null, library = fcntl(WIRE_LIBRARY, F_GETFD) < 0 ? -1 : WIRE_LIBRARY; // before others open
    pid_t child;

    if (numbers_parse(argc, argv, numbers)) {
        fputs("started by the plugin: JOB STEP NODE UID SLURMSTEPD CAP_BYTES INTERVAL_MS GRACE_MS "
              "ACTION ON_FAILURE\n",
              stderr);
        return EXIT_FAILURE;
    }
    if (watched_create(numbers, &watched, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return EXIT_FAILURE;
    }
    child = fork();
    if (child)
        _exit(child < 0 ? EXIT_FAILURE : EXIT_SUCCESS);
    signal(SIGPIPE, SIG_IGN);
    null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    fputs(HELPER_DONE "\n", stderr);
    dup2(null, STDERR_FILENO); // slurmstepd waits no longer
    sampler.watched = watched;
    sampler.limit_tries = LIMIT_TRIES;
    sampler.verdict = (struct verdict){.cap_bytes = watched->cap_bytes,
                                       .grace_ms = watched->grace_ms,
                                       .action = watched->action,
                                       .on_failure = watched->on_failure};
    watched->family.spared[0] = getpid();
    atomic_store(&watched->alive_ms, watched_now_ms() + STARTS_MS);
    guardian_keep(&sampler);
    (void)nvml_open(library, &sampler.nvml, &sampler.error);
    watch_step(&sampler);
    if (sampler.guardian > 0)
        kill(sampler.guardian, SIGKILL);
    nvml_close(sampler.nvml);
    return EXIT_SUCCESS;
}
