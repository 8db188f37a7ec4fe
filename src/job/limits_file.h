// SPDX-License-Identifier: Apache-2.0
// The limits in a sealed memfd: slurmstepd makes it as root, the trainer inherits it as the user.
#ifndef FL_JOB_LIMITS_FILE_H
#define FL_JOB_LIMITS_FILE_H

#include "job/limits.h"

#include <sys/types.h>

// A descriptor, closed on exec, of a memfd of the caller's that nobody can write, resize or unseal,
// at the number at or, at -1, at any. -EBUSY: another file has that number. Close it.
int limits_file_create(const struct limits *limits, int at, int *fd, struct fl_error *e);

// What the file at fd says; limits_clear() it. 1: no file is open there, and nothing is limited.
// -EPERM: a file that is not sealed in every way, or not owner's; -EINVAL: as limits_decode. The
// descriptor stays open, its offset where it was.
int limits_file_read(int fd, uid_t owner, struct limits *limits, struct fl_error *e);

#endif
