// SPDX-License-Identifier: Apache-2.0
// The dry backend's memory, the operations without scratch, and what it saw.
#include "ops/dry/table.h"

#include "base/memory.h"
#include "ops/dry/routing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The layer that owns the array; -1 where none does.
static int layer_of(const struct dry *dry, const void *array)
{
    const struct model_weights *w = dry->weights;

    for (int i = 0; w && i < dry->table.model->layers; i++) {
        const struct layer_weights *l = &w->layers[i];
        if (array == l->input_norm || array == l->post_norm || array == l->q_norm ||
            array == l->router || array == l->qkv.data || array == l->proj.data ||
            array == l->fc1.data || array == l->fc2.data)
            return i;
    }
    return -1;
}

// Peaks since the last look were reached here.
static void look(struct dry *dry)
{
    struct arena_stats now;

    arena_stats_get(dry->config.arena, &now);
    if (now.peak_total > dry->seen.peak_total)
        dry->peak = dry->here;
    if (now.largest > dry->seen.largest)
        dry->largest = dry->here;
    if (now.mapped_total < dry->seen.mapped_total)
        now.mapped_total = dry->seen.mapped_total;
    dry->seen = now;
}

struct arena_mark dry_begin(struct ops *ops, const char *operation, const void *weight)
{
    struct dry *dry = dry_of(ops);

    dry->here.operation = operation;
    if (weight)
        dry->here.layer = layer_of(dry, weight);
    look(dry);
    return arena_mark(dry->config.arena);
}

int dry_push(struct ops *ops, size_t bytes, struct fl_error *e)
{
    struct dry *dry = dry_of(ops);
    void *nothing;
    int rc = arena_push(dry->config.arena, MEMORY_WORKSPACE, bytes, &nothing, e);

    look(dry);
    return rc;
}

int dry_push_all(struct ops *ops, const size_t *bytes, int count, struct fl_error *e)
{
    int rc = 0;

    for (int i = 0; i < count && rc == 0; i++)
        rc = dry_push(ops, bytes[i], e);
    return rc;
}

int dry_end(struct ops *ops, struct arena_mark mark, int rc)
{
    arena_release(dry_of(ops)->config.arena, mark);
    return rc;
}

// Without scratch.
static int pass_by(struct ops *ops, const char *operation, const void *weight)
{
    return dry_end(ops, dry_begin(ops, operation, weight), 0);
}

void dry_dispatch(struct ops *ops, int tokens, int64_t *counts)
{
    const struct dry *dry = dry_of(ops);
    const struct model *m = ops->model;

    dry_routing_count(&(struct dry_routing){.tokens = tokens,
                                            .top_k = m->top_k,
                                            .experts = m->experts,
                                            .experts_local = dry->config.layout->experts_local,
                                            .expert_first = dry->config.layout->expert_first,
                                            .capacity = dry->capacity,
                                            .skew = dry->config.skew},
                      counts);
}

static int dry_staging(struct ops *ops, size_t bytes, void **host, struct fl_error *e)
{
    (void)ops, (void)e;
    *host = memory_zeroed(bytes, 1);
    return 0;
}

static void dry_staging_free(struct ops *ops, void *host)
{
    (void)ops;
    free(host);
}

static int dry_upload(struct ops *ops, void *device, const void *host, size_t bytes,
                      struct fl_error *e)
{
    (void)ops, (void)device, (void)host, (void)bytes, (void)e;
    return 0;
}

static int dry_download(struct ops *ops, void *host, const void *device, size_t bytes,
                        struct fl_error *e)
{
    (void)ops, (void)device, (void)e;
    if (bytes)
        memset(host, 0, bytes);
    return 0;
}

static int dry_zero(struct ops *ops, void *device, size_t bytes, struct fl_error *e)
{
    (void)ops, (void)device, (void)bytes, (void)e;
    return 0;
}

static int dry_stream_read(struct ops *ops, real *host, const void *x, int rows, int cols,
                           struct fl_error *e)
{
    return dry_download(ops, host, x, (size_t)rows * (size_t)cols * sizeof *host, e);
}

// A pass begins.
static int dry_embed(struct ops *ops, const uint16_t *table, const int32_t *ids, int tokens,
                     void *x, struct fl_error *e)
{
    (void)ids, (void)tokens, (void)x, (void)e;
    dry_of(ops)->here.backward = false;
    return pass_by(ops, "embed", table);
}

static int dry_norm_forward(struct ops *ops, const void *x, const void *delta, const float *gain,
                            int rows, int cols, void *sum, void *y, void *yq, struct fl_error *e)
{
    (void)x, (void)delta, (void)rows, (void)cols, (void)sum, (void)y, (void)yq, (void)e;
    return pass_by(ops, "norm_forward", gain);
}

// The final norm's begins the backward pass.
static int dry_norm_backward(struct ops *ops, const void *x, const float *gain, const void *dy,
                             int rows, int cols, void *dx, struct fl_error *e)
{
    struct dry *dry = dry_of(ops);

    (void)x, (void)dy, (void)rows, (void)cols, (void)dx, (void)e;
    dry->here.backward |= dry->weights && gain == dry->weights->final_norm;
    return pass_by(ops, "norm_backward", gain);
}

static int dry_quantise(struct ops *ops, const void *x, int rows, int cols, void *xq,
                        struct fl_error *e)
{
    (void)x, (void)rows, (void)cols, (void)xq, (void)e;
    return pass_by(ops, "quantise", NULL);
}

static int dry_rope_table(struct ops *ops, const int32_t *positions, int tokens, real *table,
                          struct fl_error *e)
{
    (void)positions, (void)tokens, (void)e;
    return pass_by(ops, "rope_table", table);
}

static int dry_rope_forward(struct ops *ops, const void *qkv, const float *q_norm,
                            const float *k_norm, const real *table, int tokens, void *qk,
                            struct fl_error *e)
{
    (void)qkv, (void)k_norm, (void)table, (void)tokens, (void)qk, (void)e;
    return pass_by(ops, "rope_forward", q_norm);
}

static int dry_rope_backward(struct ops *ops, const void *qkv, const float *q_norm,
                             const float *k_norm, const real *table, int tokens, void *dqkv,
                             struct fl_error *e)
{
    (void)qkv, (void)k_norm, (void)table, (void)tokens, (void)dqkv, (void)e;
    return pass_by(ops, "rope_backward", q_norm);
}

static int dry_rows_gather(struct ops *ops, const void *from, const int32_t *index, int divide,
                           int rows, size_t row_bytes, void *to, struct fl_error *e)
{
    (void)from, (void)index, (void)divide, (void)rows, (void)row_bytes, (void)to, (void)e;
    return pass_by(ops, "rows_gather", NULL);
}

static int dry_rows_scatter(struct ops *ops, const void *from, const int32_t *index, int rows,
                            size_t row_bytes, void *to, struct fl_error *e)
{
    (void)from, (void)index, (void)rows, (void)row_bytes, (void)to, (void)e;
    return pass_by(ops, "rows_scatter", NULL);
}

static int dry_combine(struct ops *ops, const void *rows, const int32_t *position,
                       const real *weights, const void *residual, int tokens, void *out,
                       struct fl_error *e)
{
    (void)rows, (void)position, (void)weights, (void)residual, (void)tokens, (void)out, (void)e;
    return pass_by(ops, "combine", NULL);
}

static int dry_scale(struct ops *ops, real *x, size_t count, double factor, struct fl_error *e)
{
    (void)count, (void)factor, (void)e;
    return pass_by(ops, "scale", x);
}

static int dry_adamw(struct ops *ops, const struct adamw *adamw, double grad_scale, size_t count,
                     real *params, const real *grads, const struct moment *first,
                     const struct moment *second, struct fl_error *e)
{
    (void)adamw, (void)grad_scale, (void)count, (void)grads, (void)first, (void)second, (void)e;
    return pass_by(ops, "adamw", params);
}

static void dry_destroy(struct ops *ops)
{
    free(ops);
}

static const struct ops dry_table = {
    .name = "dry",
    .destroy = dry_destroy,
    .staging = dry_staging,
    .staging_free = dry_staging_free,
    .upload = dry_upload,
    .download = dry_download,
    .zero = dry_zero,
    .stream_read = dry_stream_read,
    .embed = dry_embed,
    .norm_forward = dry_norm_forward,
    .norm_backward = dry_norm_backward,
    .quantise = dry_quantise,
    .rope_table = dry_rope_table,
    .rope_forward = dry_rope_forward,
    .rope_backward = dry_rope_backward,
    .rows_gather = dry_rows_gather,
    .rows_scatter = dry_rows_scatter,
    .combine = dry_combine,
    .scale = dry_scale,
    .adamw = dry_adamw,
};

int ops_dry_create(const struct ops_dry_config *config, struct ops **out, struct fl_error *e)
{
    struct dry *dry = memory_zeroed(1, sizeof *dry);

    (void)e;
    dry->config = *config;
    dry->table = dry_table;
    dry->table.model = config->model;
    dry->table.numerics = config->numerics;
    dry->here = (struct dry_place){.layer = -1, .operation = "start"};
    dry->peak = dry->largest = dry->here;
    (config->cpu ? dry_cpu_fill : dry_cuda_fill)(&dry->table);
    *out = &dry->table;
    return 0;
}

void ops_dry_weights(struct ops *ops, const struct model_weights *weights)
{
    dry_of(ops)->weights = weights;
}

static void place_print(const struct dry_place *place, char text[DRY_PLACE])
{
    if (place->layer < 0)
        snprintf(text, DRY_PLACE, "%s", place->operation);
    else
        snprintf(text, DRY_PLACE, "layer %d %s: %s", place->layer,
                 place->backward ? "backward" : "forward", place->operation);
}

void ops_dry_sight(struct ops *ops, struct ops_dry_sight *sight)
{
    struct dry *dry = dry_of(ops);

    look(dry);
    sight->mapped = dry->seen.mapped_total;
    sight->peak_total = dry->seen.peak_total;
    sight->largest = dry->seen.largest;
    sight->largest_category = dry->seen.largest_category;
    place_print(&dry->peak, sight->peak_where);
    place_print(&dry->largest, sight->largest_where);
}
