// SPDX-License-Identifier: Apache-2.0
// In slurmstepd: starts, feeds and stops fp8-lora-watch.
#include "watch.h"

#include "settings.h"
#include "trusted.h"
#include "watch_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define STOP_MS 1000

struct watch {
    int socket;
    struct record *record;
    enum watch_failure on_failure;
    bool lost;
};

static int request_check(const struct watch_request *r, struct fl_error *e)
{
    int code;

    if (!r->interval_ms || r->interval_ms > WATCH_INTERVAL_MAX_MS)
        return error_set(e, -EINVAL, "watch: a sample every %u ms, expected 1 to %u",
                         r->interval_ms, WATCH_INTERVAL_MAX_MS);
    if (r->grace_ms > WATCH_GRACE_MAX_MS)
        return error_set(e, -EINVAL, "watch: a grace of %u ms, expected at most %u", r->grace_ms,
                         WATCH_GRACE_MAX_MS);
    if (r->action >= WATCH_ACTIONS || r->on_failure >= WATCH_FAILURES)
        return error_set(e, -EINVAL, "watch: action %d, on failure %d: no such thing",
                         (int)r->action, (int)r->on_failure);
    code = settings_trusted(r->program, e);
    return code || !r->nvml ? code : settings_trusted_file(r->nvml, e);
}

static void message_send(const struct watch *watch, const struct wire_message *message)
{
    (void)send(watch->socket, message, sizeof *message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static int program_run(const struct watch_request *r, int socket, int record, int library,
                       struct fl_error *e)
{
    const unsigned long long numbers[WIRE_NUMBERS] = {
        r->job,       r->step,        r->node,     r->uid,    (unsigned long long)r->stepd,
        r->cap_bytes, r->interval_ms, r->grace_ms, r->action, r->on_failure};
    char text[WIRE_NUMBERS][24], *argv[WIRE_NUMBERS + 2] = {(char *)"fp8-lora-watch"};
    const int fds[] = {socket, record, library};

    for (int i = 0; i < WIRE_NUMBERS; i++) {
        snprintf(text[i], sizeof text[i], "%llu", numbers[i]);
        argv[1 + i] = text[i];
    }
    return helper_run(r->program, argv, false, fds, library >= 0 ? 3 : 2, e);
}

int watch_start(const struct watch_request *request, struct watch **out, struct fl_error *e)
{
    struct wire_message message = {.kind = WIRE_TELLS_SOURCE};
    int sockets[2] = {-1, -1}, record = -1, library = -1, code = request_check(request, e);
    struct watch *watch;

    if (code)
        return code;
    watch = calloc(1, sizeof *watch);
    if (!watch)
        return error_set(e, -ENOMEM, "watch: no memory");
    watch->on_failure = request->on_failure;
    watch->socket = -1;
    code = record_create(request->ranks, &watch->record, &record, e);
    if (code)
        goto out;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets)) {
        code = error_set(e, -errno, "watch: socketpair: %s", strerror(errno));
        goto out;
    }
    watch->socket = sockets[0];
    if (request->nvml) {
        library = open(request->nvml, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (library < 0) {
            code = error_set(e, -errno, "%s: %s", request->nvml, strerror(errno));
            goto out;
        }
        code = trusted_file(library, request->nvml, e); // the one that was opened
        if (code)
            goto out;
    }
    snprintf(message.text, sizeof message.text, "%s", request->source ? request->source : "");
    message_send(watch, &message);
    code = program_run(request, sockets[1], record, library, e);
out:
    if (library >= 0)
        close(library);
    if (record >= 0)
        close(record);
    if (sockets[1] >= 0)
        close(sockets[1]);
    if (code)
        watch_stop(watch);
    else
        *out = watch;
    return code;
}

void watch_task(struct watch *watch, pid_t pid, uint32_t rank)
{
    struct wire_message message = {.kind = WIRE_TELLS_RANK, .rank = rank, .pid = pid};

    message_send(watch, &message);
}

bool watch_rank(const struct watch *watch, uint32_t rank, struct record_rank *values)
{
    if (record_read(watch->record, rank, values)) {
        if (!watch->lost)
            return false;
        *values = (struct record_rank){.rank = rank};
    }
    if (watch->lost)
        values->watch = WATCH_LOST;
    return true;
}

bool watch_ends(const struct watch *watch, uint32_t *rank)
{
    struct record_rank slot;

    for (*rank = 0; watch && *rank < record_ranks(watch->record); (*rank)++)
        if (!record_read(watch->record, *rank, &slot) && slot.state == RANK_FAILED)
            return true;
    return false;
}

bool watch_lost(struct watch *watch)
{
    struct pollfd end = {.fd = watch->socket, .events = POLLIN};

    if (poll(&end, 1, 0) > 0) // the watch never writes: its end is closed
        watch->lost = true;
    return watch->lost;
}

bool watch_must_end(const struct watch *watch)
{
    return watch->lost && watch->on_failure == WATCH_END;
}

void watch_stop(struct watch *watch)
{
    struct pollfd end;

    if (!watch)
        return;
    if (watch->socket >= 0) {
        end = (struct pollfd){.fd = watch->socket, .events = POLLIN};
        shutdown(watch->socket, SHUT_WR);
        (void)poll(&end, 1, STOP_MS);
        close(watch->socket);
    }
    record_close(watch->record);
    free(watch);
}
