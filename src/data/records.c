// SPDX-License-Identifier: Apache-2.0
// Where the samples of a dataset file start.
#include "data/records.h"

#include "base/memory.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

struct scan {
    const char *text;
    size_t bytes, at, line;
    struct record *records;
    size_t count, capacity;
};

static void record_add(struct scan *s, size_t start, size_t end, size_t line)
{
    if (s->count == s->capacity) {
        s->capacity = 2 * s->capacity + 1024;
        s->records = memory_resize(s->records, s->capacity, sizeof *s->records);
    }
    s->records[s->count++] =
        (struct record){.text = s->text + start, .bytes = end - start, .line = line};
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void skip_space(struct scan *s)
{
    for (; s->at < s->bytes && is_space(s->text[s->at]); s->at++)
        s->line += s->text[s->at] == '\n';
}

// Past one array element: to the comma or bracket behind it that is in no string or brackets.
static void skip_element(struct scan *s)
{
    size_t depth = 0;
    bool in_string = false;

    for (; s->at < s->bytes; s->at++) {
        char c = s->text[s->at];
        s->line += c == '\n';
        if (in_string) {
            if (c == '\\' && s->at + 1 < s->bytes)
                s->line += s->text[++s->at] == '\n';
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            depth++;
        } else if (depth == 0 && (c == ',' || c == ']' || c == '}')) {
            return;
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
}

static int array_scan(struct scan *s, struct fl_error *e)
{
    s->at++;
    skip_space(s);
    if (s->at < s->bytes && s->text[s->at] == ']')
        s->at++;
    else
        for (;;) {
            size_t start, line;
            skip_space(s);
            start = s->at;
            line = s->line;
            skip_element(s);
            if (s->at >= s->bytes)
                return error_set(e, -EINVAL, "the JSON array is not closed: is the file cut?");
            record_add(s, start, s->at, line);
            if (s->text[s->at++] != ',')
                break;
        }
    if (s->text[s->at - 1] != ']')
        return error_set(e, -EINVAL, "'}' where ',' or ']' belongs");
    skip_space(s);
    if (s->at < s->bytes)
        return error_set(e, -EINVAL, "text after the end of the JSON array: remove it");
    return 0;
}

static void lines_scan(struct scan *s)
{
    while (skip_space(s), s->at < s->bytes) {
        const char *newline = memchr(s->text + s->at, '\n', s->bytes - s->at);
        size_t end = newline ? (size_t)(newline - s->text) : s->bytes;
        record_add(s, s->at, end, s->line);
        s->at = end;
    }
}

// The first value of the text is a list of messages, not of samples.
static bool starts_with_messages(struct scan s)
{
    json_t *element;
    size_t start;
    bool yes;

    s.at++;
    skip_space(&s);
    start = s.at;
    skip_element(&s);
    element = json_loadb(s.text + start, s.at - start, JSON_ALLOW_NUL, NULL);
    yes = json_object_get(element, "role") != NULL;
    json_decref(element);
    return yes;
}

int records_find(const char *text, size_t bytes, struct record **out, size_t *count, size_t *line,
                 struct fl_error *e)
{
    struct scan s = {.text = text, .bytes = bytes, .line = 1};
    int rc = 0;

    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) // a byte order mark
        s.at = 3;
    skip_space(&s);
    if (s.at < bytes && text[s.at] == '[' && !starts_with_messages(s))
        rc = array_scan(&s, e);
    else
        lines_scan(&s);
    *line = s.line;
    if (rc < 0) {
        free(s.records);
        return rc;
    }
    *out = s.records;
    *count = s.count;
    return 0;
}
