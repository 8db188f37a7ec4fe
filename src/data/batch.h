// SPDX-License-Identifier: Apache-2.0
// A micro-batch without padding: samples one after another, attention confined to each.
#ifndef FL_DATA_BATCH_H
#define FL_DATA_BATCH_H

#include <stddef.h>
#include <stdint.h>

struct batch {
    int tokens, samples;
    int32_t *ids;       // [tokens]
    int32_t *targets;   // [tokens] the token to predict at this place, -1 where the loss is masked
    int32_t *positions; // [tokens] restart at 0 with every sample
    int32_t *starts;    // [samples + 1] first token of each sample; starts[samples] = tokens
    uint64_t *keys;     // [tokens] global number of the token in the run, whatever the rank count
    int64_t target_count; // targets that are not -1
};

// Room for so many tokens and samples; holds none.
struct batch *batch_create(size_t tokens, size_t samples);
void batch_destroy(struct batch *b); // NULL-safe

#endif
