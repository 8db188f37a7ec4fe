// SPDX-License-Identifier: Apache-2.0
// Whether a job stays within what the administrator allows it.
#include "train/allowed.h"

#include "base/bytes.h"
#include "base/memory.h"
#include "job/source.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Whether a real path is in one of the folders.
static bool within(const struct policy_roots *roots, const char *path)
{
    for (size_t i = 0; i < roots->count; i++) {
        const char *root = roots->paths[i];
        size_t n = strlen(root);
        while (n > 1 && root[n - 1] == '/')
            n--;
        if (n == 1 || (!strncmp(path, root, n) && (path[n] == 0 || path[n] == '/')))
            return true;
    }
    return false;
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

// "/a:/b (policy.yaml:3, partition gpu)"
static int folder_refuse(const char *what, const char *folder, const struct policy_roots *roots,
                         struct fl_error *e)
{
    char list[512] = "";
    size_t used = 0;

    for (size_t i = 0; i < roots->count && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ":" : "",
                                 roots->paths[i]);
    return error_set(e, -EPERM, "%s: this site's policy allows %s only below %s%s (%s)", folder,
                     what, list, used < sizeof list ? "" : "...", roots->source);
}

// In every list.
static int folder_check(const char *what, const char *folder, const struct policy_roots *lists,
                        int count, struct fl_error *e)
{
    char *real;
    int rc = 0;

    if (!count)
        return 0;
    real = real_path(folder);
    for (int i = 0; i < count && rc == 0; i++)
        if (!real || strstr(real, "/../") || !within(&lists[i], real))
            rc = folder_refuse(what, folder, &lists[i], e);
    free(real);
    return rc;
}

// An error, or where the policy only warns a warning.
static int above(const struct limits *limits, const struct fl_error *why,
                 struct allowed_warnings *warnings, struct fl_error *e)
{
    if (limits->action == POLICY_WARN) {
        warnings->line[warnings->count++] = *why;
        return 0;
    }
    return error_set(e, why->code, "%s", why->text);
}

static int caps_check(const struct launch *launch, const struct spec *spec, const struct plan *plan,
                      struct allowed_warnings *warnings, struct fl_error *e)
{
    const struct limits *limits = &launch->limits;
    const struct policy_limit *host = &limits->host, *ranks = &limits->ranks;
    char need[BYTES_TEXT], cap[BYTES_TEXT];
    struct fl_error why;
    int rc = 0;

    // Under another action the plan was made under this cap.
    if (limits->action == POLICY_WARN &&
        plan_cap_check(spec, plan, limits->device.value, &why) < 0) {
        error_prefix(&why, "%s", limits->device.source);
        rc = above(limits, &why, warnings, e);
    }
    if (rc == 0 && host->value && plan->host_bytes > host->value) {
        error_set(&why, -ENOSPC,
                  "%s: the plan of %s of host memory a rank is above the cap of %s (%s)",
                  spec->source, bytes_format(plan->host_bytes, need),
                  bytes_format(host->value, cap), host->source);
        rc = above(limits, &why, warnings, e);
    }
    if (rc == 0 && ranks->value && (uint64_t)launch->world > ranks->value) {
        error_set(&why, -EPERM, "%d ranks are more than the %llu of max_ranks (%s): start fewer",
                  launch->world, (unsigned long long)ranks->value, ranks->source);
        rc = above(limits, &why, warnings, e);
    }
    return rc;
}

int allowed_check(const struct launch *launch, const struct spec *spec, const struct plan *plan,
                  int plan_code, struct allowed_warnings *warnings, struct fl_error *e)
{
    const struct limits *limits = &launch->limits;
    struct source source;
    int rc = plan_code;

    warnings->count = 0;
    if (rc == -ENOSPC && launch->cap_source)
        return error_prefix(e, "%s", launch->cap_source);
    if (rc == 0)
        rc = caps_check(launch, spec, plan, warnings, e);
    if (rc == 0)
        rc = source_parse(spec->model, &source, e);
    if (rc < 0)
        return rc;
    rc = folder_check("models", source.folder, limits->models, limits->model_lists, e);
    source_clear(&source);
    return rc < 0
               ? rc
               : folder_check("output", spec->output_dir, limits->outputs, limits->output_lists, e);
}
