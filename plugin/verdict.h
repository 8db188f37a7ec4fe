// SPDX-License-Identifier: Apache-2.0
// What samples of a step's device memory mean under its cap: a pure function of samples and time.
#ifndef FL_PLUGIN_VERDICT_H
#define FL_PLUGIN_VERDICT_H

#include "watch.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define VERDICT_FAILURES 3    // samples in a row that failed: it cannot be measured
#define VERDICT_TERM_MS  2000 // between SIGTERM and SIGKILL

// What a process of the step holds on a device.
struct use {
    uint32_t device;
    pid_t pid;
    int32_t rank; // FAMILY_NO_RANK: all such processes count together, as one more rank
    uint64_t bytes;
};

// The highest sum of one rank on one device in a sample, and the largest process in it.
struct use_sum {
    uint32_t device;
    int32_t rank;
    uint64_t bytes;
    pid_t largest;
    uint64_t largest_bytes;
};

enum verdict_call {
    CALL_NOTHING,
    CALL_TELL,  // over the cap for the first time: say so
    CALL_BLIND, // cannot measure, for the first time in a row: say so
    CALL_TERM,  // over the cap beyond the grace, or blind where that must not be: SIGTERM, once
    CALL_KILL,  // SIGKILL, with every sample from then on
};

struct verdict {
    uint64_t cap_bytes; // 0: none
    uint32_t grace_ms;
    enum watch_action action;
    enum watch_failure on_failure;

    bool told, over, blind, ended;
    int64_t sample_ms, ended_ms; // when the last sample was and the step was ended
    int64_t over_ms;             // in total: leaving the cap and coming back wins no new grace
    uint32_t failures;           // in a row
};

// rank's highest sum over the devices. false: nothing of it is there.
bool uses_sum(const struct use *uses, size_t count, int32_t rank, struct use_sum *sum);

// After a sample at now_ms of a clock that only goes forward. *worst: the highest sum of any rank,
// bytes 0 when nothing is there.
enum verdict_call verdict_sample(struct verdict *verdict, const struct use *uses, size_t count,
                                 int64_t now_ms, struct use_sum *worst);
// After a sample that failed. final: no later one can succeed.
enum verdict_call verdict_failure(struct verdict *verdict, bool final, int64_t now_ms);

#endif
