// SPDX-License-Identifier: Apache-2.0
// The learning rate as a function of the samples consumed.
#include "train/schedule.h"

#include <math.h>

struct schedule schedule_make(const struct spec *spec, int64_t iterations)
{
    double end = (double)iterations * spec->global_batch_size;

    return (struct schedule){
        .decay = spec->lr_decay,
        .lr = spec->lr,
        .min_lr = spec->min_lr,
        .warmup = spec->lr_warmup_fraction * end,
        .end = end,
    };
}

double schedule_lr(const struct schedule *s, int64_t consumed_samples)
{
    double n = (double)consumed_samples, past;

    if (n <= s->warmup && s->warmup > 0)
        return s->lr * n / s->warmup;
    if (s->decay == DECAY_CONSTANT)
        return s->lr;
    if (n >= s->end)
        return s->min_lr;
    past = (n - s->warmup) / (s->end - s->warmup);
    if (s->decay == DECAY_LINEAR)
        return s->min_lr + (s->lr - s->min_lr) * (1 - past);
    return s->min_lr + (s->lr - s->min_lr) * 0.5 * (1 + cos(M_PI * past));
}
