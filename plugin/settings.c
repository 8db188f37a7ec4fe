// SPDX-License-Identifier: Apache-2.0
// What an administrator says behind the plugin's path in plugstack.conf.
#include "settings.h"

#include "base/bytes.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

// The index of a word among names; -1: none of them.
static int word_find(const char *word, const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(word, names[i]))
            return i;
    return -1;
}

static int grace_parse(const char *text, uint32_t *ms)
{
    char *rest;
    double seconds = isdigit((unsigned char)*text) ? strtod(text, &rest) : -1;

    if (!(seconds >= 0 && seconds <= WATCH_GRACE_MAX_MS / 1000) || *rest)
        return -1;
    *ms = (uint32_t)(seconds * 1000);
    return 0;
}

// Of the cap on device memory. 1: none of its arguments.
static int cap_parse(const char *argument, struct settings *settings, struct fl_error *e)
{
    static const char *const actions[] = {"refuse", "kill", "warn"}, *const failures[] = {
                                                                         "continue", "end"};
    int found = 0;

    if (!strncmp(argument, "max_device_memory=", 18)) {
        if (bytes_parse(argument + 18, &settings->max_device_memory, e))
            return error_prefix(e, "plugstack.conf: max_device_memory");
    } else if (!strncmp(argument, "action=", 7)) {
        found = word_find(argument + 7, actions, WATCH_ACTIONS);
        settings->action = (enum watch_action)found;
    } else if (!strncmp(argument, "on_failure=", 11)) {
        found = word_find(argument + 11, failures, WATCH_FAILURES);
        settings->on_failure = (enum watch_failure)found;
    } else if (!strncmp(argument, "grace=", 6))
        found = grace_parse(argument + 6, &settings->grace_ms);
    else
        return 1;
    if (found < 0)
        return error_set(e, -EINVAL,
                         "plugstack.conf: '%s': expected action=refuse, kill or warn, "
                         "on_failure=continue or end, grace=SECONDS up to %d",
                         argument, WATCH_GRACE_MAX_MS / 1000);
    return 0;
}

int settings_parse(int argc, char *const *argv, struct settings *settings, struct fl_error *e)
{
    *settings = (struct settings){.core = FL_CORE_PATH,
                                  .account = FL_ACCOUNT_PATH,
                                  .watch = FL_WATCH_PATH,
                                  .on_failure = WATCH_FAILURES,
                                  .grace_ms = SETTINGS_GRACE_MS};
    for (int i = 0, code; i < argc; i++) {
        if (!strncmp(argv[i], "core=/", 6))
            settings->core = argv[i] + 5;
        else if (!strncmp(argv[i], "account=/", 9))
            settings->account = argv[i] + 8;
        else if (!strncmp(argv[i], "watch=/", 7))
            settings->watch = argv[i] + 6;
        else if (!strncmp(argv[i], "policy=/", 8))
            settings->policy = argv[i] + 7;
        else if (!strncmp(argv[i], "nvml=/", 6))
            settings->nvml = argv[i] + 5;
        else if ((code = cap_parse(argv[i], settings, e)) < 0)
            return code;
        else if (code)
            return error_set(
                e, -EINVAL,
                "plugstack.conf: argument '%s' is not core=/PATH, account=/PATH, "
                "watch=/PATH, nvml=/PATH, policy=/PATH or one of max_device_memory, action, "
                "on_failure and grace; correct it",
                argv[i]);
    }
    if (settings->on_failure == WATCH_FAILURES) // not said
        settings->on_failure = settings->policy ? WATCH_END : WATCH_CONTINUE;
    if (settings->policy && settings->max_device_memory)
        return error_set(
            e, -EINVAL,
            "plugstack.conf: max_device_memory beside policy=%s: write the cap into the "
            "policy",
            settings->policy);
    return 0;
}

bool settings_need_policy(int argc, char *const *argv)
{
    bool needed = false;

    for (int i = 0; i < argc; i++) {
        if (!strcmp(argv[i], "on_failure=continue"))
            return false;
        needed |= !strncmp(argv[i], "policy=", 7);
    }
    return needed;
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

static int file_trusted(const char *path, bool program, struct fl_error *e)
{
    char *real;
    struct stat s;
    int code;

    if (lstat(path, &s))
        return error_set(e, -errno,
                         "%s: %s; install fp8-lora on this node or correct "
                         "plugstack.conf",
                         path, strerror(errno));
    if (!S_ISREG(s.st_mode) || (program && !(s.st_mode & S_IXUSR)))
        return error_set(e, -EACCES, "%s: not %s; correct plugstack.conf", path,
                         program ? "an executable file" : "a file (a link to one does not do)");
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

int settings_trusted(const char *path, struct fl_error *e)
{
    return file_trusted(path, true, e);
}

int settings_trusted_file(const char *path, struct fl_error *e)
{
    return file_trusted(path, false, e);
}
