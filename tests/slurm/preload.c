// SPDX-License-Identifier: Apache-2.0
// A user's LD_PRELOAD library: hides from the trainer what slurmstepd handed over, and says so.
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HIDDEN 200

__attribute__((visibility("default"))) int fstat(int fd, struct stat *s)
{
    struct stat real;

    if (fd == HIDDEN) {
        fprintf(stderr, "preload: %s\n",
                syscall(SYS_fstat, fd, &real) ? "nothing to hide" : "the limits are hidden");
        errno = EBADF;
        return -1;
    }
    return (int)syscall(SYS_fstat, fd, s);
}
