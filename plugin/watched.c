// SPDX-License-Identifier: Apache-2.0
// In fp8-lora-watch: the step that is watched.
#include "watched.h"

#include "watch_wire.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int64_t watched_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int watched_create(const uint64_t *numbers, struct watched **out, struct fl_error *e)
{
    struct watched *w =
        mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0); // zero
    int proc, code;

    if (w == MAP_FAILED)
        return error_set(e, -ENOMEM, "no memory");
    w->job = (uint32_t)numbers[0];
    w->step = (uint32_t)numbers[1];
    w->node = (uint32_t)numbers[2];
    w->uid = (uid_t)numbers[3];
    w->stepd = (pid_t)numbers[4];
    w->cap_bytes = numbers[5];
    w->interval_ms = (uint32_t)numbers[6];
    w->grace_ms = (uint32_t)numbers[7];
    w->action = (enum watch_action)numbers[8];
    w->on_failure = (enum watch_failure)numbers[9];
    w->stepd_fd = (int)syscall(SYS_pidfd_open, w->stepd, 0);
    if (w->stepd_fd < 0)
        return error_set(e, -errno, "pidfd_open of slurmstepd %d: %s", w->stepd, strerror(errno));
    if (w->stepd != getppid())
        return error_set(e, -ESRCH, "process %d is not the slurmstepd that starts this", w->stepd);
    proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (proc < 0)
        return error_set(e, -errno, "/proc: %s", strerror(errno));
    code = family_init(&w->family, proc, w->job, w->step, w->node, w->uid, w->stepd, e);
    if (!code)
        code = record_open(WIRE_RECORD, &w->record, e);
    *out = w;
    return code;
}

static void slot_write(struct watched *watched, uint32_t index)
{
    (void)record_write(watched->record, &watched->slot[index]);
}

void watched_rank(struct watched *watched, pid_t pid, uint32_t rank)
{
    uint32_t index = watched->ranks;

    if (index == FAMILY_RANKS || rank >= record_ranks(watched->record))
        return;
    family_rank(&watched->family, pid, rank);
    watched->slot[index] = (struct record_rank){.rank = rank,
                                                .local_rank = index,
                                                .pid = pid,
                                                .exit_code = RECORD_EXIT_UNKNOWN,
                                                .cap = watched->cap_bytes,
                                                .watch = WATCH_STARTING};
    watched->ranks++;
    slot_write(watched, index);
}

void watched_state(struct watched *watched, enum watch_state state, enum watch_members members)
{
    for (uint32_t i = 0; i < watched->ranks; i++) {
        watched->slot[i].watch = state;
        watched->slot[i].members = members;
        slot_write(watched, i);
    }
}

void watched_cause(struct watched *watched, int32_t rank, const char *cause, bool ended)
{
    uint32_t index = 0;

    for (uint32_t i = 0; i < watched->ranks; i++)
        if ((int32_t)watched->slot[i].rank == rank)
            index = i;
    snprintf(watched->slot[index].cause, sizeof watched->slot[index].cause, "%s", cause);
    if (ended)
        watched->slot[index].state = RANK_FAILED;
    slot_write(watched, index);
}

void watched_measured(struct watched *watched, uint32_t index, uint64_t bytes, const char *gpu)
{
    struct record_rank *slot = &watched->slot[index];

    if (bytes <= slot->measured)
        return;
    slot->measured = bytes;
    snprintf(slot->gpu, sizeof slot->gpu, "%s", gpu);
    slot_write(watched, index);
}

// slurmstepd's standard error is that of the step's first local task. It is opened anew, so that
// no other's descriptor becomes non-blocking; that the pid is still slurmstepd's is asked
// afterwards.
void watched_tell(const struct watched *watched, const char *format, ...)
{
    char path[48], text[512] = "fp8-lora: ";
    size_t used = strlen(text);
    struct process now;
    va_list args;
    int fd;

    va_start(args, format);
    vsnprintf(text + used, sizeof text - used - 1, format, args);
    va_end(args);
    used = strlen(text);
    text[used++] = '\n';
    snprintf(path, sizeof path, "/proc/%d/fd/2", watched->stepd);
    fd = open(path, O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (!process_read(watched->family.proc, watched->stepd, &now) &&
        now.start == watched->family.stepd.start && write(fd, text, used) < 0) {
        // The line stands in the record as well.
    }
    close(fd);
}
