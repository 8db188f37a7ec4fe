// SPDX-License-Identifier: Apache-2.0
// What an administrator allows a job: limits for all, and for a GPU model, partition, account or
// QOS.
#ifndef FL_JOB_POLICY_H
#define FL_JOB_POLICY_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define POLICY_BYTES_MAX 65536 // of the file
#define POLICY_SECTIONS  128
#define POLICY_ROOTS     64  // of one list
#define POLICY_SOURCE    96  // "policy.yaml:12, partition gpu"
#define POLICY_PATH      512 // of a root

// Whom a section is about.
enum policy_kind {
    POLICY_ALL,
    POLICY_GPU,
    POLICY_PARTITION,
    POLICY_ACCOUNT,
    POLICY_QOS,
    POLICY_KINDS
};

// Each from lenient to strict: of sections that differ the strictest counts.
enum policy_action { POLICY_WARN, POLICY_REFUSE, POLICY_KILL };
enum policy_enforce { ENFORCE_OPTION, ENFORCE_GPU_STEPS, ENFORCE_WHOLE_JOB };
enum policy_failure { FAILURE_CONTINUE, FAILURE_END };

struct policy; // opaque, owned by whoever parsed it

// name: the file's, for messages and sources. Refused, with the line: unknown and repeated keys,
// values out of range, roots that are not absolute, empty lists of them, nesting below a section,
// more than POLICY_BYTES_MAX bytes, NUL bytes, tags, anchors and aliases.
int policy_parse(const char *text, size_t bytes, const char *name, struct policy **out,
                 struct fl_error *e);
// The policy of a site without a file: a cap and what becomes of those above it.
struct policy *policy_of_cap(uint64_t max_device_memory, enum policy_action action,
                             enum policy_failure failure, int grace_ms, const char *source);
void policy_destroy(struct policy *policy); // NULL-safe

// Whether what it decides can depend on the job's partition, account or QOS.
bool policy_asks_job(const struct policy *policy);
bool policy_asks_gpu(const struct policy *policy);

// What is known of a job; NULL: not known, and then every section about such a thing applies. gpu:
// the model as the driver names it, in which a section's name is looked for without regard to case.
// partition: one, or several with commas between, of which each applies.
struct policy_facts {
    const char *gpu, *partition, *account, *qos;
};

// The sections about what facts do not know, in words: "GPU H100; account a, b"; "": none. Cut to
// size bytes, with "..." at its end.
void policy_unknown(const struct policy *policy, const struct policy_facts *facts, char *text,
                    size_t size);

struct policy_limit {
    uint64_t value; // 0: none
    char source[POLICY_SOURCE];
};

struct policy_roots {
    char source[POLICY_SOURCE];
    char *const *paths;
    size_t count;
};

// What applies: of every number the smallest, of every choice the strictest. Borrows from the
// policy.
struct policy_decision {
    struct policy_limit device_memory, host_memory, ranks; // bytes of a rank, bytes, ranks
    bool wrap; // programs other than the trainer may run
    enum policy_action action;
    enum policy_enforce enforce;
    enum policy_failure watch_failure;
    int watch_interval_ms, watch_grace_ms;
    struct policy_roots model_roots[POLICY_SECTIONS], output_roots[POLICY_SECTIONS];
    int model_root_count, output_root_count; // lists, each of which a path must be in
};
void policy_decide(const struct policy *policy, const struct policy_facts *facts,
                   struct policy_decision *decision);

#endif
