// SPDX-License-Identifier: Apache-2.0
// What a policy leaves to the trainer to hold, as bytes that slurmstepd hands over to it.
//
// The bytes are LIMITS_MAGIC, a version, numbers in a fixed layout of the host's byte order, and
// then texts, each ended by a NUL: a source for each number, and a list of roots as its source and
// its paths. Both sides are built from this file; neither trusts the other's bytes.
#ifndef FL_JOB_LIMITS_H
#define FL_JOB_LIMITS_H

#include "base/error.h"
#include "job/policy.h"

#define LIMITS_FD        200 // where the trainer finds them: no environment tells it
#define LIMITS_BYTES_MAX (256 * 1024)

// All zero: nothing is limited.
struct limits {
    struct policy_limit device, host, ranks;     // bytes of a rank, bytes of a rank, ranks; 0: none
    enum policy_action action;                   // over one of these; refused roots always refuse
    const struct policy_roots *models, *outputs; // lists, in each of which a path must be
    int model_lists, output_lists;
    void *memory; // of decoded limits; NULL: everything is borrowed
};

// Into bytes (free() them). Borrowed limits are those of a policy_decision. Errors: -E2BIG: more
// than LIMITS_BYTES_MAX, -ENOMEM.
int limits_encode(const struct limits *limits, void **bytes, size_t *size, struct fl_error *e);

// From any bytes. -EINVAL: no limits, or not of this version. limits_clear() what was taken.
int limits_decode(const void *bytes, size_t size, struct limits *limits, struct fl_error *e);
void limits_clear(struct limits *limits);

#endif
