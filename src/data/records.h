// SPDX-License-Identifier: Apache-2.0
// Where the samples of a dataset file start: lines of JSONL, or elements of one JSON array.
#ifndef FL_DATA_RECORDS_H
#define FL_DATA_RECORDS_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

struct record {
    const char *text; // of one JSON value, not parsed yet; borrowed from the file's text
    size_t bytes;
    size_t line; // of the file, from 1
};

// Fills *out with the file's records, to be free()d. A file that starts with '[' is an array,
// unless what follows are messages themselves ([{"role": ...): then its lines are records. Empty
// lines are no records. Only the array's own structure is checked; *line is the line of an error.
int records_find(const char *text, size_t bytes, struct record **out, size_t *count, size_t *line,
                 struct fl_error *e);

#endif
