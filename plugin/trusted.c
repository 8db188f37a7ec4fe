// SPDX-License-Identifier: Apache-2.0
// Files that root may believe.
#include "trusted.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OTHERS (S_IWGRP | S_IWOTH)

// A name of the path: length bytes from at on.
struct name {
    const char *path, *at;
    size_t length;
    bool last;
};

// The next one; false: there is none.
static bool name_next(struct name *name)
{
    name->at += name->length;
    name->at += strspn(name->at, "/");
    name->length = strcspn(name->at, "/");
    name->last = name->length && !name->at[name->length + strspn(name->at + name->length, "/")];
    return name->length > 0;
}

static int folder_check(int fd, const struct name *name, struct fl_error *e)
{
    int shown = (int)(name->at - name->path + (ptrdiff_t)name->length);
    struct stat s;

    if (fstat(fd, &s))
        return error_set(e, -errno, "%.*s: %s", shown, name->path, strerror(errno));
    if (s.st_uid || (!(s.st_mode & S_ISVTX) && (s.st_mode & OTHERS)))
        return error_set(e, -EPERM,
                         "%.*s: others than root may change this folder, and with it %s; use a "
                         "folder of root's",
                         shown, name->path, name->path);
    return 0;
}

int trusted_file(int fd, const char *path, struct fl_error *e)
{
    struct stat s;

    if (fstat(fd, &s))
        return error_set(e, -errno, "%s: %s", path, strerror(errno));
    if (!S_ISREG(s.st_mode))
        return error_set(
            e, -EINVAL, "%s: not a file (a link to one does not do); correct plugstack.conf", path);
    if (s.st_uid || (s.st_mode & OTHERS))
        return error_set(e, -EPERM,
                         "%s: others than root may replace it; chown root and chmod go-w", path);
    return 0;
}

// Why openat refused: errno, or that there is a link.
static int open_fail(int at, const char *text, const struct name *name, struct fl_error *e)
{
    int code = -errno, shown = (int)(name->at - name->path + (ptrdiff_t)name->length);
    struct stat s;

    if (!fstatat(at, text, &s, AT_SYMLINK_NOFOLLOW) && S_ISLNK(s.st_mode)) {
        if (name->last)
            return error_set(e, -EINVAL,
                             "%s: not a file (a link to one does not do); correct plugstack.conf",
                             name->path);
        return error_set(e, -EINVAL,
                         "%.*s: a link; write the folder it leads to into plugstack.conf", shown,
                         name->path);
    }
    return error_set(e, code, "%.*s: %s; correct plugstack.conf", shown, name->path,
                     strerror(-code));
}

int trusted_open(const char *path, int *fd, struct fl_error *e)
{
    struct name name = {.path = path, .at = path};
    char text[NAME_MAX + 1];
    int at = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC), next, code;

    if (at < 0)
        return error_set(e, -errno, "/: %s", strerror(errno));
    if (*path != '/') {
        close(at);
        return error_set(e, -EINVAL, "%s: not an absolute path; correct plugstack.conf", path);
    }
    name.length = 1; // "/" itself
    code = folder_check(at, &name, e);
    name.length = 0;
    while (!code && !name.last && name_next(&name)) {
        if (name.length >= sizeof text)
            code = error_set(e, -ENAMETOOLONG, "%s: a name too long; correct plugstack.conf", path);
        else if (name.at[0] == '.' && (name.length == 1 || (name.length == 2 && name.at[1] == '.')))
            code = error_set(e, -EINVAL, "%s: a path without . and .. is needed in plugstack.conf",
                             path);
        if (code)
            break;
        memcpy(text, name.at, name.length);
        text[name.length] = 0;
        next = openat(at, text,
                      (name.last ? O_RDONLY | O_NONBLOCK | O_NOCTTY : O_PATH | O_DIRECTORY) |
                          O_NOFOLLOW | O_CLOEXEC);
        if (next < 0) {
            code = open_fail(at, text, &name, e);
            break;
        }
        close(at);
        at = next;
        code = name.last ? trusted_file(at, path, e) : folder_check(at, &name, e);
    }
    if (!code && !name.last)
        code = error_set(e, -EINVAL, "%s: not a file; correct plugstack.conf", path);
    if (code)
        close(at);
    else
        *fd = at;
    return code;
}
