// SPDX-License-Identifier: Apache-2.0
// The command line of the client (srun, sbatch, salloc) this plugin was loaded into.
#ifndef FL_PLUGIN_WORDS_H
#define FL_PLUGIN_WORDS_H

#include "base/error.h"

#include <stddef.h>

struct words {
    char *bytes;
    char **argv; // NULL-terminated; into bytes
    int argc;
};

// Reads /proc/self/cmdline.
int words_read(struct words *words, struct fl_error *e);
// Splits bytes (NUL behind each word); takes ownership of bytes, also on failure.
int words_split(char *bytes, size_t size, struct words *words, struct fl_error *e);
void words_free(struct words *words);

// The word among argv[1..end) that gives the long option --name, in getopt's sense: with or without
// =VALUE, abbreviated or not; NULL when there is none. Words behind "--" are no options.
const char *words_option(const struct words *words, int end, const char *name);

// What the last --name, of which shortest characters are enough, or -letter (0: none) among
// argv[1..end) carries; NULL: none.
const char *words_value(const struct words *words, int end, const char *name, size_t shortest,
                        char letter);

// The number that the last -n, --ntasks among argv[1..end) carries; 0: none.
int words_tasks(const struct words *words, int end);

#endif
