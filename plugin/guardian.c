// SPDX-License-Identifier: Apache-2.0
// In fp8-lora-watch: the process that sees the sampler die or hang, and does what the policy says.
#include "guardian.h"

#include "verdict.h"
#include "watch_wire.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOOK_MS 1000

static bool stepd_gone(const struct watched *watched, int wait_ms)
{
    struct pollfd stepd = {.fd = watched->stepd_fd, .events = POLLIN};

    return poll(&stepd, 1, wait_ms) > 0;
}

static void sampler_lost(struct watched *watched, const char *how)
{
    bool end = watched->on_failure == WATCH_END;
    char cause[RECORD_CAUSE];

    snprintf(cause, sizeof cause, "the watch over the device memory %s%s", how,
             end ? ", and the policy ends such steps" : "; its cap is not in force");
    watched_state(watched, WATCH_LOST, family_members(&watched->family));
    if (watched->ranks)
        watched_cause(watched, FAMILY_NO_RANK, cause, end);
    if (watched->cap_bytes || end)
        watched_tell(watched, "%s", cause);
    if (!end)
        return;
    family_signal(&watched->family, SIGTERM);
    for (int wait_ms = VERDICT_TERM_MS; !stepd_gone(watched, wait_ms); wait_ms = LOOK_MS)
        family_signal(&watched->family, SIGKILL);
}

static void guard(struct watched *watched, int sampler)
{
    struct pollfd fds[] = {{.fd = watched->stepd_fd, .events = POLLIN},
                           {.fd = sampler, .events = POLLIN}};

    while (poll(fds, 2, LOOK_MS) == 0 || (errno == EINTR && !fds[0].revents && !fds[1].revents))
        if (watched_now_ms() - atomic_load(&watched->alive_ms) > GUARDIAN_PATIENCE_MS) {
            (void)syscall(SYS_pidfd_send_signal, sampler, SIGKILL, NULL,
                          0); // it must not come back
            sampler_lost(watched, "hangs");
            return;
        }
    if (!stepd_gone(watched, 0))
        sampler_lost(watched, "was killed");
}

pid_t guardian_start(struct watched *watched)
{
    pid_t parent = getpid(), child;
    int sampler = (int)syscall(SYS_pidfd_open, parent, 0);

    if (sampler < 0)
        return -errno;
    child = fork();
    if (!child) {
        close(WIRE_SOCKET); // slurmstepd sees the sampler's end by it
        watched->family.spared[1] = getpid();
        guard(watched, sampler);
        _exit(EXIT_SUCCESS);
    }
    close(sampler);
    return child < 0 ? -errno : child;
}
