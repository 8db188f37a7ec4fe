// SPDX-License-Identifier: Apache-2.0
// A flat YAML mapping, read event by event through libyaml.
#include "job/yaml.h"

#include "base/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

struct reader {
    yaml_parser_t parser;
    const char *text, *name;
    struct yaml_map *map;
    struct fl_error *e;
};

static int event_line(const yaml_event_t *event)
{
    return (int)event->start_mark.line + 1;
}

// libyaml gives no line for bytes that are no UTF-8, only their offset.
static int problem_line(const struct reader *r)
{
    int line = 1;

    if (r->parser.error != YAML_READER_ERROR)
        return (int)r->parser.problem_mark.line + 1;
    for (size_t i = 0; i < r->parser.problem_offset; i++)
        line += r->text[i] == '\n';
    return line;
}

static int event_next(struct reader *r, yaml_event_t *event)
{
    if (yaml_parser_parse(&r->parser, event))
        return 0;
    if (r->parser.error == YAML_MEMORY_ERROR)
        return error_set(r->e, -ENOMEM, "%s: no memory to read it", r->name);
    return error_set(r->e, -EINVAL, "%s:%d: not valid YAML: %s", r->name, problem_line(r),
                     r->parser.problem);
}

static int refuse(struct reader *r, const yaml_event_t *event, const char *what)
{
    return error_set(r->e, -EINVAL, "%s:%d: %s", r->name, event_line(event), what);
}

static bool scalar_is_null(const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value;

    return event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (!*text || !strcmp(text, "~") || !strcmp(text, "null"));
}

// Copies a scalar's text, which is all that a key or value may be.
static int scalar_take(struct reader *r, const yaml_event_t *event, char **text)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        break;
    case YAML_ALIAS_EVENT:
        return refuse(r, event, "aliases are not supported: write the value out");
    case YAML_MAPPING_START_EVENT:
    case YAML_SEQUENCE_START_EVENT:
        return refuse(r, event, "nested values are not supported: give a word or a list of words");
    default:
        return refuse(r, event, "expected a value");
    }
    if (event->data.scalar.anchor)
        return refuse(r, event, "anchors are not supported: write the value out");
    if (event->data.scalar.tag)
        return refuse(r, event, "tags are not supported: write the value alone");
    if (strlen((const char *)event->data.scalar.value) != event->data.scalar.length)
        return refuse(r, event, "a NUL character is not supported");
    if (scalar_is_null(event))
        return refuse(r, event, "a value is missing: give one or remove the line");
    *text = memory_string((const char *)event->data.scalar.value);
    return 0;
}

static int key_read(struct reader *r, const yaml_event_t *event)
{
    struct yaml_map *map = r->map;
    struct yaml_entry *entry;
    char *key;
    int rc = scalar_take(r, event, &key);

    if (rc)
        return rc;
    for (size_t i = 0; i < map->count && !rc; i++)
        if (!strcmp(map->entries[i].key, key))
            rc = error_set(r->e, -EINVAL, "%s:%d: '%.80s' is already set on line %d", r->name,
                           event_line(event), key, map->entries[i].line);
    if (!rc && map->count == YAML_KEYS_MAX)
        rc = error_set(r->e, -EINVAL, "%s:%d: more than %d keys", r->name, event_line(event),
                       YAML_KEYS_MAX);
    if (rc) {
        free(key);
        return rc;
    }
    map->entries = memory_resize(map->entries, map->count + 1, sizeof *map->entries);
    entry = &map->entries[map->count++];
    *entry = (struct yaml_entry){.key = key, .line = event_line(event)};
    return 0;
}

static int value_add(struct reader *r, const yaml_event_t *event)
{
    struct yaml_entry *entry = &r->map->entries[r->map->count - 1];
    char *value;
    int rc = scalar_take(r, event, &value);

    if (rc)
        return rc;
    if ((entry->count & (entry->count - 1)) == 0) // grows at powers of two
        entry->values =
            memory_resize(entry->values, entry->count ? 2 * entry->count : 1, sizeof(char *));
    entry->values[entry->count++] = value;
    return 0;
}

static int sequence_read(struct reader *r)
{
    for (;;) {
        yaml_event_t event;
        int rc = event_next(r, &event);
        bool end;
        if (rc)
            return rc;
        end = event.type == YAML_SEQUENCE_END_EVENT;
        if (!end)
            rc = value_add(r, &event);
        yaml_event_delete(&event);
        if (rc || end)
            return rc;
    }
}

static int value_read(struct reader *r)
{
    yaml_event_t event;
    int rc = event_next(r, &event);

    if (rc)
        return rc;
    if (event.type != YAML_SEQUENCE_START_EVENT)
        rc = value_add(r, &event);
    else if (event.data.sequence_start.anchor)
        rc = refuse(r, &event, "anchors are not supported: write the value out");
    else if (event.data.sequence_start.tag)
        rc = refuse(r, &event, "tags are not supported: write the value alone");
    else
        rc = sequence_read(r);
    yaml_event_delete(&event);
    return rc;
}

static int mapping_read(struct reader *r)
{
    for (;;) {
        yaml_event_t event;
        int rc = event_next(r, &event);
        bool end;
        if (rc)
            return rc;
        end = event.type == YAML_MAPPING_END_EVENT;
        if (!end)
            rc = key_read(r, &event);
        yaml_event_delete(&event);
        if (rc || end)
            return rc;
        rc = value_read(r);
        if (rc)
            return rc;
    }
}

// One event outside the mapping; the type must be the expected one.
static int expect(struct reader *r, yaml_event_type_t type, const char *else_what)
{
    yaml_event_t event;
    int rc = event_next(r, &event);

    if (rc)
        return rc;
    if (event.type != type)
        rc = refuse(r, &event, else_what);
    else if (type == YAML_MAPPING_START_EVENT && event.data.mapping_start.anchor)
        rc = refuse(r, &event, "anchors are not supported: write the value out");
    else if (type == YAML_MAPPING_START_EVENT && event.data.mapping_start.tag)
        rc = refuse(r, &event, "tags are not supported: write the value alone");
    yaml_event_delete(&event);
    return rc;
}

static int document_read(struct reader *r)
{
    int rc = expect(r, YAML_STREAM_START_EVENT, "not YAML");

    if (!rc)
        rc = expect(r, YAML_DOCUMENT_START_EVENT,
                    "the file is empty: give at least model and dataset");
    if (!rc)
        rc = expect(r, YAML_MAPPING_START_EVENT, "expected lines of the form `key: value`");
    if (!rc)
        rc = mapping_read(r);
    if (!rc)
        rc = expect(r, YAML_DOCUMENT_END_EVENT, "expected the end of the document");
    if (!rc)
        rc = expect(r, YAML_STREAM_END_EVENT, "a second document: keep one job a file");
    return rc;
}

int yaml_map_parse(const char *text, size_t bytes, const char *name, struct yaml_map **out,
                   struct fl_error *e)
{
    struct reader r = {.text = text, .name = name, .e = e};
    int rc;

    *out = NULL;
    if (bytes > YAML_BYTES_MAX)
        return error_set(e, -EFBIG, "%s: %zu bytes, more than the %u of a job file", name, bytes,
                         YAML_BYTES_MAX);
    if (!yaml_parser_initialize(&r.parser))
        return error_set(e, -ENOMEM, "%s: no memory to read it", name);
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, bytes);
    r.map = memory_zeroed(1, sizeof *r.map);
    rc = document_read(&r);
    yaml_parser_delete(&r.parser);
    if (rc)
        yaml_map_destroy(r.map);
    else
        *out = r.map;
    return rc;
}

void yaml_map_destroy(struct yaml_map *map)
{
    if (!map)
        return;
    for (size_t i = 0; i < map->count; i++) {
        for (size_t j = 0; j < map->entries[i].count; j++)
            free(map->entries[i].values[j]);
        free(map->entries[i].values);
        free(map->entries[i].key);
    }
    free(map->entries);
    free(map);
}
