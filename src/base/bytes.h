// SPDX-License-Identifier: Apache-2.0
// Amounts of memory as people write them: 80GiB, 512 MiB, 4645 bytes.
#ifndef FL_BASE_BYTES_H
#define FL_BASE_BYTES_H

#include "base/error.h"

#include <stdint.h>

#define BYTES_TEXT 32

// A whole or decimal number and a unit: none or B, K, M, G, T with or without iB (powers of 1024),
// KB, MB, GB, TB (powers of 1000). A space may stand between.
int bytes_parse(const char *text, uint64_t *bytes, struct fl_error *e);

// "4.81 GiB", in the largest unit that leaves a number of 1 or more; returns text.
char *bytes_format(uint64_t bytes, char text[BYTES_TEXT]);

#endif
