// SPDX-License-Identifier: Apache-2.0
// Bytes of a rank by category, term by term.
#include "job/plan.h"

#include "base/bytes.h"
#include "job/params.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ALIGNMENT   256  // ARENA_ALIGNMENT of mem/arena.h, which the plugin does not see
#define LOGIT_ROWS  1024 // of one chunk of logits
#define CPU_ROWS    256  // of a dequantised tile, and of a block of LoRA rows, of ops/cpu
#define TOKEN_BYTES 20   // id, target, position and key of a batch's token
#define SIZE_MOST   0x1p60

typedef unsigned long long amount; // as %llu prints it

// What the terms are made of.
struct sizes {
    amount layers, hidden, q, kv, width, experts, experts_local, top_k, vocab;
    amount tokens; // of a full micro-batch
    amount rows;   // tokens x expert that this rank's experts get at most
    amount rank;
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

static void states_plan(struct plan *plan)
{
    amount n = plan->trainable_params;

    term(plan, MEMORY_ADAPTERS, "parameters", aligned(n * (plan->cpu ? 4 : 2)), "%llu %s", n,
         plan->cpu ? "fp32, their own main parameters" : "bf16");
    term(plan, MEMORY_GRADIENTS, "gradients", aligned(n * 4), "%llu fp32", n);
    if (!plan->cpu)
        term(plan, MEMORY_OPTIMIZER, "main parameters", aligned(n * 4), "%llu fp32", n);
    term(plan, MEMORY_OPTIMIZER, "first moments", aligned(n * 4), "%llu fp32", n);
    term(plan, MEMORY_OPTIMIZER, "second moments", aligned(n * 4), "%llu fp32", n);
}

// Of one row as the network keeps it: stream rows between operations, quantised rows as inputs of
// base products. The CPU backend holds both in fp32.
static amount stream(const struct plan *plan, amount cols)
{
    return cols * (plan->cpu ? 4 : 2);
}

static amount quantised(const struct plan *plan, amount cols)
{
    return plan->cpu ? cols * 4 : cols + blocks(cols) * 4;
}

// What stays from the forward to the backward pass, and one layer computed again and
// differentiated.
static void activations_plan(struct plan *plan, const struct model *m, const struct sizes *s)
{
    amount T = s->tokens, R = s->rows, S = s->tokens * s->top_k, h = s->hidden, w = s->width;
    amount qkv = s->q + 2 * s->kv, head_dim = m->head_dim, heads = m->heads;
    amount attention = 2 * stream(plan, h) + quantised(plan, h) + stream(plan, qkv) +
                       stream(plan, s->q + s->kv) + stream(plan, s->q) + quantised(plan, s->q) +
                       heads * 4;
    amount moe = 2 * stream(plan, h) + quantised(plan, h) + 2 * s->experts * 4 + s->top_k * 4;
    amount expert = quantised(plan, h) + stream(plan, 2 * w) + stream(plan, w) + quantised(plan, w);
    amount back_row = quantised(plan, h) + stream(plan, w) + stream(plan, h) + 8;
    amount back_slot = stream(plan, h) + 8;
    amount back_token = stream(plan, h) + quantised(plan, h);
    amount back_experts = R * back_row + S * back_slot + T * back_token;
    amount back_attention = stream(plan, s->q) + stream(plan, qkv) + stream(plan, h);

    term(plan, MEMORY_ACTIVATIONS, "batch", T * TOKEN_BYTES, "%llu tokens x %d bytes", T,
         TOKEN_BYTES);
    term(plan, MEMORY_ACTIVATIONS, "rotations", T * head_dim * 4, "%llu tokens x %llu fp32", T,
         head_dim);
    term(plan, MEMORY_ACTIVATIONS, "layer inputs", (s->layers + 1) * T * stream(plan, h),
         "(%llu + 1) layers x %llu tokens x %llu %s", s->layers, T, h, plan->cpu ? "fp32" : "bf16");
    term(plan, MEMORY_ACTIVATIONS, "routes", s->layers * S * 5,
         "%llu layers x %llu tokens x %llu experts x 5 bytes", s->layers, T, s->top_k);
    term(plan, MEMORY_ACTIVATIONS, "attention of a layer", T * attention,
         "%llu tokens x %llu bytes (norm, q k v twice, output)", T, attention);
    term(plan, MEMORY_ACTIVATIONS, "router of a layer", T * moe + S * 8 + R * 12,
         "%llu tokens x %llu bytes (norm, logits, weights) + order of %llu rows", T, moe, R);
    term(plan, MEMORY_ACTIVATIONS, "experts of a layer", R * expert,
         "%llu rows x %llu bytes (input, gate and up, SwiGLU)", R, expert);
    term(plan, MEMORY_ACTIVATIONS, "gradient of the residual", T * stream(plan, h),
         "%llu tokens x %llu bytes", T, stream(plan, h));
    if (back_experts > T * back_attention)
        term(plan, MEMORY_ACTIVATIONS, "gradients of experts", back_experts,
             "%llu rows x %llu + %llu returned x %llu + %llu tokens x %llu bytes", R, back_row, S,
             back_slot, T, back_token);
    else
        term(plan, MEMORY_ACTIVATIONS, "gradients of attention", T * back_attention,
             "%llu tokens x %llu bytes", T, back_attention);
}

// Values of the CPU backend's LoRA scratch: A, B, a block of rows three times, S twice.
static amount lora_scratch(const struct sizes *s, amount in, amount out)
{
    return s->rank * (in + out) + CPU_ROWS * (3 * in + 2 * s->rank);
}

// Operations run one after another: the one with the largest scratch counts.
static void workspace_plan(struct plan *plan, const struct sizes *s)
{
    amount T = s->tokens, R = s->rows, h = s->hidden, w = s->width, q = s->q, qkv = q + 2 * s->kv;
    amount rows = smaller(T, LOGIT_ROWS), tile = plan->cpu ? 4 * CPU_ROWS : 0;
    amount scratch_h = plan->cpu ? 4 * lora_scratch(s, h, larger(qkv, 2 * w)) : 0;
    amount scratch_q = plan->cpu ? 4 * lora_scratch(s, q, h) : 0;
    amount logits = rows * s->vocab * 4 + tile * h;
    amount dense = T * quantised(plan, qkv) + tile * h + scratch_h;
    amount output = T * quantised(plan, h) + tile * q + scratch_q;
    amount experts = R * (stream(plan, 2 * w) + quantised(plan, 2 * w)) + tile * h + scratch_h;
    amount most = larger(larger(logits, dense), larger(output, experts));
    const char *and_scratch = plan->cpu ? " + scratch of one thread" : "";

    if (most == logits)
        term(plan, MEMORY_WORKSPACE, "logits", most, "%llu rows x %llu fp32%s", rows, s->vocab,
             and_scratch);
    else if (most == experts)
        term(plan, MEMORY_WORKSPACE, "gate and up backward", most, "%llu rows x %llu bytes%s", R,
             stream(plan, 2 * w) + quantised(plan, 2 * w), and_scratch);
    else if (most == dense)
        term(plan, MEMORY_WORKSPACE, "q k v backward", most, "%llu tokens x %llu bytes%s", T,
             quantised(plan, qkv), and_scratch);
    else
        term(plan, MEMORY_WORKSPACE, "output backward", most, "%llu tokens x %llu bytes%s", T,
             quantised(plan, h), and_scratch);
}

// Rows on their way to the experts need both ends' buffers, rows on their way back one.
static void communication_plan(struct plan *plan, const struct sizes *s)
{
    amount sent = s->tokens * s->top_k, there = quantised(plan, s->hidden);
    amount back = stream(plan, s->hidden);

    if (plan->layout.ep > 1 && (sent + s->rows) * there > s->rows * back)
        term(plan, MEMORY_COMMUNICATION, "dispatch", (sent + s->rows) * there,
             "(%llu sent + %llu received) rows x %llu bytes", sent, s->rows, there);
    else
        term(plan, MEMORY_COMMUNICATION, "return", s->rows * back, "%llu rows x %llu bytes",
             s->rows, back);
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
        .rank = spec->lora_rank,
    };
    s.rows = rows_most(spec, &s, plan->layout.ep);
    plan->base_params = params_base(model, plan->layout.experts_local);
    plan->base_params_total = params_base(model, model->experts);
    plan->trainable_params = params_trainable(spec, model, plan->layout.experts_local);
    plan->trainable_params_total = params_trainable(spec, model, model->experts);
    weights_plan(plan, model, &s);
    states_plan(plan);
    activations_plan(plan, model, &s);
    workspace_plan(plan, &s);
    communication_plan(plan, &s);
    if (cap_bytes && plan->total_bytes > cap_bytes)
        return over_cap(spec, plan, cap_bytes, e);
    return 0;
}
