// SPDX-License-Identifier: Apache-2.0
// Added tokens: strings such as <|im_end|> that are one token wherever they stand in the text.
#ifndef FL_DATA_ADDED_H
#define FL_DATA_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct added;

struct added *added_create(void);
void added_destroy(struct added *a); // NULL-safe

// Copies text, which is not empty; the same text again replaces its id.
void added_insert(struct added *a, const char *text, size_t bytes, int32_t id);

size_t added_count(const struct added *a);

// The leftmost token at or after `from`, the longest of those that start there.
bool added_next(const struct added *a, const char *text, size_t bytes, size_t from, size_t *start,
                size_t *end, int32_t *id);

#endif
