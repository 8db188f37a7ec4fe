// SPDX-License-Identifier: Apache-2.0
// In fp8-lora-watch: the step that is watched, in memory shared by the sampler and its guardian.
#ifndef FL_PLUGIN_WATCHED_H
#define FL_PLUGIN_WATCHED_H

#include "base/error.h"
#include "family.h"
#include "report/record.h"
#include "watch.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct watched {
    uint32_t job, step, node;
    uid_t uid;
    pid_t stepd;
    uint64_t cap_bytes;
    uint32_t interval_ms, grace_ms;
    enum watch_action action;
    enum watch_failure on_failure;
    char source[WATCH_SOURCE];

    int stepd_fd; // pidfd
    struct record *record;
    struct family family;
    uint32_t ranks;
    struct record_rank slot[FAMILY_RANKS]; // this node's ranks, in the order they were told
    _Atomic int64_t alive_ms;              // the sampler's last sign of life
};

int64_t watched_now_ms(void); // monotonic

// Maps shared memory for the step that numbers (WIRE_NUMBERS of them) describe, and opens its
// record and slurmstepd, which must be this process's parent.
int watched_create(const uint64_t *numbers, struct watched **out, struct fl_error *e);

void watched_rank(struct watched *watched, pid_t pid, uint32_t rank);

// Into every slot of the record.
void watched_state(struct watched *watched, enum watch_state state, enum watch_members members);
// Why, into the slot of this rank, or of the first one for FAMILY_NO_RANK. ended: the step fails
// for it.
void watched_cause(struct watched *watched, int32_t rank, const char *cause, bool ended);
void watched_measured(struct watched *watched, uint32_t index, uint64_t bytes, const char *gpu);

// One line into the step's standard error, where slurmstepd's own messages go. Never blocks.
void watched_tell(const struct watched *watched, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
