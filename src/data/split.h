// SPDX-License-Identifier: Apache-2.0
// Cuts text into pretokens by the regular expression of tokenizer.json.
#ifndef FL_DATA_SPLIT_H
#define FL_DATA_SPLIT_H

#include "base/error.h"

#include <stddef.h>

struct split;       // the compiled expression; shared by threads
struct split_state; // what one thread needs to match it

// Compiles pattern, written for Oniguruma as Hugging Face's library reads it. The dialects of
// Oniguruma and PCRE2 agree on the escapes \p \P \d \r \n \t and on escaped punctuation; \s and \S
// become Unicode's White_Space (PCRE2's own would add U+180E); every other escape, nested classes
// and class intersections are refused by name.
int split_create(const char *pattern, size_t bytes, struct split **out, struct fl_error *e);
void split_destroy(struct split *s); // NULL-safe

struct split_state *split_state_create(void);
void split_state_destroy(struct split_state *state); // NULL-safe

// The first match in text (valid UTF-8) at or after `from` that is not empty. Returns 1 with its
// place, 0 when there is none, or a negative errno when the matcher gave up.
int split_next(const struct split *s, struct split_state *state, const char *text, size_t bytes,
               size_t from, size_t *start, size_t *end, struct fl_error *e);

#endif
