// SPDX-License-Identifier: Apache-2.0
// Small host allocations that cannot usefully fail: they end the program with one line if they do.
// Large buffers come from mem/arena, which fails with a struct fl_error; the plugin uses neither.
#ifndef FL_BASE_MEMORY_H
#define FL_BASE_MEMORY_H

#include <stddef.h>

// Zeroed; count*size is checked for overflow; free with free().
void *memory_zeroed(size_t count, size_t size);
// As realloc of count*size bytes.
void *memory_resize(void *old, size_t count, size_t size);
char *memory_string(const char *text);
// A string made as printf would.
char *memory_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
