// SPDX-License-Identifier: Apache-2.0
// One error: a negative errno and one line for a person.
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void text_flatten(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c; c++)
        if (*c < 0x20 || *c == 0x7f)
            *c = ' ';
}

int error_set(struct fl_error *e, int code, const char *format, ...)
{
    va_list args;

    if (!e)
        return code;
    e->code = code;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    text_flatten(e->text);
    return code;
}

int error_prefix(struct fl_error *e, const char *format, ...)
{
    char text[FL_ERROR_TEXT];
    size_t used;
    va_list args;

    if (!e)
        return -1;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    used = strlen(text);
    snprintf(text + used, sizeof text - used, ": %s", e->text);
    text_flatten(text);
    memcpy(e->text, text, sizeof text);
    return e->code;
}
