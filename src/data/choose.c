// SPDX-License-Identifier: Apache-2.0
// Some of a dataset's samples.
#include "data/dataset.h"

#include "base/memory.h"
#include "data/shuffle.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SPLIT_EPOCH UINT64_MAX // keeps the split's order apart from those of training

void dataset_choose(struct dataset *d, const size_t *wanted, size_t count)
{
    struct dataset from = *d;
    size_t tokens = 0;

    for (size_t i = 0; i < count; i++)
        tokens += from.offsets[wanted[i] + 1] - from.offsets[wanted[i]];
    d->samples = 0;
    d->longest = 0;
    d->targets = 0;
    d->offsets = memory_zeroed(count + 1, sizeof *d->offsets);
    d->ids = memory_zeroed(tokens, sizeof *d->ids);
    d->loss = memory_zeroed(tokens, 1);
    for (size_t i = 0; i < count; i++) {
        size_t at = from.offsets[wanted[i]], length = from.offsets[wanted[i] + 1] - at;
        size_t start = d->offsets[d->samples];
        memcpy(d->ids + start, from.ids + at, length * sizeof *d->ids);
        memcpy(d->loss + start, from.loss + at, length);
        for (size_t k = 1; k < length; k++)
            d->targets += d->loss[start + k];
        d->longest = length > d->longest ? length : d->longest;
        d->offsets[++d->samples] = start + length;
    }
    free(from.offsets);
    free(from.ids);
    free(from.loss);
}

static struct dataset *dataset_copy(const struct dataset *d)
{
    struct dataset *copy = memory_zeroed(1, sizeof *copy);
    size_t tokens = d->offsets[d->samples];

    *copy = *d;
    copy->offsets = memory_zeroed(d->samples + 1, sizeof *d->offsets);
    copy->ids = memory_zeroed(tokens, sizeof *d->ids);
    copy->loss = memory_zeroed(tokens, 1);
    memcpy(copy->offsets, d->offsets, (d->samples + 1) * sizeof *d->offsets);
    memcpy(copy->ids, d->ids, tokens * sizeof *d->ids);
    memcpy(copy->loss, d->loss, tokens);
    return copy;
}

int dataset_split(struct dataset *d, double share, uint64_t seed, struct dataset **validation,
                  struct fl_error *e)
{
    size_t held = (size_t)((double)d->samples * share + 0.5), kept = 0, moved = 0;
    uint32_t *order;
    size_t *stays, *moves;
    uint8_t *moving;

    *validation = NULL;
    held = held ? held : 1;
    if (held >= d->samples)
        return error_set(e, -EINVAL,
                         "split_dataset_ratio %g of %zu samples leaves none to train on: lower it, "
                         "or give val_dataset",
                         share, d->samples);
    order = memory_zeroed(d->samples, sizeof *order);
    moving = memory_zeroed(d->samples, 1);
    stays = memory_zeroed(d->samples, sizeof *stays);
    moves = memory_zeroed(held, sizeof *moves);
    shuffle_order(seed, SPLIT_EPOCH, order, d->samples);
    for (size_t i = 0; i < held; i++)
        moving[order[i]] = 1;
    for (size_t i = 0; i < d->samples; i++)
        if (moving[i])
            moves[moved++] = i;
        else
            stays[kept++] = i;
    *validation = dataset_copy(d);
    (*validation)->records = (*validation)->too_long = (*validation)->no_target = 0;
    dataset_choose(*validation, moves, moved);
    dataset_choose(d, stays, kept);
    free(moves);
    free(stays);
    free(moving);
    free(order);
    return 0;
}
