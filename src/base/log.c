// SPDX-License-Identifier: Apache-2.0
// Lines for people on standard error.
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *program = "fp8-lora";

void log_name(const char *name)
{
    program = name;
}

__attribute__((format(printf, 2, 0))) static void line_write(const char *level, const char *format,
                                                             va_list args)
{
    char line[2048];
    size_t used, room = sizeof line - 1; // the newline always fits

    used = (size_t)snprintf(line, room, "%s: %s", program, level);
    if (used < room)
        used += (size_t)vsnprintf(line + used, room - used, format, args);
    if (used >= room)
        used = room - 1;
    line[used++] = '\n';
    for (size_t done = 0; done < used;) {
        ssize_t n = write(STDERR_FILENO, line + done, used - done);
        if (n <= 0)
            return;
        done += (size_t)n;
    }
}

#define LOG_LEVEL(function, level)                                                                 \
    void function(const char *format, ...)                                                         \
    {                                                                                              \
        va_list args;                                                                              \
        va_start(args, format);                                                                    \
        line_write(level, format, args);                                                           \
        va_end(args);                                                                              \
    }

LOG_LEVEL(log_info, "")
LOG_LEVEL(log_warn, "warning: ")
LOG_LEVEL(log_error, "error: ")
