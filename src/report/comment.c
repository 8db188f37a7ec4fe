// SPDX-License-Identifier: Apache-2.0
// A job's ranks as one text in its admin_comment.
#include "report/comment.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARK       "fp8-lora v1 "
#define KEY_MAX    48
#define JSON_STYLE (JSON_COMPACT | JSON_REAL_PRECISION(6))
#define GIB        ((double)(UINT64_C(1) << 30))

// Where our text is in a comment: [begin, end), and its parsed JSON.
struct block {
    size_t begin, end;
    json_t *steps;
};

static const char *state_name(uint32_t state)
{
    static const char *const names[RANK_STATES] = {"none", "loading", "training", "done", "failed"};

    return names[state];
}

static const char *watch_name(uint32_t watch)
{
    static const char *const names[WATCH_STATES] = {"none",  "starting", "measures", "watch",
                                                    "limit", "blind",    "lost"};

    return names[watch];
}

static const char *members_name(uint32_t members)
{
    static const char *const names[MEMBERS_KINDS] = {"unknown", "cgroup", "family"};

    return names[members];
}

// Neither JSON nor SQL nor sacct's columns need escapes for what is left.
static json_t *string_plain(const char *text)
{
    char plain[RECORD_CAUSE];
    size_t i;

    for (i = 0; text[i] && i < sizeof plain - 1; i++)
        plain[i] = strchr("\"\\|{}", text[i]) ? '\'' : text[i];
    plain[i] = 0;
    return json_string(plain);
}

static json_t *number_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *rank_object(const struct record_rank *slot)
{
    json_t *row = json_object(), *by = json_array();

    json_object_set_new(row, "rank", json_integer(slot->rank));
    json_object_set_new(row, "node", string_plain(slot->node));
    json_object_set_new(row, "gpu", string_plain(slot->gpu));
    json_object_set_new(row, "state", json_string(state_name(slot->state)));
    json_object_set_new(row, "planned", json_integer((json_int_t)slot->planned_total));
    json_object_set_new(row, "peak", json_integer((json_int_t)slot->peak_total));
    if (slot->measured)
        json_object_set_new(row, "measured", json_integer((json_int_t)slot->measured));
    for (int c = 0; c < MEMORY_CATEGORIES; c++)
        json_array_append_new(by, json_integer((json_int_t)slot->peak[c]));
    json_object_set_new(row, "by", by);
    json_object_set_new(row, "rss", json_integer((json_int_t)slot->rss_peak));
    json_object_set_new(row, "cap", json_integer((json_int_t)slot->cap));
    json_object_set_new(row, "tps", number_or_null(slot->tokens_per_second));
    json_object_set_new(row, "loss", number_or_null(slot->loss));
    json_object_set_new(row, "exit",
                        slot->exit_code == RECORD_EXIT_UNKNOWN ? json_null()
                                                               : json_integer(slot->exit_code));
    if (slot->cause[0])
        json_object_set_new(row, "cause", string_plain(slot->cause));
    return row;
}

static uint64_t slot_peak(const struct record_rank *slot)
{
    return slot->measured ? slot->measured : slot->peak_total;
}

json_t *comment_entry(const struct comment_node *node, const struct record *record)
{
    json_t *entry = json_object(), *ranks = json_array(), *failed = NULL, *watch = NULL;
    uint32_t first = 0, peak_rank = 0, written = 0, done = 0;
    uint64_t peak = 0;
    bool known = record_aborted(record, &first, NULL);
    struct record_rank slot;

    for (uint32_t rank = 0; rank < record_ranks(record); rank++) {
        if (record_read(record, rank, &slot))
            continue;
        json_array_append_new(ranks, rank_object(&slot));
        if (slot.exit_code == RECORD_EXIT_UNKNOWN)
            continue; // another node's, which counts it
        written++;
        done += slot.state == RANK_DONE && !slot.exit_code;
        if (slot.watch && !watch)
            watch = json_pack("[[i, s, s]]", (int)node->node, watch_name(slot.watch),
                              members_name(slot.members));
        if (slot_peak(&slot) > peak || written == 1) {
            peak = slot_peak(&slot);
            peak_rank = rank;
        }
        if (known && node->failed_ms && rank == first)
            failed = json_pack("{s:i, s:I, s:o}", "rank", (int)rank, "at",
                               (json_int_t)node->failed_ms, "cause", string_plain(slot.cause));
    }
    json_object_set_new(entry, "tasks", json_integer(node->tasks));
    if (failed)
        json_object_set_new(entry, "failed", failed);
    json_object_set_new(entry, "nodes",
                        json_pack("[[i, i, i, I, i]]", (int)node->node, (int)written, (int)done,
                                  (json_int_t)peak, (int)peak_rank));
    if (watch)
        json_object_set_new(entry, "watch", watch);
    json_object_set_new(entry, "ranks", ranks);
    return entry;
}

static bool block_find(const char *text, struct block *block)
{
    const char *at = text;

    while ((at = strstr(at, MARK))) {
        const char *brace = strchr(at, '{');
        json_error_t error;
        json_t *root = brace ? json_loads(brace, JSON_DISABLE_EOF_CHECK, &error) : NULL;
        json_t *steps = json_object_get(root, "steps");
        if (json_is_object(steps)) {
            *block = (struct block){.begin = (size_t)(at - text),
                                    .end = (size_t)(brace - text) + (size_t)error.position,
                                    .steps = json_incref(steps)};
            json_decref(root);
            return true;
        }
        json_decref(root);
        at += strlen(MARK);
    }
    return false;
}

json_t *comment_parse(const char *text, struct fl_error *e)
{
    struct block block;

    if (block_find(text, &block))
        return block.steps;
    if (strstr(text, MARK))
        error_set(e, -EBADMSG,
                  "admin_comment: fp8-lora's text is damaged or was cut after %zu bytes: see "
                  "metrics.jsonl in the job's output folder instead",
                  strlen(text));
    else
        error_set(e, -ENOENT, "admin_comment: no fp8-lora text");
    return NULL;
}

// Numbers that decide an order; text of others' making may hold anything.
static json_int_t integer_of(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key)); // 0 for NULL and other types
}

static json_int_t row_peak(const json_t *row)
{
    json_int_t measured = integer_of(row, "measured");

    return measured > 0 ? measured : integer_of(row, "peak");
}

static int rows_compare(const void *a, const void *b)
{
    json_int_t x = integer_of(*(json_t *const *)a, "rank"),
               y = integer_of(*(json_t *const *)b, "rank");

    return (x > y) - (x < y);
}

static int nodes_compare(const void *a, const void *b)
{
    json_int_t x = json_integer_value(json_array_get(*(json_t *const *)a, 0)),
               y = json_integer_value(json_array_get(*(json_t *const *)b, 0));

    return (x > y) - (x < y);
}

// What the daemon of a rank's own node says of it counts more than what its ranks told the others.
static bool row_hearsay(const json_t *row)
{
    return json_is_null(json_object_get(row, "exit"));
}

// Union of two arrays in order; where both have an element, mine counts unless it is hearsay.
static json_t *arrays_unite(json_t *old, json_t *mine, int (*compare)(const void *, const void *))
{
    size_t count = 0, a = json_array_size(old), b = json_array_size(mine);
    json_t *out = json_array(), **all = calloc(a + b + 1, sizeof(json_t *));

    for (size_t i = 0; all && i < b; i++)
        all[count++] = json_array_get(mine, i);
    for (size_t i = 0; all && i < a; i++) {
        json_t *element = json_array_get(old, i);
        bool replaced = false;
        for (size_t j = 0; j < b && !replaced; j++) {
            replaced = !compare(&element, &all[j]);
            if (replaced && row_hearsay(all[j]))
                all[j] = element;
        }
        if (!replaced)
            all[count++] = element;
    }
    if (all)
        qsort(all, count, sizeof *all, compare);
    for (size_t i = 0; i < count; i++)
        json_array_append(out, all[i]);
    free(all);
    return out;
}

// The whole step: what is known of it already, with one node's entry. New reference.
static json_t *entry_unite(json_t *old, const json_t *mine)
{
    json_t *out = json_deep_copy(mine), *failed = json_object_get(old, "failed");
    json_int_t at = integer_of(failed, "at"), my_at;

    if (!json_is_object(old))
        return out;
    my_at = integer_of(json_object_get(out, "failed"), "at");
    if (json_is_object(failed) && at > 0 && (!my_at || at < my_at))
        json_object_set(out, "failed", failed);
    json_object_set_new(
        out, "nodes",
        arrays_unite(json_object_get(old, "nodes"), json_object_get(out, "nodes"), nodes_compare));
    if (json_object_get(old, "watch") || json_object_get(out, "watch"))
        json_object_set_new(out, "watch",
                            arrays_unite(json_object_get(old, "watch"),
                                         json_object_get(out, "watch"), nodes_compare));
    json_object_set_new(
        out, "ranks",
        arrays_unite(json_object_get(old, "ranks"), json_object_get(out, "ranks"), rows_compare));
    return out;
}

// "step 0: 4 ranks, peak 0.21 GiB (rank 3), done"
static void head_add(char *head, size_t size, const char *key, json_t *entry)
{
    unsigned step = 0, restart = 0;
    json_int_t peak = 0, peak_rank = 0, tasks = integer_of(entry, "tasks");
    uint64_t done = 0; // wraps where others wrote nonsense
    json_t *node, *failed = json_object_get(entry, "failed");
    char state[64] = "done", again[24] = "";
    size_t i, used = strlen(head);

    sscanf(key, "%*u.%u.%u", &step, &restart);
    json_array_foreach(json_object_get(entry, "nodes"), i, node)
    {
        json_int_t node_peak = json_integer_value(json_array_get(node, 3));
        done += (uint64_t)json_integer_value(json_array_get(node, 2));
        if (node_peak > peak) {
            peak = node_peak;
            peak_rank = json_integer_value(json_array_get(node, 4));
        }
    }
    if (failed)
        snprintf(state, sizeof state, "failed at rank %lld", (long long)integer_of(failed, "rank"));
    else if ((json_int_t)done < tasks)
        snprintf(state, sizeof state, "%lld of %lld done", (long long)done, (long long)tasks);
    if (restart)
        snprintf(again, sizeof again, " restart %u", restart);
    snprintf(head + used, size - used, "%sstep %u%s: %lld rank%s, peak %.2f GiB (rank %lld), %s",
             used ? "; " : "", step, again, (long long)tasks, tasks == 1 ? "" : "s",
             (double)peak / GIB, (long long)peak_rank, state);
}

static char *block_print(json_t *steps)
{
    char head[512] = "", *json, *out = NULL;
    json_t *root = json_object(), *entry;
    const char *key;

    json_object_set(root, "steps", steps);
    json_object_foreach(steps, key, entry)
    {
        if (strlen(head) + 160 < sizeof head)
            head_add(head, sizeof head, key, entry);
    }
    json = json_dumps(root, JSON_STYLE | JSON_ENSURE_ASCII);
    if (json && asprintf(&out, MARK "%s %s", head, json) < 0)
        out = NULL;
    free(json);
    json_decref(root);
    return out;
}

static bool fits(json_t *steps, size_t room)
{
    char *text = block_print(steps);
    bool yes = text && strlen(text) <= room;

    free(text);
    return yes;
}

static bool row_failed(json_t *row)
{
    const char *state = json_string_value(json_object_get(row, "state"));

    return state && !strcmp(state, "failed");
}

// Removes the row one misses least: not a failed one while there is another, then the smallest
// peak.
static void rows_drop_one(json_t *rows)
{
    size_t i, drop = 0;
    json_t *row;

    json_array_foreach(rows, i, row)
    {
        json_t *least = json_array_get(rows, drop);
        bool failed = row_failed(row), least_failed = row_failed(least);
        if (failed != least_failed ? least_failed : row_peak(row) < row_peak(least))
            drop = i;
    }
    json_array_remove(rows, drop);
}

// Cuts steps down until its text has room, in the order that comment.h tells.
static void steps_trim(json_t *steps, const char *mine, size_t room)
{
    json_t *entry, *row, *rows = json_object_get(json_object_get(steps, mine), "ranks");
    const char *key;
    void *next;
    size_t i;

    if (fits(steps, room))
        return;
    json_object_foreach(steps, key, entry)
    {
        json_array_foreach(json_object_get(entry, "ranks"), i, row) json_object_del(row, "by");
    }
    json_object_foreach(steps, key, entry)
    {
        if (fits(steps, room))
            return;
        if (strcmp(key, mine))
            json_object_del(entry, "ranks");
    }
    while (json_array_size(rows) > 1 && !fits(steps, room))
        rows_drop_one(rows);
    json_object_foreach_safe(steps, next, key, entry)
    {
        if (fits(steps, room))
            return;
        if (strcmp(key, mine))
            json_object_del(steps, key);
    }
}

static void key_print(const struct comment_key *key, char name[KEY_MAX])
{
    snprintf(name, KEY_MAX, "%u.%u.%u", key->job, key->step, key->restart);
}

int comment_has(const char *text, const struct comment_key *key, const json_t *entry)
{
    json_t *mine = json_array_get(json_object_get(entry, "nodes"), 0), *node, *step;
    struct block block;
    char name[KEY_MAX];
    int found = 0;
    size_t i;

    if (!text || !block_find(text, &block))
        return 0;
    key_print(key, name);
    step = json_object_get(block.steps, name);
    json_array_foreach(json_object_get(step, "nodes"), i, node) found |= json_equal(node, mine);
    json_decref(block.steps);
    return found;
}

int comment_merge(const char *old, const struct comment_key *key, const json_t *entry, size_t limit,
                  char **out, struct fl_error *e)
{
    struct block block = {0};
    json_t *steps = NULL;
    char name[KEY_MAX], *text = NULL;
    const char *before, *gap, *after;
    size_t foreign, head;
    int code = -ENOMEM;

    old = old ? old : "";
    head = strlen(old);
    block.begin = block.end = head;
    steps = block_find(old, &block) ? json_deep_copy(block.steps) : json_object();
    key_print(key, name);
    json_object_set_new(steps, name, entry_unite(json_object_get(steps, name), entry));
    before = old;
    after = old + block.end;
    gap = block.begin && old[block.begin - 1] != ' ' ? " " : "";
    foreign = block.begin + strlen(gap) + strlen(after);
    steps_trim(steps, name, foreign < limit ? limit - foreign : 0);
    text = block_print(steps);
    if (!text || asprintf(out, "%.*s%s%s%s", (int)block.begin, before, gap, text, after) < 0)
        error_set(e, code, "admin_comment: no memory");
    else if (strlen(*out) > limit) {
        code = error_set(e, -E2BIG,
                         "admin_comment: others' text of %zu bytes leaves no room for "
                         "fp8-lora's",
                         foreign);
        free(*out);
        *out = NULL;
    } else
        code = 0;
    free(text);
    json_decref(steps);
    json_decref(block.steps);
    return code;
}
