// SPDX-License-Identifier: Apache-2.0
// Which of a policy's limits apply to a job.
#include "job/policy_parts.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define INTERVAL_PRESET_MS 500
#define GRACE_PRESET_MS    5000

const char *policy_kind_name(enum policy_kind kind)
{
    static const char *const names[POLICY_KINDS] = {"all", "GPU", "partition", "account", "QOS"};

    return names[kind];
}

static bool has_kind(const struct policy *policy, enum policy_kind kind)
{
    for (int i = 0; i < policy->count; i++)
        if (policy->sections[i].kind == kind)
            return true;
    return false;
}

bool policy_asks_job(const struct policy *policy)
{
    return has_kind(policy, POLICY_PARTITION) || has_kind(policy, POLICY_ACCOUNT) ||
           has_kind(policy, POLICY_QOS);
}

bool policy_asks_gpu(const struct policy *policy)
{
    return has_kind(policy, POLICY_GPU);
}

static const char *fact_of(const struct policy_facts *facts, enum policy_kind kind)
{
    const char *const known[POLICY_KINDS] = {NULL, facts->gpu, facts->partition, facts->account,
                                             facts->qos};

    return known[kind];
}

static bool listed(const char *names, const char *name)
{
    size_t length = strlen(name);

    for (;; names++) {
        size_t n = strcspn(names, ",");
        if (n == length && !memcmp(names, name, n))
            return true;
        names += n;
        if (!*names)
            return false;
    }
}

static bool applies(const struct section *s, const struct policy_facts *facts)
{
    const char *fact = fact_of(facts, s->kind);

    if (s->kind == POLICY_ALL || !fact)
        return true;
    if (s->kind == POLICY_PARTITION)
        return listed(fact, s->name);
    return s->kind == POLICY_GPU ? strcasestr(fact, s->name) != NULL : !strcmp(fact, s->name);
}

void policy_unknown(const struct policy *policy, const struct policy_facts *facts, char *text,
                    size_t size)
{
    enum policy_kind last = POLICY_ALL;
    size_t used = 0;

    text[0] = 0;
    for (int kind = POLICY_GPU; kind < POLICY_KINDS; kind++)
        for (int i = 0; i < policy->count && used < size; i++) {
            const struct section *s = &policy->sections[i];
            if ((int)s->kind != kind || fact_of(facts, s->kind))
                continue;
            used += (size_t)snprintf(text + used, size - used, "%s%s %s",
                                     last == s->kind ? ","
                                     : used          ? "; "
                                                     : "",
                                     last == s->kind ? "" : policy_kind_name(s->kind), s->name);
            last = s->kind;
        }
    if (used >= size && size > 3)
        memcpy(text + size - 4, "...", 4);
}

static void source_write(const struct policy *policy, const struct section *s, int line,
                         char source[POLICY_SOURCE])
{
    if (!line)
        snprintf(source, POLICY_SOURCE, "%s", policy->name);
    else if (s->kind == POLICY_ALL)
        snprintf(source, POLICY_SOURCE, "%.60s:%d", policy->name, line);
    else
        snprintf(source, POLICY_SOURCE, "%.40s:%d, %s %.24s", policy->name, line,
                 policy_kind_name(s->kind), s->name);
}

// The smaller counts, and of equal ones the first.
static void limit_take(const struct policy *policy, const struct section *s, uint64_t value,
                       int line, struct policy_limit *limit)
{
    if (!value || (limit->value && limit->value <= value))
        return;
    limit->value = value;
    source_write(policy, s, line, limit->source);
}

// Choices are numbered from lenient to strict.
static int stricter(int decided, int value)
{
    return value == UNSET || value <= decided ? decided : value;
}

static int shorter(int decided, int value)
{
    return value == UNSET || (decided != UNSET && decided <= value) ? decided : value;
}

// A path must be in every list that applies.
static void roots_take(const struct policy *policy, const struct section *s,
                       const struct roots *roots, struct policy_roots *lists, int *count)
{
    struct policy_roots *list = &lists[*count];

    if (!roots->line)
        return;
    *list = (struct policy_roots){.paths = roots->paths, .count = roots->count};
    source_write(policy, s, roots->line, list->source);
    ++*count;
}

void policy_decide(const struct policy *policy, const struct policy_facts *facts,
                   struct policy_decision *d)
{
    int action = UNSET, interval = UNSET, grace = UNSET;

    *d = (struct policy_decision){.wrap = true};
    for (int i = 0; i < policy->count; i++) {
        const struct section *s = &policy->sections[i];
        if (!applies(s, facts))
            continue;
        limit_take(policy, s, s->device_memory, s->device_line, &d->device_memory);
        limit_take(policy, s, s->host_memory, s->host_line, &d->host_memory);
        limit_take(policy, s, s->ranks, s->ranks_line, &d->ranks);
        d->wrap = d->wrap && s->wrap != 0;
        action = stricter(action, s->action);
        d->enforce = (enum policy_enforce)stricter((int)d->enforce, s->enforce);
        d->watch_failure = (enum policy_failure)stricter((int)d->watch_failure, s->failure);
        interval = shorter(interval, s->interval_ms);
        grace = shorter(grace, s->grace_ms);
        roots_take(policy, s, &s->model, d->model_roots, &d->model_root_count);
        roots_take(policy, s, &s->output, d->output_roots, &d->output_root_count);
    }
    d->action = action == UNSET ? POLICY_REFUSE : (enum policy_action)action;
    d->watch_interval_ms = interval == UNSET ? INTERVAL_PRESET_MS : interval;
    d->watch_grace_ms = grace == UNSET ? GRACE_PRESET_MS : grace;
}
