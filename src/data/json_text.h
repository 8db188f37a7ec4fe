// SPDX-License-Identifier: Apache-2.0
// JSON as chat templates write it: Python's json.dumps(value, ensure_ascii=False).
#ifndef FL_DATA_JSON_TEXT_H
#define FL_DATA_JSON_TEXT_H

#include <jansson.h>
#include <stddef.h>

// ", " and ": " between, keys in their order, numbers as Python's repr. free() it.
char *json_text(const json_t *value, size_t *bytes);

#endif
