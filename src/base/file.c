// SPDX-License-Identifier: Apache-2.0
// Whole files: read with a limit, written so that no reader ever sees half of one.
#include "base/file.h"

#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct file_writer {
    int fd;
    char *path;
    char *temporary;
};

static int fail(struct fl_error *e, int code, const char *path, const char *doing)
{
    bool full = code == -ENOSPC || code == -EDQUOT;

    return error_set(e, code, "%s: cannot %s: %s%s", path, doing, strerror(-code),
                     full ? "; free some space there or choose another folder" : "");
}

int file_read(const char *path, size_t limit_bytes, char **text, size_t *bytes, struct fl_error *e)
{
    struct stat st;
    char *data = NULL;
    size_t used = 0;
    int rc, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    *text = NULL;
    if (fd < 0)
        return error_set(e, -errno, "%s: cannot open: %s; check the path and its permissions",
                         *path ? path : "''", strerror(errno));
    if (fstat(fd, &st) < 0) {
        rc = fail(e, -errno, path, "stat");
        goto out;
    }
    if (!S_ISREG(st.st_mode)) {
        rc = error_set(e, -EINVAL, "%s: not a regular file", path);
        goto out;
    }
    if ((unsigned long long)st.st_size > limit_bytes) {
        rc = error_set(e, -EFBIG, "%s: %lld bytes, at most %zu are read", path,
                       (long long)st.st_size, limit_bytes);
        goto out;
    }
    data = memory_zeroed((size_t)st.st_size + 1, 1);
    while (used < (size_t)st.st_size) {
        ssize_t n = read(fd, data + used, (size_t)st.st_size - used);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            rc = fail(e, -errno, path, "read");
            goto out;
        }
        if (n == 0)
            break;
        used += (size_t)n;
    }
    data[used] = 0;
    *text = data;
    if (bytes)
        *bytes = used;
    data = NULL;
    rc = 0;
out:
    free(data);
    close(fd);
    return rc;
}

int file_writer_open(const char *path, struct file_writer **out, struct fl_error *e)
{
    struct file_writer *w = memory_zeroed(1, sizeof *w);
    int rc;

    *out = NULL;
    w->path = memory_string(path);
    w->temporary = memory_format("%s.tmp-%ld", path, (long)getpid());
    w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (w->fd < 0) {
        rc = fail(e, -errno, path, "create");
        free(w->path);
        free(w->temporary);
        free(w);
        return rc;
    }
    *out = w;
    return 0;
}

int file_writer_append(struct file_writer *w, const void *data, size_t bytes, struct fl_error *e)
{
    const char *p = data;

    while (bytes) {
        ssize_t n = write(w->fd, p, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(e, -errno, w->path, "write");
        p += n;
        bytes -= (size_t)n;
    }
    return 0;
}

static int folder_sync(const char *path)
{
    char folder[PATH_MAX];
    char *slash;
    int fd, rc = 0;

    snprintf(folder, sizeof folder, "%s", path);
    slash = strrchr(folder, '/');
    if (!slash)
        strcpy(folder, ".");
    else
        slash[slash == folder] = 0;
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (fsync(fd) < 0 && errno != EINVAL) // some file systems cannot sync a folder
        rc = -errno;
    close(fd);
    return rc;
}

static void writer_free(struct file_writer *w)
{
    free(w->path);
    free(w->temporary);
    free(w);
}

int file_writer_commit(struct file_writer *w, struct fl_error *e)
{
    int rc = 0;

    if (fsync(w->fd) < 0)
        rc = fail(e, -errno, w->path, "fsync");
    if (close(w->fd) < 0 && rc == 0)
        rc = fail(e, -errno, w->path, "close");
    if (rc == 0 && rename(w->temporary, w->path) < 0)
        rc = fail(e, -errno, w->path, "rename into place");
    if (rc < 0)
        unlink(w->temporary);
    else if ((rc = folder_sync(w->path)) < 0)
        fail(e, rc, w->path, "sync the folder of");
    writer_free(w);
    return rc;
}

void file_writer_abort(struct file_writer *w)
{
    if (!w)
        return;
    close(w->fd);
    unlink(w->temporary);
    writer_free(w);
}

int file_write(const char *path, const void *data, size_t bytes, struct fl_error *e)
{
    struct file_writer *w;
    int rc = file_writer_open(path, &w, e);

    if (rc < 0)
        return rc;
    rc = file_writer_append(w, data, bytes, e);
    if (rc < 0) {
        file_writer_abort(w);
        return rc;
    }
    return file_writer_commit(w, e);
}

int folder_writable(const char *path, struct fl_error *e)
{
    char part[PATH_MAX];
    int fd;

    if (!*path || strlen(path) >= sizeof part - 32)
        return error_set(e, -EINVAL, "output folder '%s': empty or too long", path);
    strcpy(part, path);
    for (char *c = part + 1; *c; c++) {
        if (*c != '/')
            continue;
        *c = 0;
        if (mkdir(part, 0777) < 0 && errno != EEXIST)
            return error_set(e, -errno,
                             "%s: cannot create the folder: %s; choose another output_dir", part,
                             strerror(errno));
        *c = '/';
    }
    if (mkdir(part, 0777) < 0 && errno != EEXIST)
        return error_set(e, -errno, "%s: cannot create the folder: %s; choose another output_dir",
                         part, strerror(errno));
    snprintf(part, sizeof part, "%s/.writable-%ld", path, (long)getpid());
    fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_set(e, -errno, "%s: not writable: %s; choose another output_dir", path,
                         strerror(errno));
    close(fd);
    unlink(part);
    return 0;
}
