// SPDX-License-Identifier: Apache-2.0
// Gradients summed over the ranks, clipped by their global norm, applied with AdamW.
#include "train/optimizer.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

struct optimizer {
    struct optimizer_config config;
    size_t count; // elements of params
    struct moment first, second;
    int64_t steps; // taken
};

static int moment_alloc(struct optimizer *o, struct moment *moment, enum storage type, bool root,
                        struct fl_error *e)
{
    size_t values = moment_values_bytes(type, o->count),
           scales = moment_scales_bytes(type, o->count);
    void *at = NULL;
    int rc;

    *moment = (struct moment){.type = type, .root = root};
    rc = arena_alloc(o->config.arena, MEMORY_OPTIMIZER, values, &moment->values, e);
    if (rc == 0 && scales)
        rc = arena_alloc(o->config.arena, MEMORY_OPTIMIZER, scales, &at, e);
    moment->scales = at;
    return rc;
}

int optimizer_create(const struct optimizer_config *config, struct optimizer **out,
                     struct fl_error *e)
{
    struct optimizer *o = memory_zeroed(1, sizeof *o);
    int rc;

    *out = NULL;
    o->config = *config;
    o->count = config->adapters->replicated + config->adapters->expert;
    rc = moment_alloc(o, &o->first, config->spec->exp_avg, false, e);
    if (rc == 0)
        rc = moment_alloc(o, &o->second, config->spec->exp_avg_sq, true, e);
    if (rc < 0) {
        free(o);
        return rc;
    }
    *out = o;
    return 0;
}

void optimizer_destroy(struct optimizer *optimizer)
{
    free(optimizer);
}

int optimizer_clear(struct optimizer *o, struct fl_error *e)
{
    return o->config.ops->zero(o->config.ops, o->config.adapters->grads, o->count * sizeof(real),
                               e);
}

// Every rank adds its part of the squares divided by the ranks that add the same, and one sum over
// the world gives all ranks the same bits: replicas that clip differently would drift apart.
static int norm_global(struct optimizer *o, double *norm, struct fl_error *e)
{
    const struct adapters *a = o->config.adapters;
    struct ops *ops = o->config.ops;
    double replicated, expert, squares;
    int rc = ops->sum_squares(ops, a->grads, a->replicated, &replicated, e);

    if (rc == 0)
        rc = ops->sum_squares(ops, a->grads + a->replicated, a->expert, &expert, e);
    if (rc < 0)
        return rc;
    squares = replicated / comm_size(o->config.world) + expert / comm_size(o->config.replicas);
    rc = comm_all_reduce(o->config.world, &squares, 1, COMM_F64, COMM_SUM, e);
    *norm = sqrt(squares);
    return rc;
}

int optimizer_reduce(struct optimizer *o, double *norm, struct fl_error *e)
{
    const struct adapters *a = o->config.adapters;
    enum comm_type type = sizeof(real) == sizeof(float) ? COMM_F32 : COMM_F64;
    int rc = comm_all_reduce(o->config.world, a->grads, a->replicated, type, COMM_SUM, e);

    if (rc == 0)
        rc = comm_all_reduce(o->config.replicas, a->grads + a->replicated, a->expert, type,
                             COMM_SUM, e);
    return rc < 0 ? rc : norm_global(o, norm, e);
}

int optimizer_step(struct optimizer *o, double lr, double norm, struct fl_error *e)
{
    const struct spec *spec = o->config.spec;
    struct adapters *a = o->config.adapters;
    double clip = spec->clip_grad;
    struct adamw adamw = {
        .lr = lr,
        .beta1 = spec->adam_beta1,
        .beta2 = spec->adam_beta2,
        .eps = spec->adam_eps,
        .weight_decay = spec->weight_decay,
        .step = ++o->steps,
    };

    return o->config.ops->adamw(o->config.ops, &adamw, clip > 0 ? fmin(1, clip / (norm + 1e-6)) : 1,
                                o->count, a->params, a->grads, &o->first, &o->second, e);
}
