// SPDX-License-Identifier: Apache-2.0
// One error: a negative errno and one line for a person: what, where, what to do.
#ifndef FL_BASE_ERROR_H
#define FL_BASE_ERROR_H

#define FL_ERROR_TEXT 1024

struct fl_error {
    int code;                 // 0, or a negative errno
    char text[FL_ERROR_TEXT]; // one line, no newline at its end
};

// Fills e (which may be NULL) and returns code, so that `return error_set(e, -EINVAL, ...)` works.
// code: a negative errno. Newlines and control characters of the text become spaces.
int error_set(struct fl_error *e, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Puts "prefix: " before e's text, where a caller knows the place better. Returns e->code.
int error_prefix(struct fl_error *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
