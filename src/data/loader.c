// SPDX-License-Identifier: Apache-2.0
// Which samples a rank sees when.
#include "data/loader.h"

#include "base/memory.h"
#include "data/shuffle.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct loader {
    const struct dataset *dataset;
    struct loader_options options;
    int64_t iterations;
    uint32_t *order;     // [dataset->samples] of the epoch
    int64_t order_epoch; // -1: none yet
};

static int options_check(const struct dataset *d, const struct loader_options *o,
                         struct fl_error *e)
{
    int64_t step = (int64_t)o->micro_batch_size * o->dp_size;

    if (o->micro_batch_size < 1 || o->global_batch_size < 1)
        return error_set(e, -EINVAL,
                         "micro_batch_size %d and global_batch_size %d: must be at least 1",
                         o->micro_batch_size, o->global_batch_size);
    if (o->dp_size < 1 || o->dp_rank < 0 || o->dp_rank >= o->dp_size)
        return error_set(e, -EINVAL, "data-parallel rank %d of %d: no such rank", o->dp_rank,
                         o->dp_size);
    if (o->global_batch_size % step != 0)
        return error_set(e, -EINVAL,
                         "global_batch_size %d: must be a multiple of micro_batch_size %d x %d "
                         "data-parallel ranks; try %lld",
                         o->global_batch_size, o->micro_batch_size, o->dp_size,
                         (long long)((o->global_batch_size + step - 1) / step * step));
    if (d->samples == 0 || d->samples > UINT32_MAX)
        return error_set(e, -EINVAL, "%zu samples: from 1 to %u are supported", d->samples,
                         UINT32_MAX);
    if (d->longest > (size_t)o->max_length || d->longest * (size_t)o->micro_batch_size > INT32_MAX)
        return error_set(e, -EINVAL,
                         "micro_batch_size %d of samples up to %zu tokens, max_length %d: too long",
                         o->micro_batch_size, d->longest, o->max_length);
    if (!o->validation && d->samples < (size_t)o->global_batch_size)
        return error_set(e, -EINVAL,
                         "the training data has %zu samples, less than one global batch: lower "
                         "global_batch_size %d or add data",
                         d->samples, o->global_batch_size);
    return 0;
}

int loader_create(const struct dataset *dataset, const struct loader_options *options,
                  struct loader **out, struct fl_error *e)
{
    int64_t samples = (int64_t)dataset->samples, batch = options->global_batch_size;
    struct loader *l;
    int rc;

    *out = NULL;
    rc = options_check(dataset, options, e);
    if (rc < 0)
        return rc;
    l = memory_zeroed(1, sizeof *l);
    l->dataset = dataset;
    l->options = *options;
    l->iterations = options->validation ? (samples + batch - 1) / batch : samples / batch;
    l->order = memory_zeroed(dataset->samples, sizeof *l->order);
    l->order_epoch = -1;
    if (options->validation)
        for (size_t i = 0; i < dataset->samples; i++)
            l->order[i] = (uint32_t)i;
    *out = l;
    return 0;
}

void loader_destroy(struct loader *l)
{
    if (!l)
        return;
    free(l->order);
    free(l);
}

int64_t loader_iterations(const struct loader *l)
{
    return l->iterations;
}

int64_t loader_left_out(const struct loader *l)
{
    int64_t taken = l->iterations * l->options.global_batch_size;
    return l->options.validation ? 0 : (int64_t)l->dataset->samples - taken;
}

int loader_samples(const struct loader *l, int64_t iteration)
{
    int64_t place = iteration % l->iterations * l->options.global_batch_size;
    int64_t left = (int64_t)l->dataset->samples - place;
    return (int)(left < l->options.global_batch_size ? left : l->options.global_batch_size);
}

int loader_rounds(const struct loader *l, int64_t iteration)
{
    int64_t step = (int64_t)l->options.micro_batch_size * l->options.dp_size;
    return (int)((loader_samples(l, iteration) + step - 1) / step);
}

struct batch *loader_batch_create(const struct loader *l)
{
    size_t samples = (size_t)l->options.micro_batch_size;
    return batch_create(samples * l->dataset->longest, samples);
}

static void sample_pack(const struct loader *l, size_t sample, int64_t number, struct batch *b)
{
    const struct dataset *d = l->dataset;
    const int32_t *ids = d->ids + d->offsets[sample];
    const uint8_t *loss = d->loss + d->offsets[sample];
    int count = (int)(d->offsets[sample + 1] - d->offsets[sample]);
    uint64_t key = (uint64_t)number * (uint64_t)l->options.max_length;

    memcpy(b->ids + b->tokens, ids, (size_t)count * sizeof *ids);
    for (int p = 0; p < count; p++) {
        bool counts = p + 1 < count && loss[p + 1];
        b->targets[b->tokens + p] = counts ? ids[p + 1] : -1;
        b->target_count += counts;
        b->positions[b->tokens + p] = p;
        b->keys[b->tokens + p] = key + (uint64_t)p;
    }
    b->tokens += count;
    b->starts[++b->samples] = b->tokens;
}

void loader_fill(struct loader *l, int64_t iteration, int a, struct batch *b)
{
    const struct loader_options *o = &l->options;
    int64_t epoch = iteration / l->iterations, first = iteration % l->iterations;
    int64_t micro_batch = (int64_t)a * o->dp_size + o->dp_rank;
    int64_t place = micro_batch * o->micro_batch_size, end = place + o->micro_batch_size;

    if (!o->validation && epoch != l->order_epoch) {
        shuffle_order(o->seed, (uint64_t)epoch, l->order, l->dataset->samples);
        l->order_epoch = epoch;
    }
    if (end > loader_samples(l, iteration))
        end = loader_samples(l, iteration);
    b->tokens = b->samples = 0;
    b->target_count = 0;
    b->starts[0] = 0;
    for (; place < end; place++)
        sample_pack(l, l->order[first * o->global_batch_size + place],
                    iteration * o->global_batch_size + place, b);
}
