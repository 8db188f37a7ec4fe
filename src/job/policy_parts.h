// SPDX-License-Identifier: Apache-2.0
// Inside a policy: its sections as they stand in the file.
#ifndef FL_JOB_POLICY_PARTS_H
#define FL_JOB_POLICY_PARTS_H

#include "job/policy.h"

#define UNSET (-1)

struct roots {
    char **paths;
    size_t count;
    int line; // 0: not given
};

// A section, or the top of the file. line 0, or UNSET: not given.
struct section {
    enum policy_kind kind;
    char *name;
    uint64_t device_memory, host_memory, ranks;
    int device_line, host_line, ranks_line;
    int wrap, action, enforce, failure, interval_ms, grace_ms;
    struct roots model, output;
};

struct policy {
    char *name;                               // of the file, without its folder
    struct section sections[POLICY_SECTIONS]; // the first is the top
    int count;
};

// "partition", ...
const char *policy_kind_name(enum policy_kind kind);

#endif
