// SPDX-License-Identifier: Apache-2.0
// The nearest known name to a misspelt one.
#ifndef FL_BASE_NEAREST_H
#define FL_BASE_NEAREST_H

#include <stddef.h>

// The name of names[count] with the smallest edit distance (insert, delete, replace, swap of
// neighbours) to word, or NULL when none is within a third of the word's length (at least 2).
const char *nearest_name(const char *word, const char *const *names, size_t count);

#endif
