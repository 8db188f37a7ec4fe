// SPDX-License-Identifier: Apache-2.0
// What an administrator allows a job.
#include "job/policy_parts.h"

#include "base/bytes.h"
#include "base/memory.h"
#include "base/nearest.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define RANKS_MOST       65536
#define INTERVAL_LEAST_S 0.05
#define INTERVAL_MOST_S  1
#define GRACE_MOST_S     3600

static const char *const kind_keys[POLICY_KINDS] = {NULL, "gpus", "partitions", "accounts", "qos"};

// The file being read.
struct reader {
    yaml_document_t document;
    const char *name;
    struct policy *policy;
    struct fl_error *e;
};

static struct section *section_new(struct policy *policy, enum policy_kind kind, const char *name)
{
    struct section *s = &policy->sections[policy->count++];

    *s = (struct section){.kind = kind,
                          .name = memory_string(name),
                          .wrap = UNSET,
                          .action = UNSET,
                          .enforce = UNSET,
                          .failure = UNSET,
                          .interval_ms = UNSET,
                          .grace_ms = UNSET};
    return s;
}

static struct policy *policy_new(const char *name)
{
    struct policy *policy = memory_zeroed(1, sizeof *policy);
    const char *slash = strrchr(name, '/');

    policy->name = memory_string(slash ? slash + 1 : name);
    section_new(policy, POLICY_ALL, "");
    return policy;
}

static void roots_clear(struct roots *roots)
{
    for (size_t i = 0; i < roots->count; i++)
        free(roots->paths[i]);
    free(roots->paths);
}

void policy_destroy(struct policy *policy)
{
    if (!policy)
        return;
    for (int i = 0; i < policy->count; i++) {
        roots_clear(&policy->sections[i].model);
        roots_clear(&policy->sections[i].output);
        free(policy->sections[i].name);
    }
    free(policy->name);
    free(policy);
}

struct policy *policy_of_cap(uint64_t max_device_memory, enum policy_action action,
                             enum policy_failure failure, int grace_ms, const char *source)
{
    struct policy *policy = policy_new(source);
    struct section *all = &policy->sections[0];

    all->device_memory = max_device_memory;
    all->action = (int)action;
    all->failure = (int)failure;
    all->grace_ms = grace_ms;
    return policy;
}

static int line_of(const yaml_node_t *node)
{
    return (int)node->start_mark.line + 1;
}

__attribute__((format(printf, 3, 4))) static int
refuse(const struct reader *r, const yaml_node_t *node, const char *format, ...)
{
    char text[256];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return error_set(r->e, -EINVAL, "%s:%d: %s", r->name, line_of(node), text);
}

// The text of a scalar that holds no NUL byte; NULL: it is none.
static const char *scalar(const yaml_node_t *node)
{
    const char *text;

    if (node->type != YAML_SCALAR_NODE)
        return NULL;
    text = (const char *)node->data.scalar.value;
    return strlen(text) == node->data.scalar.length ? text : NULL;
}

static int bytes_read(const struct reader *r, const char *key, const yaml_node_t *node,
                      uint64_t *value, int *line)
{
    const char *text = scalar(node);
    struct fl_error why;

    if (!text || bytes_parse(text, value, &why) || *value == 0)
        return refuse(r, node, "%s: '%.40s' is not an amount of memory above 0: write it as 80GiB",
                      key, text ? text : "");
    *line = line_of(node);
    return 0;
}

static int real_read(const struct reader *r, const char *key, const yaml_node_t *node, double low,
                     double high, int *ms)
{
    const char *text = scalar(node);
    char *end;
    double value = text ? strtod(text, &end) : 0;

    if (!text || end == text || *end || !(value >= low && value <= high))
        return refuse(r, node, "%s: '%.40s' is not a number of seconds in [%g, %g]", key,
                      text ? text : "", low, high);
    *ms = (int)(value * 1000);
    return 0;
}

static int ranks_read(const struct reader *r, const yaml_node_t *node, struct section *s)
{
    const char *text = scalar(node);
    char *end;
    long value = text ? strtol(text, &end, 10) : 0;

    if (!text || end == text || *end || value < 1 || value > RANKS_MOST)
        return refuse(r, node, "max_ranks: '%.40s' is not in [1, %d]", text ? text : "",
                      RANKS_MOST);
    s->ranks = (uint64_t)value;
    s->ranks_line = line_of(node);
    return 0;
}

static int choice_read(const struct reader *r, const char *key, const yaml_node_t *node,
                       const char *const *names, int *value)
{
    const char *text = scalar(node);
    char all[128] = "";

    for (int i = 0; names[i]; i++) {
        if (text && !strcmp(text, names[i])) {
            *value = i;
            return 0;
        }
        strcat(all, i ? ", " : "");
        strcat(all, names[i]);
    }
    return refuse(r, node, "%s: '%.40s' is not one of %s", key, text ? text : "", all);
}

static int roots_read(const struct reader *r, const char *key, const yaml_node_t *node,
                      struct roots *roots)
{
    yaml_document_t *document = (yaml_document_t *)&r->document;

    if (node->type != YAML_SEQUENCE_NODE)
        return refuse(r, node, "%s: write a list of folders", key);
    if (node->data.sequence.items.start == node->data.sequence.items.top)
        return refuse(r, node, "%s: write at least one folder", key);
    roots->line = line_of(node);
    for (const yaml_node_item_t *i = node->data.sequence.items.start;
         i < node->data.sequence.items.top; i++) {
        const yaml_node_t *item = yaml_document_get_node(document, *i);
        const char *text = scalar(item);
        if (!text || *text != '/' || strlen(text) >= POLICY_PATH || strstr(text, "/../") ||
            strstr(text, "/./") || strstr(text, "//") || strpbrk(text, ":\n"))
            return refuse(r, item, "%s: '%.80s' is not an absolute path without :, . and ..", key,
                          text ? text : "");
        if (roots->count == POLICY_ROOTS)
            return refuse(r, item, "%s: more than %d folders", key, POLICY_ROOTS);
        roots->paths = memory_resize(roots->paths, roots->count + 1, sizeof *roots->paths);
        roots->paths[roots->count++] = memory_string(text);
    }
    return 0;
}

static const char *const bools[] = {"false", "true", NULL};
static const char *const actions[] = {"warn", "refuse", "kill", NULL};
static const char *const enforces[] = {"option", "all-gpu-steps", "whole-job", NULL};
static const char *const failures[] = {"continue", "end", NULL};

static const char *const keys[] = {
    "max_device_memory",
    "max_host_memory",
    "max_ranks",
    "model_roots",
    "output_roots",
    "wrap",
    "action",
    "enforce",
    "watch_interval",
    "watch_grace",
    "watch_failure",
    NULL,
};

// 1: no such key.
static int value_read(const struct reader *r, const char *key, const yaml_node_t *node,
                      struct section *s)
{
    if (!strcmp(key, "max_device_memory"))
        return bytes_read(r, key, node, &s->device_memory, &s->device_line);
    if (!strcmp(key, "max_host_memory"))
        return bytes_read(r, key, node, &s->host_memory, &s->host_line);
    if (!strcmp(key, "max_ranks"))
        return ranks_read(r, node, s);
    if (!strcmp(key, "model_roots"))
        return roots_read(r, key, node, &s->model);
    if (!strcmp(key, "output_roots"))
        return roots_read(r, key, node, &s->output);
    if (!strcmp(key, "wrap"))
        return choice_read(r, key, node, bools, &s->wrap);
    if (!strcmp(key, "action"))
        return choice_read(r, key, node, actions, &s->action);
    if (!strcmp(key, "enforce"))
        return choice_read(r, key, node, enforces, &s->enforce);
    if (!strcmp(key, "watch_failure"))
        return choice_read(r, key, node, failures, &s->failure);
    if (!strcmp(key, "watch_interval"))
        return real_read(r, key, node, INTERVAL_LEAST_S, INTERVAL_MOST_S, &s->interval_ms);
    if (!strcmp(key, "watch_grace"))
        return real_read(r, key, node, 0, GRACE_MOST_S, &s->grace_ms);
    return 1;
}

static int unknown(const struct reader *r, const yaml_node_t *node, const char *key, bool top)
{
    const char *names[sizeof keys / sizeof *keys + POLICY_KINDS], *nearest;
    size_t count = 0;

    while (keys[count]) {
        names[count] = keys[count];
        count++;
    }
    for (int k = POLICY_GPU; top && k < POLICY_KINDS; k++)
        names[count++] = kind_keys[k];
    nearest = nearest_name(key, names, count);
    if (nearest)
        return refuse(r, node, "unknown key '%.80s', did you mean '%s'?", key, nearest);
    return refuse(r, node, "unknown key '%.80s'", key);
}

// The key of a pair, which no earlier one repeats; NULL with the error set.
static const char *pair_key(const struct reader *r, const yaml_node_t *map,
                            const yaml_node_pair_t *pair)
{
    yaml_document_t *document = (yaml_document_t *)&r->document;
    const yaml_node_t *node = yaml_document_get_node(document, pair->key);
    const char *key = scalar(node);

    if (!key || !*key) {
        refuse(r, node, "a key must be a word");
        return NULL;
    }
    for (const yaml_node_pair_t *p = map->data.mapping.pairs.start; p < pair; p++) {
        const char *earlier = scalar(yaml_document_get_node(document, p->key));
        if (earlier && !strcmp(earlier, key)) {
            refuse(r, node, "'%.80s' is given twice", key);
            return NULL;
        }
    }
    return key;
}

static int section_read(const struct reader *r, const yaml_node_t *map, struct section *s)
{
    yaml_document_t *document = (yaml_document_t *)&r->document;

    if (map->type != YAML_MAPPING_NODE)
        return refuse(r, map, "%s '%.60s': write keys and values", policy_kind_name(s->kind),
                      s->name);
    for (const yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        const char *key = pair_key(r, map, p);
        int rc = key ? value_read(r, key, yaml_document_get_node(document, p->value), s) : -EINVAL;
        if (rc > 0)
            rc = unknown(r, yaml_document_get_node(document, p->key), key, false);
        if (rc < 0)
            return rc;
    }
    return 0;
}

// The sections about one kind of thing.
static int kind_read(const struct reader *r, enum policy_kind kind, const yaml_node_t *map)
{
    yaml_document_t *document = (yaml_document_t *)&r->document;

    if (map->type != YAML_MAPPING_NODE)
        return refuse(r, map, "%s: write a name and below it keys and values", kind_keys[kind]);
    for (const yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        const char *name = pair_key(r, map, p);
        int rc;
        if (!name)
            return -EINVAL;
        if (r->policy->count == POLICY_SECTIONS)
            return refuse(r, map, "more than %d sections", POLICY_SECTIONS - 1);
        rc = section_read(r, yaml_document_get_node(document, p->value),
                          section_new(r->policy, kind, name));
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int top_read(const struct reader *r, const yaml_node_t *map)
{
    yaml_document_t *document = (yaml_document_t *)&r->document;

    if (map->type != YAML_MAPPING_NODE)
        return refuse(r, map, "not keys and values");
    for (const yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
         p++) {
        const char *key = pair_key(r, map, p);
        const yaml_node_t *value = yaml_document_get_node(document, p->value);
        int rc = key ? value_read(r, key, value, &r->policy->sections[0]) : -EINVAL;
        for (int k = POLICY_GPU; rc > 0 && k < POLICY_KINDS; k++)
            if (!strcmp(key, kind_keys[k]))
                rc = kind_read(r, (enum policy_kind)k, value);
        if (rc > 0)
            rc = unknown(r, yaml_document_get_node(document, p->key), key, true);
        if (rc < 0)
            return rc;
    }
    return 0;
}

// Anchors could make a small file a large tree, tags are of no use; both are refused before a
// document is made.
static int events_check(const char *text, size_t bytes, const char *name, struct fl_error *e)
{
    yaml_parser_t parser;
    yaml_event_t event;
    bool more = true;
    int rc = 0;

    if (!yaml_parser_initialize(&parser))
        return error_set(e, -ENOMEM, "%s: no memory", name);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    while (more && rc == 0) {
        bool anchored = false;
        if (!yaml_parser_parse(&parser, &event)) {
            rc = error_set(e, -EINVAL, "%s:%d: not YAML: %s", name,
                           (int)parser.problem_mark.line + 1,
                           parser.problem ? parser.problem : "unreadable");
            break;
        }
        anchored = event.type == YAML_ALIAS_EVENT ||
                   (event.type == YAML_SCALAR_EVENT &&
                    (event.data.scalar.anchor || event.data.scalar.tag)) ||
                   (event.type == YAML_SEQUENCE_START_EVENT &&
                    (event.data.sequence_start.anchor || event.data.sequence_start.tag)) ||
                   (event.type == YAML_MAPPING_START_EVENT &&
                    (event.data.mapping_start.anchor || event.data.mapping_start.tag));
        if (anchored)
            rc = error_set(e, -EINVAL, "%s:%d: anchors, aliases and tags are not for a policy",
                           name, (int)event.start_mark.line + 1);
        more = event.type != YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return rc;
}

static int document_read(struct reader *r, const char *text, size_t bytes)
{
    yaml_parser_t parser;
    const yaml_node_t *root;
    int rc;

    if (!yaml_parser_initialize(&parser))
        return error_set(r->e, -ENOMEM, "%s: no memory", r->name);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    if (!yaml_parser_load(&parser, &r->document)) {
        rc = error_set(r->e, -EINVAL, "%s:%d: not YAML: %s", r->name,
                       (int)parser.problem_mark.line + 1,
                       parser.problem ? parser.problem : "unreadable");
        yaml_parser_delete(&parser);
        return rc;
    }
    root = yaml_document_get_root_node(&r->document);
    rc = root ? top_read(r, root) : 0; // an empty file allows everything
    yaml_document_delete(&r->document);
    if (rc == 0 && yaml_parser_load(&parser, &r->document)) {
        if (yaml_document_get_root_node(&r->document))
            rc = error_set(r->e, -EINVAL, "%s: more than one document", r->name);
        yaml_document_delete(&r->document);
    }
    yaml_parser_delete(&parser);
    return rc;
}

int policy_parse(const char *text, size_t bytes, const char *name, struct policy **out,
                 struct fl_error *e)
{
    struct reader r = {.name = name, .e = e};
    int rc = 0;

    *out = NULL;
    if (bytes > POLICY_BYTES_MAX)
        return error_set(e, -EFBIG, "%s: more than %d bytes", name, POLICY_BYTES_MAX);
    if (memchr(text, 0, bytes))
        return error_set(e, -EINVAL, "%s: holds a NUL byte", name);
    rc = events_check(text, bytes, name, e);
    if (rc < 0)
        return rc;
    r.policy = policy_new(name);
    rc = document_read(&r, text, bytes);
    if (rc < 0)
        policy_destroy(r.policy);
    else
        *out = r.policy;
    return rc;
}
