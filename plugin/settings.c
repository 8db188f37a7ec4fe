// SPDX-License-Identifier: Apache-2.0
// What an administrator says behind the plugin's path in plugstack.conf.
#include "settings.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int settings_parse(int argc, char *const *argv, struct settings *settings, struct fl_error *e)
{
    *settings = (struct settings){.core = FL_CORE_PATH, .account = FL_ACCOUNT_PATH};
    for (int i = 0; i < argc; i++) {
        if (!strncmp(argv[i], "core=/", 6))
            settings->core = argv[i] + 5;
        else if (!strncmp(argv[i], "account=/", 9))
            settings->account = argv[i] + 8;
        else
            return error_set(e, -EINVAL,
                             "plugstack.conf: argument '%s' is not core=/PATH or "
                             "account=/PATH; correct it",
                             argv[i]);
    }
    return 0;
}

// Whoever may write a folder may replace what is in it, unless the folder is sticky as /tmp is.
static int folders_trusted(const char *path, struct fl_error *e)
{
    char folder[PATH_MAX];
    struct stat s;

    if (strlen(path) >= sizeof folder)
        return error_set(e, -ENAMETOOLONG, "%s: path too long", path);
    for (const char *end = path; end; end = strchr(end + 1, '/')) {
        size_t length = end == path ? 1 : (size_t)(end - path);
        memcpy(folder, path, length);
        folder[length] = 0;
        if (lstat(folder, &s))
            return error_set(e, -errno, "%s: %s; correct plugstack.conf", folder, strerror(errno));
        if (s.st_uid ||
            (S_ISDIR(s.st_mode) && !(s.st_mode & S_ISVTX) && (s.st_mode & (S_IWGRP | S_IWOTH))))
            return error_set(e, -EPERM,
                             "%s: others than root may change this folder, and with it %s; install "
                             "fp8-lora in a folder of root's",
                             folder, path);
    }
    return 0;
}

int settings_trusted(const char *path, struct fl_error *e)
{
    char *real;
    struct stat s;
    int code;

    if (lstat(path, &s))
        return error_set(e, -errno,
                         "%s: %s; install fp8-lora on this node or correct "
                         "plugstack.conf",
                         path, strerror(errno));
    if (!S_ISREG(s.st_mode) || !(s.st_mode & S_IXUSR))
        return error_set(e, -EACCES, "%s: not an executable file; correct plugstack.conf", path);
    if (s.st_uid || (s.st_mode & (S_IWGRP | S_IWOTH)))
        return error_set(e, -EPERM,
                         "%s: others than root may replace it; chown root and chmod go-w", path);
    code = folders_trusted(path, e);
    if (code)
        return code;
    real = realpath(path, NULL); // where links among the folders lead
    if (!real)
        return error_set(e, -errno, "%s: %s; correct plugstack.conf", path, strerror(errno));
    code = folders_trusted(real, e);
    free(real);
    return code;
}
