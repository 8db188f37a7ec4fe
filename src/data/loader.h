// SPDX-License-Identifier: Apache-2.0
// Which samples a rank sees when: global batches cut into micro-batches, dealt to the ranks.
//
// Iteration i of the run takes the next global_batch_size samples of its epoch's order. Of these,
// micro-batch j is samples [j * micro_batch_size, (j + 1) * micro_batch_size), and rank d of D runs
// j = a * D + d in round a = 0 .. accumulation - 1. The order never depends on the ranks.
//
// Training: every epoch has an order of its own, drawn from the seed; the samples behind the last
// whole global batch of an epoch are left out of it (20022 samples in batches of 16 are 1251
// iterations, as Megatron-LM's). Validation: the order of the files; the last batch may be smaller.
#ifndef FL_DATA_LOADER_H
#define FL_DATA_LOADER_H

#include "base/error.h"
#include "data/batch.h"
#include "data/dataset.h"

#include <stdbool.h>
#include <stdint.h>

struct loader; // borrows its dataset

struct loader_options {
    bool validation;
    uint64_t seed;
    int micro_batch_size, global_batch_size; // samples
    int dp_rank, dp_size;
    int max_length; // tokens; the longest sample the dataset was loaded with
};

// Refuses a global batch that does not divide into micro-batches times ranks, and training data of
// less than one global batch.
int loader_create(const struct dataset *dataset, const struct loader_options *options,
                  struct loader **out, struct fl_error *e);
void loader_destroy(struct loader *l); // NULL-safe

// Iterations of an epoch; at least 1.
int64_t loader_iterations(const struct loader *l);

// Samples of an epoch that its iterations do not take; 0 in validation.
int64_t loader_left_out(const struct loader *l);

// Rounds that iteration has. global_batch_size / (micro_batch_size * dp_size); fewer in the last,
// smaller batch of validation, but the same on every rank.
int loader_rounds(const struct loader *l, int64_t iteration);

// Samples of the iteration over all ranks.
int loader_samples(const struct loader *l, int64_t iteration);

// A batch that holds any micro-batch of this loader; batch_destroy() it.
struct batch *loader_batch_create(const struct loader *l);

// Fills b with this rank's micro-batch of round a. iteration: from 0, over the whole run (in
// validation modulo loader_iterations). In validation it may hold no sample: tokens is then 0, and
// the rank still takes part in what all ranks do together.
// Of a sample with global number n = iteration * global_batch_size + its place in the global batch,
// token p has the key n * max_length + p.
void loader_fill(struct loader *l, int64_t iteration, int a, struct batch *b);

#endif
