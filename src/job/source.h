// SPDX-License-Identifier: Apache-2.0
// Where a model comes from: a folder in Hugging Face layout, or weights made from its shapes alone.
#ifndef FL_JOB_SOURCE_H
#define FL_JOB_SOURCE_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define SOURCE_SYNTH "synth://"

struct source {
    char *config; // path of config.json
    char *folder; // that holds it and the tokenizer
    bool synth;   // weights are made, not read
    uint64_t seed;
};

// model: FOLDER, or synth://FOLDER?seed=N, or synth://FILE.json?seed=N; without ?seed the seed is
// 0. The strings are the caller's, source_clear() them.
int source_parse(const char *model, struct source *source, struct fl_error *e);
void source_clear(struct source *source);

#endif
