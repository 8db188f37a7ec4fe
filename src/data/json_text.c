// SPDX-License-Identifier: Apache-2.0
// JSON as chat templates write it.
#include "data/json_text.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REAL_TEXT      40
#define REAL_DIGITS    17 // tell every double from its neighbours
#define EXPONENT_LEAST (-4)
#define EXPONENT_MOST  16 // from here on Python writes an exponent

struct text {
    char *at;
    size_t bytes, capacity;
};

static void append(struct text *t, const char *what, size_t bytes)
{
    if (t->capacity - t->bytes < bytes) {
        t->capacity = 2 * t->capacity + bytes;
        t->at = memory_resize(t->at, t->capacity, 1);
    }
    memcpy(t->at + t->bytes, what, bytes);
    t->bytes += bytes;
}

static void word(struct text *t, const char *what)
{
    append(t, what, strlen(what));
}

// The fewest digits that read back as the same number.
static void real_append(struct text *t, double x)
{
    char digits[REAL_TEXT], *exponent;
    int power, count = 1;

    do
        snprintf(digits, sizeof digits, "%.*e", count - 1, x);
    while (strtod(digits, NULL) != x && count++ < REAL_DIGITS);
    exponent = strchr(digits, 'e');
    power = atoi(exponent + 1);
    if (power < EXPONENT_LEAST || power >= EXPONENT_MOST) {
        word(t, digits);
        return;
    }
    snprintf(digits, sizeof digits, "%.*f", count - 1 - power > 1 ? count - 1 - power : 1, x);
    word(t, digits);
}

// A string or a key, quoted and escaped.
static void string_append(struct text *t, const char *s, size_t bytes)
{
    json_t *value = json_stringn_nocheck(s, bytes);
    char *quoted = json_dumps(value, JSON_ENCODE_ANY);

    word(t, quoted);
    free(quoted);
    json_decref(value);
}

static void value_append(struct text *t, const json_t *value)
{
    char number[REAL_TEXT];
    const json_t *member;
    const char *key, *between = "";
    size_t i;

    switch (json_typeof(value)) {
    case JSON_OBJECT:
        word(t, "{");
        // Looking does not change it, though the iterator's type says so.
        json_object_foreach((json_t *)value, key, member)
        {
            word(t, between);
            string_append(t, key, strlen(key));
            word(t, ": ");
            value_append(t, member);
            between = ", ";
        }
        word(t, "}");
        break;
    case JSON_ARRAY:
        word(t, "[");
        json_array_foreach(value, i, member)
        {
            word(t, between);
            value_append(t, member);
            between = ", ";
        }
        word(t, "]");
        break;
    case JSON_STRING:
        string_append(t, json_string_value(value), json_string_length(value));
        break;
    case JSON_INTEGER:
        snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        word(t, number);
        break;
    case JSON_REAL:
        real_append(t, json_real_value(value));
        break;
    case JSON_TRUE:
        word(t, "true");
        break;
    case JSON_FALSE:
        word(t, "false");
        break;
    case JSON_NULL:
        word(t, "null");
        break;
    }
}

char *json_text(const json_t *value, size_t *bytes)
{
    struct text t = {0};

    value_append(&t, value);
    *bytes = t.bytes;
    return t.at;
}
