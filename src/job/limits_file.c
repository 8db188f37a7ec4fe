// SPDX-License-Identifier: Apache-2.0
// The limits in a sealed memfd.
#include "job/limits_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEALS (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static int bytes_write(int fd, const char *bytes, size_t size)
{
    while (size) {
        ssize_t put = write(fd, bytes, size);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return put ? -errno : -EIO;
        bytes += put;
        size -= (size_t)put;
    }
    return fcntl(fd, F_ADD_SEALS, SEALS) ? -errno : 0;
}

// F_DUPFD takes the first free number from there on, so that no other file's is taken away.
static int number_take(int file, int at, int *fd, struct fl_error *e)
{
    int found = fcntl(file, F_DUPFD_CLOEXEC, at);

    if (found < 0)
        return error_set(e, -errno, "limits: descriptor %d: %s", at, strerror(errno));
    if (found != at) {
        close(found);
        return error_set(e, -EBUSY, "limits: descriptor %d is taken, by slurmd or another plugin",
                         at);
    }
    *fd = found;
    return 0;
}

int limits_file_create(const struct limits *limits, int at, int *fd, struct fl_error *e)
{
    void *bytes = NULL;
    size_t size;
    int file, code = limits_encode(limits, &bytes, &size, e);

    if (code)
        return code;
    file = memfd_create("fp8-lora-limits", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0) {
        code = error_set(e, -errno, "limits: memfd_create: %s", strerror(errno));
        goto out;
    }
    code = bytes_write(file, bytes, size);
    if (code)
        error_set(e, code, "limits: cannot write and seal %zu bytes: %s", size, strerror(-code));
    else if (at >= 0)
        code = number_take(file, at, fd, e);
    else
        *fd = file;
    if (code || at >= 0)
        close(file);
out:
    free(bytes);
    return code;
}

// The whole file, by offset: others of the node read through the same one.
static int bytes_read(int fd, char *bytes, size_t size)
{
    for (size_t used = 0; used < size;) {
        ssize_t got = pread(fd, bytes + used, size - used, (off_t)used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got ? -errno : -EIO;
        used += (size_t)got;
    }
    return 0;
}

int limits_file_read(int fd, uid_t owner, struct limits *limits, struct fl_error *e)
{
    struct stat s;
    char *bytes;
    int seals, rc;

    *limits = (struct limits){0};
    if (fstat(fd, &s))
        return errno == EBADF
                   ? 1
                   : error_set(e, -errno, "limits: descriptor %d: %s", fd, strerror(errno));
    seals = fcntl(fd, F_GET_SEALS);
    if (!S_ISREG(s.st_mode) || seals < 0 || (seals & SEALS) != SEALS || s.st_uid != owner)
        return error_set(e, -EPERM,
                         "limits: descriptor %d is not a sealed file of slurmstepd's: close it "
                         "before the trainer is started by hand",
                         fd);
    if (s.st_size <= 0 || s.st_size > LIMITS_BYTES_MAX)
        return error_set(e, -EINVAL, "limits: descriptor %d has %lld bytes, which no limits have",
                         fd, (long long)s.st_size);
    bytes = malloc((size_t)s.st_size);
    if (!bytes)
        return error_set(e, -ENOMEM, "limits: no memory");
    rc = bytes_read(fd, bytes, (size_t)s.st_size);
    if (rc)
        error_set(e, rc, "limits: descriptor %d: %s", fd, strerror(-rc));
    else
        rc = limits_decode(bytes, (size_t)s.st_size, limits, e);
    free(bytes);
    return rc;
}
