// SPDX-License-Identifier: Apache-2.0
// Whether a job stays within what the administrator allows it.
#include "train/allowed.h"

#include "base/bytes.h"
#include "base/memory.h"
#include "job/source.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

// Whether a real path is in one of the folders of a list, which ends at the line's end.
static bool within(const char *list, const char *path)
{
    for (size_t n; *list && *list != '\n'; list += n + (list[n] == ':')) {
        size_t root = n = strcspn(list, ":\n");
        while (root > 1 && list[root - 1] == '/')
            root--;
        if (root == 1 || (!strncmp(path, list, root) && (path[root] == 0 || path[root] == '/')))
            return true;
    }
    return false;
}

// In every list.
static bool within_all(const char *lists, const char *path)
{
    for (;;) {
        if (!within(lists, path))
            return false;
        lists += strcspn(lists, "\n");
        if (!*lists++)
            return true;
    }
}

// Where path is, or would be made: its links followed as far as it exists. free().
static char *real_path(const char *path)
{
    char *word = memory_string(path), *real = realpath(word, NULL), *slash;
    char *rest = memory_string("");

    while (!real && errno == ENOENT) {
        char *longer;
        slash = strrchr(word, '/');
        longer = memory_format("/%s%s", slash ? slash + 1 : word, rest);
        free(rest);
        rest = longer;
        if (slash)
            *slash = 0;
        real = realpath(slash ? (*word ? word : "/") : ".", NULL);
        if (!slash)
            break;
    }
    if (real) {
        char *whole = memory_format("%s%s", strcmp(real, "/") ? real : "", rest);
        free(real);
        real = whole;
    }
    free(rest);
    free(word);
    return real;
}

static int folder_check(const char *what, const char *folder, const char *lists, struct fl_error *e)
{
    char *real;
    int rc = 0;

    if (!lists)
        return 0;
    real = real_path(folder);
    if (!real || strstr(real, "/../") || !within_all(lists, real))
        rc = error_set(e, -EPERM, "%s: this site's policy allows %s only below %.*s", folder, what,
                       (int)strcspn(lists, "\n"), lists);
    free(real);
    return rc;
}

int allowed_check(const struct launch *launch, const struct spec *spec, const struct plan *plan,
                  int plan_code, struct fl_error *e)
{
    char need[BYTES_TEXT], cap[BYTES_TEXT];
    struct source source;
    int rc = plan_code;

    if (rc == -ENOSPC && launch->cap_source)
        return error_prefix(e, "%s", launch->cap_source);
    if (rc == 0 && launch->host_cap && plan->host_bytes > launch->host_cap)
        rc = error_set(
            e, -ENOSPC, "%s: the plan of %s of host memory a rank is above the cap of %s (%s)",
            spec->source, bytes_format(plan->host_bytes, need), bytes_format(launch->host_cap, cap),
            launch->host_source ? launch->host_source : LAUNCH_HOST_CAP_ENV);
    if (rc == 0)
        rc = source_parse(spec->model, &source, e);
    if (rc < 0)
        return rc;
    rc = folder_check("models", source.folder, launch->model_roots, e);
    source_clear(&source);
    return rc < 0 ? rc : folder_check("output", spec->output_dir, launch->output_roots, e);
}
