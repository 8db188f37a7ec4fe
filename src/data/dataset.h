// SPDX-License-Identifier: Apache-2.0
// A dataset in memory: the token ids of every sample that can be trained on, with its loss mask.
#ifndef FL_DATA_DATASET_H
#define FL_DATA_DATASET_H

#include "base/error.h"
#include "data/template.h"
#include "data/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dataset {
    size_t samples;
    size_t *offsets;  // [samples + 1] first token of each sample; offsets[samples] = tokens
    int32_t *ids;     // [offsets[samples]]
    uint8_t *loss;    // [offsets[samples]] 1: predicting this token counts
    size_t longest;   // tokens of the longest sample
    int64_t targets;  // tokens whose prediction counts
    size_t records;   // samples in the files
    size_t too_long;  // dropped: more than max_length tokens
    size_t no_target; // dropped: no token that counts
};

struct dataset_options {
    const struct tokenizer *tokenizer;
    enum template_kind template;
    int max_length; // tokens of a sample
    int threads;
    uint64_t seed; // of choices among samples
};

// Reads files of samples in the formats of data/formats.h, each JSONL or one JSON array, through
// the chat template. "FILE#N" takes N samples of a file: the whole of it as often as it fits, and
// of the rest a part drawn from the seed. Samples stay in the order of the files whatever the
// number of threads. An unreadable file, a record that is no sample (named "file:line"), and a
// dataset without samples are errors.
int dataset_load(char *const *paths, size_t path_count, const struct dataset_options *options,
                 struct dataset **out, struct fl_error *e);

// Moves a share of the samples, rounded to a whole number of at least one, drawn from the seed, to
// *validation; both keep the order. Refuses a share that leaves no sample on either side.
int dataset_split(struct dataset *d, double share, uint64_t seed, struct dataset **validation,
                  struct fl_error *e);

// Keeps wanted[count], numbers of samples in any order and number, alone.
void dataset_choose(struct dataset *d, const size_t *wanted, size_t count);

// Samples made from nothing, for runs without data: source is synth://?samples=N&seed=S (either may
// be left out: 1024 and 0). Each has max_length tokens below vocab: every second one follows from
// the one before, so that there is something to learn, the others are rarer the larger they are.
// The last three quarters count in the loss.
bool dataset_is_made(const char *source);
int dataset_make(const char *source, int vocab, int max_length, struct dataset **out,
                 struct fl_error *e);

void dataset_destroy(struct dataset *d); // NULL-safe

#endif
