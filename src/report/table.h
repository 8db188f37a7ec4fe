// SPDX-License-Identifier: Apache-2.0
// A step's ranks as a table for people.
#ifndef FL_REPORT_TABLE_H
#define FL_REPORT_TABLE_H

#include <jansson.h>
#include <stdio.h>

// step: an entry of comment.h's "steps"; its values may be anything, and only printable characters
// reach out.
void table_print(FILE *out, json_t *step);

#endif
