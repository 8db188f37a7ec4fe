// SPDX-License-Identifier: Apache-2.0
// Small host allocations that end the program when memory is gone.
#include "base/memory.h"

#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *checked(void *p, size_t count, size_t size)
{
    if (p)
        return p;
    log_error("out of host memory for %zu x %zu bytes: give the job more (--mem)", count, size);
    abort();
}

void *memory_zeroed(size_t count, size_t size)
{
    return checked(calloc(count ? count : 1, size ? size : 1), count, size);
}

void *memory_resize(void *old, size_t count, size_t size)
{
    return checked(reallocarray(old, count ? count : 1, size ? size : 1), count, size);
}

char *memory_string(const char *text)
{
    return checked(strdup(text), 1, strlen(text));
}

char *memory_format(const char *format, ...)
{
    char *text = NULL;
    va_list args;

    va_start(args, format);
    if (vasprintf(&text, format, args) < 0)
        text = NULL;
    va_end(args);
    return checked(text, 1, 0);
}
