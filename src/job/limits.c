// SPDX-License-Identifier: Apache-2.0
// What a policy leaves to the trainer to hold, as bytes.
#include "job/limits.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LIMITS_MAGIC   UINT64_C(0x6670386c6f726c6d)
#define LIMITS_VERSION 1
#define NUMBERS        3

// What the bytes begin with.
struct header {
    uint64_t magic;
    uint32_t version, size; // size: of all bytes
    uint64_t numbers[NUMBERS];
    uint32_t action, model_lists, output_lists, zero;
};

// ---- writing

struct writer {
    char *bytes;
    size_t used; // counted on beyond the end, for the size needed
};

static void put(struct writer *w, const void *bytes, size_t size)
{
    if (w->used + size <= LIMITS_BYTES_MAX)
        memcpy(w->bytes + w->used, bytes, size);
    w->used += size;
}

static void text_put(struct writer *w, const char *text)
{
    put(w, text, strlen(text) + 1);
}

static void lists_put(struct writer *w, const struct policy_roots *lists, int count)
{
    for (int i = 0; i < count; i++) {
        uint32_t paths = (uint32_t)lists[i].count;
        text_put(w, lists[i].source);
        put(w, &paths, sizeof paths);
        for (size_t k = 0; k < lists[i].count; k++)
            text_put(w, lists[i].paths[k]);
    }
}

int limits_encode(const struct limits *limits, void **bytes, size_t *size, struct fl_error *e)
{
    const struct policy_limit *numbers[NUMBERS] = {&limits->device, &limits->host, &limits->ranks};
    struct header header = {.magic = LIMITS_MAGIC,
                            .version = LIMITS_VERSION,
                            .action = (uint32_t)limits->action,
                            .model_lists = (uint32_t)limits->model_lists,
                            .output_lists = (uint32_t)limits->output_lists};
    struct writer w = {.bytes = calloc(1, LIMITS_BYTES_MAX)};

    if (!w.bytes)
        return error_set(e, -ENOMEM, "limits: no memory");
    put(&w, &header, sizeof header);
    for (int i = 0; i < NUMBERS; i++) {
        header.numbers[i] = numbers[i]->value;
        text_put(&w, numbers[i]->source);
    }
    lists_put(&w, limits->models, limits->model_lists);
    lists_put(&w, limits->outputs, limits->output_lists);
    if (w.used > LIMITS_BYTES_MAX) {
        free(w.bytes);
        return error_set(e, -E2BIG, "limits: %zu bytes, at most %d are handed over", w.used,
                         LIMITS_BYTES_MAX);
    }
    header.size = (uint32_t)w.used;
    memcpy(w.bytes, &header, sizeof header);
    *bytes = w.bytes;
    *size = w.used;
    return 0;
}

// ---- reading

struct reader {
    const char *at, *end;
    struct fl_error *e;
};

static int refuse(const struct reader *r, const char *what)
{
    return error_set(r->e, -EINVAL, "limits: %s: not what slurmstepd hands over", what);
}

// A text of fewer than size bytes; NULL: there is none.
static const char *text_take(struct reader *r, size_t size)
{
    const char *text = r->at;
    const char *nul = memchr(text, 0, (size_t)(r->end - text));

    if (!nul || (size_t)(nul - text) >= size)
        return NULL;
    r->at = nul + 1;
    return text;
}

static int source_take(struct reader *r, char source[POLICY_SOURCE])
{
    const char *text = text_take(r, POLICY_SOURCE);

    if (!text)
        return refuse(r, "a source");
    memcpy(source, text, strlen(text) + 1);
    return 0;
}

// The lists' own memory, filled front to back. paths: as many as there can be in the bytes.
struct store {
    struct policy_roots lists[2 * POLICY_SECTIONS];
    size_t path_count;
    char *paths[];
};

static int list_take(struct reader *r, struct store *store, struct policy_roots *list)
{
    uint32_t count;

    if (source_take(r, list->source))
        return -EINVAL;
    if ((size_t)(r->end - r->at) < sizeof count)
        return refuse(r, "a list of roots");
    memcpy(&count, r->at, sizeof count);
    r->at += sizeof count;
    if (!count || count > POLICY_ROOTS)
        return refuse(r, "the length of a list of roots");
    list->paths = store->paths + store->path_count;
    list->count = count;
    for (uint32_t i = 0; i < count; i++) {
        const char *path = text_take(r, POLICY_PATH);
        if (!path || *path != '/')
            return refuse(r, "a root");
        store->paths[store->path_count++] = (char *)path;
    }
    return 0;
}

// Texts stay where they are: in the copy of the bytes behind the store.
static int body_take(struct reader *r, const struct header *header, struct store *store,
                     struct limits *limits)
{
    struct policy_limit *numbers[NUMBERS] = {&limits->device, &limits->host, &limits->ranks};
    uint32_t lists = header->model_lists + header->output_lists;

    for (int i = 0; i < NUMBERS; i++) {
        numbers[i]->value = header->numbers[i];
        if (source_take(r, numbers[i]->source))
            return -EINVAL;
    }
    for (uint32_t i = 0; i < lists; i++)
        if (list_take(r, store, &store->lists[i]))
            return -EINVAL;
    if (r->at != r->end)
        return refuse(r, "what follows the lists");
    limits->action = (enum policy_action)header->action;
    limits->model_lists = (int)header->model_lists;
    limits->output_lists = (int)header->output_lists;
    limits->models = store->lists;
    limits->outputs = store->lists + header->model_lists;
    return 0;
}

int limits_decode(const void *bytes, size_t size, struct limits *limits, struct fl_error *e)
{
    struct reader r = {.e = e};
    struct header header;
    struct store *store;
    size_t store_size;
    char *copy;
    int rc;

    *limits = (struct limits){0};
    if (size < sizeof header || size > LIMITS_BYTES_MAX)
        return refuse(&r, "the size");
    memcpy(&header, bytes, sizeof header);
    if (header.magic != LIMITS_MAGIC || header.version != LIMITS_VERSION || header.size != size ||
        header.zero)
        return refuse(&r, "the header");
    if (header.action > POLICY_KILL || header.model_lists > POLICY_SECTIONS ||
        header.output_lists > POLICY_SECTIONS)
        return refuse(&r, "the action or the number of lists");
    store_size = sizeof *store + size / 2 * sizeof *store->paths; // a path has two bytes at least
    store = calloc(1, store_size + size);
    if (!store)
        return error_set(e, -ENOMEM, "limits: no memory");
    copy = (char *)store + store_size;
    memcpy(copy, bytes, size);
    r.at = copy + sizeof header;
    r.end = copy + size;
    rc = body_take(&r, &header, store, limits);
    if (rc < 0) {
        free(store);
        *limits = (struct limits){0};
        return rc;
    }
    limits->memory = store;
    return 0;
}

void limits_clear(struct limits *limits)
{
    free(limits->memory);
    *limits = (struct limits){0};
}
