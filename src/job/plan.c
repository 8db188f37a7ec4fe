// SPDX-License-Identifier: Apache-2.0
// Bytes of a rank by category, term by term.
#include "job/plan.h"

#include "base/bytes.h"
#include "job/params.h"
#include "job/plan_parts.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// The arena maps two halves in granules of 2 MiB (ARENA_GRANULE), and its cap is on what is mapped.
#define ROUNDING      (2u << 21)
#define SIZE_MOST     0x1p60
#define CONTEXT_BYTES (527ull << 20)
#define NCCL_BYTES    (256ull << 20)

void plan_term_add(struct plan *plan, enum memory_category category, const char *name, amount bytes,
                   const char *formula, ...)
{
    struct plan_term *t = &plan->terms[plan->term_count++];
    va_list args;

    t->category = category;
    t->name = name;
    t->bytes = bytes;
    va_start(args, formula);
    vsnprintf(t->formula, sizeof t->formula, formula, args);
    va_end(args);
    plan->bytes[category] += bytes;
    plan->total_bytes += bytes;
}

void plan_beside_add(struct plan *plan, enum plan_list list, const char *name, amount bytes,
                     const char *formula, ...)
{
    bool host = list == PLAN_HOST;
    struct plan_term *t =
        host ? &plan->host[plan->host_count++] : &plan->outside[plan->outside_count++];
    va_list args;

    t->name = name;
    t->bytes = bytes;
    va_start(args, formula);
    vsnprintf(t->formula, sizeof t->formula, formula, args);
    va_end(args);
    *(host ? &plan->host_bytes : &plan->outside_bytes) += bytes;
}

// What a process holds on its GPU before it asks for anything.
static void outside_plan(struct plan *plan)
{
    if (plan->cpu)
        return;
    plan_beside_add(plan, PLAN_OUTSIDE, "context and modules", CONTEXT_BYTES,
                    "measured on an H200 with driver 580");
    if (plan->layout.world > 1)
        plan_beside_add(plan, PLAN_OUTSIDE, "collectives", NCCL_BYTES, "allowance for NCCL");
}

// Rows of an expert from one rank and micro-batch, at most all its tokens. factor 0: no limit.
static amount capacity_of(double factor, const struct sizes *s)
{
    double share = (double)(s->tokens * s->top_k) * factor / (double)s->experts;
    amount rows;

    if (factor == 0 || share >= (double)s->tokens)
        return s->tokens;
    rows = (amount)share;
    return rows + ((double)rows < share);
}

// What this rank sends to experts and what reaches its own in one layer: every choice, of the
// group's tokens at most one for every local expert, or what the capacity lets pass.
static void rows_bound(double capacity_factor, struct sizes *s, int ep)
{
    amount choices = smaller(s->top_k, s->experts_local);

    s->most = capacity_of(capacity_factor, s);
    s->mine = smaller(s->tokens * choices, s->experts_local * s->most);
    s->sent = smaller(s->tokens * s->top_k, s->experts * s->most);
    s->rows = ep * s->mine;
}

// Bounds every product of the terms, so that none overflows.
static int sizes_check(const struct spec *spec, const struct model *m, int ep, struct fl_error *e)
{
    double hidden = m->hidden, heads = (double)(m->heads + 2.0 * m->kv_heads) * m->head_dim;
    double width = hidden + 3.0 * m->expert_width + heads + m->experts + spec->lora_rank;
    double tokens = (double)spec->micro_batch_size * spec->max_length;
    double weights = (double)m->layers * (heads + (m->experts + 1.0) * 3.0 * m->expert_width) *
                     (hidden + spec->lora_rank) * 16;
    double rows = tokens * ep * m->top_k * width * 16;
    double kept = tokens * m->layers * width * 64;
    double vocab = (double)m->vocab * (hidden + HEAD_ROWS) * 16;
    double adapters = (double)m->layers * (m->experts + 1.0) * spec->lora_rank * 4 * width * 16;

    if (weights < SIZE_MOST && rows < SIZE_MOST && kept < SIZE_MOST && vocab < SIZE_MOST &&
        adapters < SIZE_MOST)
        return 0;
    return error_set(e, -ERANGE,
                     "%s: the shapes of the model's config.json with this batch and lora_rank are "
                     "beyond any machine: check both",
                     spec->source);
}

uint64_t plan_need(const struct plan *plan)
{
    return (plan->dry ? plan->mapped_bytes : plan->total_bytes + ROUNDING) + plan->outside_bytes;
}

// The three largest categories in words.
int plan_cap_check(const struct spec *spec, const struct plan *plan, uint64_t cap_bytes,
                   struct fl_error *e)
{
    uint64_t need = plan_need(plan);
    char list[256] = "", total[BYTES_TEXT], cap[BYTES_TEXT], one[BYTES_TEXT];
    bool told[MEMORY_CATEGORIES] = {false};

    if (!cap_bytes || need <= cap_bytes)
        return 0;
    for (int place = 0; place < 3; place++) {
        int most = -1;
        size_t used = strlen(list);
        for (int c = 0; c < MEMORY_CATEGORIES; c++)
            if (!told[c] && (most < 0 || plan->bytes[c] > plan->bytes[most]))
                most = c;
        told[most] = true;
        snprintf(list + used, sizeof list - used, "%s%s %s", used ? ", " : "",
                 memory_category_name((enum memory_category)most),
                 bytes_format(plan->bytes[most], one));
    }
    return error_set(
        e, -ENOSPC,
        "%s: the plan of %s a rank, rounding and context included, is above the cap of "
        "%s: %s",
        spec->source, bytes_format(need, total), bytes_format(cap_bytes, cap), list);
}

int plan_make(const struct spec *spec, const struct model *model, int world, uint64_t cap_bytes,
              struct plan *plan, struct fl_error *e)
{
    return plan_make_threads(spec, model, world, 1, cap_bytes, plan, e);
}

int plan_make_threads(const struct spec *spec, const struct model *model, int world, int threads,
                      uint64_t cap_bytes, struct plan *plan, struct fl_error *e)
{
    amount tp = (amount)spec->tensor_parallel;
    struct sizes s, evaluated;
    bool evaluates;
    int rc;

    memset(plan, 0, sizeof *plan);
    rc = layout_make(spec, model, world, 0, &plan->layout, e);
    if (!rc && model->heads % spec->tensor_parallel)
        rc = error_set(e, -EINVAL,
                       "%s: tensor_model_parallel_size %d does not divide the model's %d heads",
                       spec->source, spec->tensor_parallel, model->heads);
    if (!rc)
        rc = sizes_check(spec, model, plan->layout.ep, e);
    if (rc)
        return rc;
    plan->recompute = spec->recompute == RECOMPUTE_AUTO ? RECOMPUTE_FULL : spec->recompute;
    plan->cpu = spec->backend == BACKEND_CPU || spec->numerics == NUMERICS_EXACT;
    s = (struct sizes){
        .layers = model->layers,
        .hidden = model->hidden,
        .heads = model->heads / tp,
        .q = (amount)model->heads / tp * model->head_dim,
        .kv = larger((amount)model->kv_heads / tp, 1) * model->head_dim,
        .width = model->expert_width,
        .experts = model->experts,
        .experts_local = plan->layout.experts_local,
        .top_k = model->top_k,
        .vocab = model->vocab,
        .longest = spec->max_length,
        .tokens = ((amount)spec->micro_batch_size * spec->max_length + tp - 1) / tp,
        .whole = (amount)spec->micro_batch_size * spec->max_length,
        .tp = tp,
        .shards = spec->shard_frozen ? (amount)plan->layout.dp : 1,
        .rank = spec->lora_rank,
    };
    evaluated = s;
    rows_bound(spec->capacity_factor, &s, plan->layout.ep);
    rows_bound(0, &evaluated, plan->layout.ep);
    evaluates = spec_evaluates(spec);
    plan->base_params = params_base(model, (int)tp, plan->layout.experts_local);
    plan->base_params_total = params_base(model, 1, model->experts);
    plan->trainable_params = params_trainable(spec, model, (int)tp, plan->layout.experts_local);
    plan->trainable_params_total = params_trainable(spec, model, 1, model->experts);
    plan->disk_bytes = plan->trainable_params_total * 4;
    plan->states_bytes = plan_states_bytes(spec, plan->trainable_params_total);
    plan_resident(spec, plan, model, &s);
    plan_activations(spec, plan, model, &s, evaluates ? &evaluated : NULL);
    plan_scratch(spec, plan, &s, evaluates ? &evaluated : NULL, threads);
    outside_plan(plan);
    plan_communication(plan, evaluates ? &evaluated : &s); // a capacity does not limit it
    return plan_cap_check(spec, plan, cap_bytes, e);
}
