// SPDX-License-Identifier: Apache-2.0
// The one table of names: keys of job.yaml and flags of the command line are rows of it.
#ifndef FL_JOB_FLAGS_H
#define FL_JOB_FLAGS_H

#include "job/spec.h"

#include <stdio.h>

enum flag_type {
    FLAG_BOOL,    // true, false, 1, 0; a flag without a value is true
    FLAG_INT,     // int
    FLAG_INT64,   // int64_t
    FLAG_UINT64,  // uint64_t
    FLAG_REAL,    // double
    FLAG_CHOICE,  // int: index into choices
    FLAG_WORD,    // char *
    FLAG_LIST,    // char ** with the count in the size_t at count_offset
    FLAG_TARGETS, // unsigned: enum lora_target, or-ed
};

#define FLAG_NOWHERE ((size_t)-1)
#define FLAG_ALIASES 6 // and a NULL

struct flag {
    const char *name;
    const char *aliases[FLAG_ALIASES]; // other names, NULL behind them
    enum flag_type type;
    const char *preset;  // value when it is not given, as a user would write it; NULL: none
    const char *range;   // of numbers: "[1, 65536]", "(0, inf]"; round brackets exclude the bound
    const char *choices; // the values it can have, separated by spaces, or NULL
    size_t offset;       // in struct spec; FLAG_NOWHERE: read and checked, then without effect
    size_t count_offset; // of FLAG_LIST
    const char *help;    // one line
    const char *only;    // the values of choices this build honours, separated by spaces, or NULL
    const char *note;    // what a user who gives it must know; NULL: it does what it says
};

// All rows, in the order of the help.
const struct flag *flags_table(size_t *count);

// The row of a name or alias; leading dashes are skipped and '-' counts as '_'. NULL: unknown.
const struct flag *flag_find(const char *name);

// The known name nearest to a misspelt one, or NULL.
const char *flag_nearest(const char *name);

// Sets one value (several of a list or of targets) in spec, replacing an earlier one. The error
// does not name the flag: the caller knows the place.
int flag_set(struct spec *spec, const struct flag *flag, size_t count, const char *const *values,
             struct fl_error *e);

// Gives every row its preset.
void flags_preset(struct spec *spec);

// Frees what rows of the table own in spec.
void flags_release(struct spec *spec);

// The table for a person.
void flags_print(FILE *out);

#endif
