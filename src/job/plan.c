// SPDX-License-Identifier: Apache-2.0
// Bytes of a rank by category, term by term.
#include "job/plan.h"

#include "base/bytes.h"
#include "job/params.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ALIGNMENT   256 // ARENA_ALIGNMENT of mem/arena.h, which the plugin does not see
#define LOGIT_ROWS  1024
#define TOKEN_BYTES 20 // id, target, position and key of a batch's token
#define SIZE_MOST   0x1p60

typedef unsigned long long amount; // as %llu prints it

// What the terms are made of.
struct sizes {
    amount layers, hidden, q, kv, width, experts, experts_local, top_k, vocab;
    amount tokens; // of a full micro-batch
    amount rows;   // tokens x expert that this rank's experts get at most
    amount rank;
    amount value; // bytes of an activation or adapter parameter
    amount length;
};

static amount aligned(amount bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static amount blocks(amount n)
{
    return (n + FP8_BLOCK - 1) / FP8_BLOCK;
}

static amount smaller(amount a, amount b)
{
    return a < b ? a : b;
}

static amount larger(amount a, amount b)
{
    return a > b ? a : b;
}

static void term(struct plan *plan, enum memory_category category, const char *name, amount bytes,
                 const char *formula, ...) __attribute__((format(printf, 5, 6)));

static void term(struct plan *plan, enum memory_category category, const char *name, amount bytes,
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

// Tokens that reach this rank's experts in one layer: all of the group's, at most once for every
// local expert or choice, or what the capacity of every expert and source lets pass.
static amount rows_most(const struct spec *spec, const struct sizes *s, int ep)
{
    amount choices = smaller(s->top_k, s->experts_local), capacity;
    double share;

    if (spec->capacity_factor == 0)
        return ep * s->tokens * choices;
    share = (double)s->tokens * (double)s->top_k * spec->capacity_factor / (double)s->experts;
    if (share >= (double)s->tokens)
        return ep * s->tokens * choices;
    capacity = (amount)share;
    capacity += (double)capacity < share;
    return smaller(ep * s->tokens * choices, ep * s->experts_local * capacity);
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
    double vocab = (double)m->vocab * (hidden + LOGIT_ROWS) * 16;
    double adapters = (double)m->layers * (m->experts + 1.0) * spec->lora_rank * 4 * width * 16;

    if (weights < SIZE_MOST && rows < SIZE_MOST && kept < SIZE_MOST && vocab < SIZE_MOST &&
        adapters < SIZE_MOST)
        return 0;
    return error_set(e, -ERANGE,
                     "%s: the shapes of the model's config.json with this batch and lora_rank are "
                     "beyond any machine: check both",
                     spec->source);
}

static void weights_plan(struct plan *plan, const struct model *m, const struct sizes *s)
{
    amount L = s->layers, El = s->experts_local, h = s->hidden, w = s->width;
    amount qkv = s->q + 2 * s->kv, norms;

    term(plan, MEMORY_WEIGHTS, "experts", L * (aligned(El * 2 * w * h) + aligned(El * h * w)),
         "%llu layers x %llu experts x 3 x %llu x %llu e4m3", L, El, w, h);
    term(
        plan, MEMORY_WEIGHTS, "scales of experts",
        L * (aligned(El * 2 * blocks(w) * blocks(h) * 4) + aligned(El * blocks(h) * blocks(w) * 4)),
        "%llu layers x %llu experts x 3 x %llu x %llu blocks fp32", L, El, blocks(w), blocks(h));
    term(plan, MEMORY_WEIGHTS, "attention", L * (aligned(qkv * h) + aligned(h * s->q)),
         "%llu layers x (%llu + %llu) x %llu e4m3", L, qkv, s->q, h);
    term(plan, MEMORY_WEIGHTS, "scales of attention",
         L * (aligned((blocks(s->q) + 2 * blocks(s->kv)) * blocks(h) * 4) +
              aligned(blocks(h) * blocks(s->q) * 4)),
         "%llu layers x (%llu + %llu) x %llu blocks fp32", L, blocks(s->q) + 2 * blocks(s->kv),
         blocks(s->q), blocks(h));
    term(plan, MEMORY_WEIGHTS, "routers", L * aligned(s->experts * h * 4),
         "%llu layers x %llu x %llu fp32", L, s->experts, h);
    norms = 2 * aligned(h * 4) + 2 * aligned((amount)m->head_dim * 4);
    term(plan, MEMORY_WEIGHTS, "norms", L * norms + aligned(h * 4),
         "%llu layers x 2 x (%llu + %d) + %llu fp32", L, h, m->head_dim, h);
    term(plan, MEMORY_WEIGHTS, "embedding", aligned(s->vocab * h * 2), "%llu x %llu bf16", s->vocab,
         h);
    if (!m->tied_embeddings)
        term(plan, MEMORY_WEIGHTS, "output layer", aligned(s->vocab * h * 2), "%llu x %llu bf16",
             s->vocab, h);
}

static void states_plan(struct plan *plan, const struct sizes *s)
{
    amount n = plan->trainable_params;

    term(plan, MEMORY_ADAPTERS, "parameters", aligned(n * s->value), "%llu %s", n,
         plan->cpu ? "fp32, their own main parameters" : "bf16");
    term(plan, MEMORY_GRADIENTS, "gradients", aligned(n * 4), "%llu fp32", n);
    if (!plan->cpu)
        term(plan, MEMORY_OPTIMIZER, "main parameters", aligned(n * 4), "%llu fp32", n);
    term(plan, MEMORY_OPTIMIZER, "first moments", aligned(n * 4), "%llu fp32", n);
    term(plan, MEMORY_OPTIMIZER, "second moments", aligned(n * 4), "%llu fp32", n);
}

static void activations_plan(struct plan *plan, const struct spec *spec, const struct sizes *s)
{
    amount T = s->tokens, R = s->rows, v = s->value;
    amount attention = 2 * s->hidden + 2 * (s->q + 2 * s->kv) + 2 * s->q, router = 2 * s->experts;
    amount expert = 2 * s->hidden + 5 * s->width;
    amount layers = spec->recompute == RECOMPUTE_FULL ? 1 : s->layers;

    term(plan, MEMORY_ACTIVATIONS, "batch", T * TOKEN_BYTES, "%llu tokens x %d", T, TOKEN_BYTES);
    term(plan, MEMORY_ACTIVATIONS, "layer inputs", (s->layers + 1) * T * s->hidden * v,
         "(%llu + 1) layers x %llu tokens x %llu x %llu", s->layers, T, s->hidden, v);
    term(plan, MEMORY_ACTIVATIONS, "routing", s->layers * T * s->top_k * 8,
         "%llu layers x %llu tokens x %llu x (expert, weight) 8", s->layers, T, s->top_k);
    term(plan, MEMORY_ACTIVATIONS, "attention", layers * T * attention * v,
         "%llu x %llu tokens x %llu (norms; q, k, v; output; gradients) x %llu", layers, T,
         attention, v);
    term(plan, MEMORY_ACTIVATIONS, "router", layers * T * router * 4,
         "%llu x %llu tokens x %llu (logits, probabilities) x 4", layers, T, router);
    term(plan, MEMORY_ACTIVATIONS, "experts", layers * R * expert * v,
         "%llu x %llu rows x %llu (input, gate, up, SwiGLU, gradients) x %llu", layers, R, expert,
         v);
    term(plan, MEMORY_ACTIVATIONS, "adapters", layers * (2 * T + 2 * R) * s->rank * v,
         "%llu x 2 x (%llu tokens + %llu rows) x rank %llu x %llu", layers, T, R, s->rank, v);
}

static void workspace_plan(struct plan *plan, const struct sizes *s)
{
    amount rows = smaller(s->tokens, LOGIT_ROWS);
    amount attention = larger(s->q + 2 * s->kv, s->q) * s->hidden, fc1 = 2 * s->width * s->hidden;

    term(plan, MEMORY_WORKSPACE, "logits", rows * s->vocab * 4, "%llu rows x %llu fp32", rows,
         s->vocab);
    if (!plan->cpu) {
        amount wide = larger(s->hidden, 2 * s->width);
        term(plan, MEMORY_WORKSPACE, "quantised rows", s->rows * (wide + blocks(wide) * 4),
             "%llu rows x (%llu e4m3 + %llu fp32)", s->rows, wide, blocks(wide));
        return;
    }
    term(plan, MEMORY_WORKSPACE, "dequantised matrix", larger(attention, fc1) * 4, "%llu fp32",
         larger(attention, fc1));
    term(plan, MEMORY_WORKSPACE, "attention scores", s->length * s->length * 4, "%llu x %llu fp32",
         s->length, s->length);
}

static void communication_plan(struct plan *plan, const struct sizes *s)
{
    amount sent = s->tokens * s->top_k, h = s->hidden, v = s->value;

    if (plan->layout.ep == 1)
        return;
    term(plan, MEMORY_COMMUNICATION, "send", sent * h * v, "%llu rows x %llu x %llu", sent, h, v);
    term(plan, MEMORY_COMMUNICATION, "receive", s->rows * h * v, "%llu rows x %llu x %llu", s->rows,
         h, v);
}

// The three largest categories in words.
static int over_cap(const struct spec *spec, const struct plan *plan, uint64_t cap_bytes,
                    struct fl_error *e)
{
    char list[256] = "", total[BYTES_TEXT], cap[BYTES_TEXT], one[BYTES_TEXT];
    bool told[MEMORY_CATEGORIES] = {false};

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
    return error_set(e, -ENOSPC,
                     "%s: the plan of %s a rank is above the cap of %s: %s; lower "
                     "micro_batch_size, max_length or lora_rank, or raise "
                     "expert_model_parallel_size",
                     spec->source, bytes_format(plan->total_bytes, total),
                     bytes_format(cap_bytes, cap), list);
}

int plan_make(const struct spec *spec, const struct model *model, int world, uint64_t cap_bytes,
              struct plan *plan, struct fl_error *e)
{
    struct sizes s;
    int rc;

    memset(plan, 0, sizeof *plan);
    if (spec->tensor_parallel > 1)
        return error_set(e, -ENOTSUP,
                         "%s: tensor_model_parallel_size %d is not supported: use 1 and more "
                         "data-parallel ranks",
                         spec->source, spec->tensor_parallel);
    rc = layout_make(spec, model, world, 0, &plan->layout, e);
    if (!rc)
        rc = sizes_check(spec, model, plan->layout.ep, e);
    if (rc)
        return rc;
    plan->cpu = spec->backend == BACKEND_CPU || spec->numerics == NUMERICS_EXACT;
    s = (struct sizes){
        .layers = model->layers,
        .hidden = model->hidden,
        .q = (amount)model->heads * model->head_dim,
        .kv = (amount)model->kv_heads * model->head_dim,
        .width = model->expert_width,
        .experts = model->experts,
        .experts_local = plan->layout.experts_local,
        .top_k = model->top_k,
        .vocab = model->vocab,
        .tokens = (amount)spec->micro_batch_size * spec->max_length,
        .length = spec->max_length,
        .rank = spec->lora_rank,
        .value = plan->cpu ? 4 : 2,
    };
    s.rows = rows_most(spec, &s, plan->layout.ep);
    plan->base_params = params_base(model, plan->layout.experts_local);
    plan->base_params_total = params_base(model, model->experts);
    plan->trainable_params = params_trainable(spec, model, plan->layout.experts_local);
    plan->trainable_params_total = params_trainable(spec, model, model->experts);
    weights_plan(plan, model, &s);
    states_plan(plan, &s);
    activations_plan(plan, spec, &s);
    workspace_plan(plan, &s);
    communication_plan(plan, &s);
    if (cap_bytes && plan->total_bytes > cap_bytes)
        return over_cap(spec, plan, cap_bytes, e);
    return 0;
}
