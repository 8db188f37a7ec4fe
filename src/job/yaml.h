// SPDX-License-Identifier: Apache-2.0
// A flat YAML mapping: keys with scalars or sequences of scalars, each with its line.
#ifndef FL_JOB_YAML_H
#define FL_JOB_YAML_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

#define YAML_BYTES_MAX (1u << 20)
#define YAML_KEYS_MAX  1000

struct yaml_entry {
    char *key;
    int line; // of the key, from 1
    char **values;
    size_t count;
};

struct yaml_map {
    struct yaml_entry *entries; // in the file's order
    size_t count;
};

// Parses text; name is the file's name for messages, which carry name:line. Refused: more than one
// document, nesting, anchors, aliases, tags, a key twice, keys without a value, invalid UTF-8, more
// than YAML_BYTES_MAX bytes or YAML_KEYS_MAX keys. On success *out is the caller's.
int yaml_map_parse(const char *text, size_t bytes, const char *name, struct yaml_map **out,
                   struct fl_error *e);
void yaml_map_destroy(struct yaml_map *map); // NULL-safe

#endif
