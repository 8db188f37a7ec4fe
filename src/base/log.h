// SPDX-License-Identifier: Apache-2.0
// Lines for people on standard error, each written in one call so that ranks do not mix.
#ifndef FL_BASE_LOG_H
#define FL_BASE_LOG_H

// Prefix of every line, "fp8-lora" unless set; kept by reference.
void log_name(const char *name);

void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
