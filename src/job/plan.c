// SPDX-License-Identifier: Apache-2.0
// Bytes of a rank by category, term by term.
#include "job/plan.h"

#include "base/bytes.h"
#include "job/gpu_scratch.h"
#include "job/params.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ALIGNMENT 256 // ARENA_ALIGNMENT of mem/arena.h, which the plugin does not see
// The arena maps two halves in granules of 2 MiB (ARENA_GRANULE), and its cap is on what is mapped.
#define ROUNDING       (2u << 21)
#define HEAD_ROWS      256  // of one chunk of logits: NET_HEAD_CHUNK of net/net.h
#define CPU_ROWS       256  // of a dequantised tile, and of a block of LoRA rows, of ops/cpu
#define HEAD_TILE      1024 // rows of the head widened together, of ops/cpu
#define ATTENTION_ROWS 128  // query rows whose scores exist together, of ops/cpu
#define TOKEN_BYTES    20   // id, target, position and key of a batch's token
#define SCRATCHES      7    // operations whose scratch is looked at
#define SIZE_MOST      0x1p60

typedef unsigned long long amount; // as %llu prints it

// What the terms are made of.
struct sizes {
    amount layers, hidden, heads, q, kv, width, experts, experts_local, top_k, vocab;
    amount longest, tokens; // of a sample; of a full micro-batch
    amount sent, rows; // tokens x expert that leave this rank, and that its experts get, at most
    amount mine, most; // of rows, from one rank; and at most for one expert
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

// A moment as ops/moment.h stores it: fp16 and fp8 have a scale for every 128 values.
static void moment_plan(struct plan *plan, const char *name, enum storage type)
{
    static const char *const names[] = {"fp32", "fp16 and scales", "bf16", "fp8 and scales"};
    static const amount bytes[] = {4, 2, 2, 1};
    amount n = plan->trainable_params;
    bool scaled = type == STORAGE_FP16 || type == STORAGE_FP8;

    term(plan, MEMORY_OPTIMIZER, name,
         aligned(n * bytes[type]) + (scaled ? aligned(blocks(n) * 4) : 0), "%llu %s", n,
         names[type]);
}

static void states_plan(const struct spec *spec, struct plan *plan)
{
    amount n = plan->trainable_params;

    term(plan, MEMORY_ADAPTERS, "parameters", aligned(n * 4),
         "%llu fp32, their own main parameters", n);
    term(plan, MEMORY_GRADIENTS, "gradients", aligned(n * 4), "%llu fp32", n);
    moment_plan(plan, "first moments", spec->exp_avg);
    moment_plan(plan, "second moments", spec->exp_avg_sq);
}

// Of one row as the network keeps it: stream rows between operations, quantised rows as inputs of
// base products. The CPU backend holds both in fp32; the GPU pads values, and scales, to 16 bytes.
static amount padded(amount bytes)
{
    return (bytes + 15) / 16 * 16;
}

static amount stream(const struct plan *plan, amount cols)
{
    return plan->cpu ? cols * 4 : padded(cols * 2);
}

static amount quantised(const struct plan *plan, amount cols)
{
    return plan->cpu ? cols * 4 : padded(cols) + padded(blocks(cols) * 4);
}

// One allocation of rows.
static amount of(amount rows, amount bytes)
{
    return aligned(rows * bytes);
}

// One layer computed again and differentiated; bytes, the gradient of the residual included.
struct layer_sizes {
    amount attention, router, experts, residual, back_attention, back_experts;
};

static struct layer_sizes layer_sizes(const struct plan *plan, const struct model *m,
                                      const struct sizes *s)
{
    amount T = s->tokens, R = s->rows, S = s->tokens * s->top_k, h = s->hidden, w = s->width;
    amount qkv = s->q + 2 * s->kv;
    amount row = of(T, stream(plan, h)), quantised_row = of(T, quantised(plan, h));

    return (struct layer_sizes){
        .attention = 2 * row + quantised_row + of(T, stream(plan, qkv)) +
                     of(T, stream(plan, s->q + s->kv)) + of(T, stream(plan, s->q)) +
                     of(T, quantised(plan, s->q)) + of(T, (amount)m->heads * 4),
        .router = 2 * row + quantised_row + 2 * of(T, s->experts * 4) + 3 * of(S, 4) + of(R, 4) +
                  of(R, 8),
        .experts = of(R, quantised(plan, h)) + of(R, stream(plan, 2 * w)) + of(R, stream(plan, w)) +
                   of(R, quantised(plan, w)),
        .residual = row,
        .back_attention = of(T, stream(plan, s->q)) + of(T, stream(plan, qkv)) + row,
        .back_experts = row + quantised_row + of(s->sent, stream(plan, h)) + of(s->sent, 4) +
                        of(S, 4) + of(R, quantised(plan, h)) + of(R, stream(plan, w)) +
                        of(R, stream(plan, h)) + 2 * of(R, 4),
    };
}

// Names, and numbers per token, of what a layer's forward pass leaves to its backward pass.
static void layer_plan(struct plan *plan, const struct sizes *s, const struct layer_sizes *l)
{
    amount T = s->tokens, R = s->rows;

    term(plan, MEMORY_ACTIVATIONS, "attention of a layer", l->attention,
         "%llu tokens x %llu bytes (norm, q k v twice, output)", T, l->attention / T);
    term(plan, MEMORY_ACTIVATIONS, "router of a layer", l->router,
         "%llu tokens x %llu bytes (norm, logits, weights, order of %llu rows)", T, l->router / T,
         R);
    term(plan, MEMORY_ACTIVATIONS, "experts of a layer", l->experts,
         "%llu rows x %llu bytes (input, gate and up, SwiGLU)", R, l->experts / R);
}

// Of a micro-batch, whichever pass it is in.
static void batch_plan(struct plan *plan, const struct model *m, const struct sizes *s,
                       amount inputs)
{
    amount T = s->tokens, S = s->tokens * s->top_k, head_dim = m->head_dim, h = s->hidden;

    term(plan, MEMORY_ACTIVATIONS, "batch", 3 * of(T, 4) + of(T, 8), "%llu tokens x %d bytes", T,
         TOKEN_BYTES);
    term(plan, MEMORY_ACTIVATIONS, "rotations", of(T, head_dim * 4), "%llu tokens x %llu fp32", T,
         head_dim);
    term(plan, MEMORY_ACTIVATIONS, "layer inputs", inputs * of(T, stream(plan, h)),
         "%llu x %llu tokens x %llu %s", inputs, T, h, plan->cpu ? "fp32" : "bf16");
    term(plan, MEMORY_ACTIVATIONS, "routes",
         of(s->layers * S, 4) + of(s->layers * S, 1) + of(s->layers, 8) + aligned(8),
         "%llu layers x %llu tokens x %llu experts x 5 bytes", s->layers, T, s->top_k);
}

// What stays from the forward to the backward pass, and the larger of a layer and the head. An
// evaluation (NULL: none) keeps the inputs of two layers, but no capacity limits its rows.
static void activations_plan(struct plan *plan, const struct model *m, const struct sizes *s,
                             const struct sizes *evaluated)
{
    amount T = s->tokens, R = s->rows, h = s->hidden, rows = smaller(T, HEAD_ROWS);
    amount row = of(T, stream(plan, h)), logits = of(rows, s->vocab * 4);
    struct layer_sizes l = layer_sizes(plan, m, s);
    amount layer =
        l.attention + l.router + l.experts + l.residual + larger(l.back_experts, l.back_attention);

    if (evaluated) {
        struct layer_sizes v = layer_sizes(plan, m, evaluated);
        amount returned =
            of(evaluated->rows, stream(plan, h)) + of(evaluated->sent, stream(plan, h));
        amount passed = v.attention + v.router + v.experts + returned;
        if (larger(passed, row + logits) + 2 * row >
            larger(layer, row + logits) + (s->layers + 2) * row) {
            batch_plan(plan, m, s, 2);
            layer_plan(plan, evaluated, &v);
            term(plan, MEMORY_ACTIVATIONS, "output of the experts", returned,
                 "(%llu rows + %llu returned) x %llu bytes, evaluated", evaluated->rows,
                 evaluated->sent, stream(plan, h));
            return;
        }
    }
    batch_plan(plan, m, s, s->layers + 1);
    term(plan, MEMORY_ACTIVATIONS, "gradient of the output", row, "%llu tokens x %llu bytes", T,
         stream(plan, h));
    if (row + logits > layer) {
        term(plan, MEMORY_ACTIVATIONS, "output", row, "%llu tokens x %llu bytes", T,
             stream(plan, h));
        term(plan, MEMORY_ACTIVATIONS, "logits", logits, "%llu rows x %llu fp32", rows, s->vocab);
        return;
    }
    layer_plan(plan, s, &l);
    term(plan, MEMORY_ACTIVATIONS, "gradient of the residual", l.residual,
         "%llu tokens x %llu bytes", T, stream(plan, h));
    if (l.back_experts > l.back_attention)
        term(plan, MEMORY_ACTIVATIONS, "gradients of experts", l.back_experts,
             "%llu rows, %llu returned, %llu tokens; x %llu bytes and less", R, s->sent, T,
             quantised(plan, h) + stream(plan, s->width) + stream(plan, h));
    else
        term(plan, MEMORY_ACTIVATIONS, "gradients of attention", l.back_attention,
             "%llu tokens x %llu bytes", T, l.back_attention / T);
}

// The CPU backend's scratch of the LoRA products of a module: A, B, a block of rows three times and
// of their outputs once, S twice.
static amount lora_scratch(const struct sizes *s, amount in, amount out)
{
    return out == 0 ? 0 : 4 * (s->rank * (in + out) + CPU_ROWS * (3 * in + out + 2 * s->rank));
}

// And of a frozen matrix's tile.
static amount tile(amount rows, amount cols)
{
    return 4 * smaller(rows, CPU_ROWS) * cols;
}

// Scratch of the operations that need most of it.
struct scratch {
    const char *name;
    amount bytes;
};

static void scratch_plan_cpu(const struct spec *spec, const struct sizes *s, int threads,
                             struct scratch scratch[SCRATCHES])
{
    amount T = s->tokens, R = s->rows, h = s->hidden, w = s->width, q = s->q, qkv = q + 2 * s->kv;
    amount qkv_part = spec->lora_targets & LORA_QKV            ? qkv
                      : spec->lora_targets & LORA_Q            ? q
                      : spec->lora_targets & (LORA_K | LORA_V) ? s->kv
                                                               : 0;
    amount proj = spec->lora_targets & LORA_PROJ ? h : 0;
    amount fc1 = spec->lora_targets & LORA_FC1 ? 2 * w : 0;
    amount fc2 = spec->lora_targets & LORA_FC2 ? h : 0, n = (amount)threads;

    if (qkv_part && (spec->lora_targets & LORA_Q))
        qkv_part = larger(qkv_part, spec->lora_targets & (LORA_K | LORA_V) ? s->kv : 0);
    scratch[0] = (struct scratch){"q k v backward", of(T, qkv * 4) + aligned(tile(qkv, h)) +
                                                        aligned(lora_scratch(s, h, qkv_part))};
    scratch[1] = (struct scratch){"output backward", of(T, h * 4) + aligned(tile(h, q)) +
                                                         aligned(lora_scratch(s, q, proj))};
    scratch[2] =
        (struct scratch){"gate and up backward",
                         2 * of(R, 2 * w * 4) + of(n, tile(2 * w, h) + lora_scratch(s, h, fc1))};
    scratch[3] = (struct scratch){"down", of(n, tile(h, w) + lora_scratch(s, w, fc2))};
    scratch[4] = (struct scratch){"attention scores", of(n, 2 * 4 * ATTENTION_ROWS * s->longest)};
    scratch[5] = (struct scratch){
        "router", of(s->experts, h * 4) +
                      larger(of(T, s->experts * 4) + of(s->experts, 4), of(T, s->top_k * 4))};
    scratch[6] = (struct scratch){"tile of the head", of(smaller(s->vocab, HEAD_TILE), h * 4)};
}

static struct gpu_scratch scratch_plan_gpu(const struct spec *spec, const struct plan *plan,
                                           const struct sizes *s, bool training)
{
    return gpu_scratch_most(&(struct gpu_scratch_job){
        .layers = s->layers,
        .hidden = s->hidden,
        .q = s->q,
        .kv = s->kv,
        .width = s->width,
        .heads = s->heads,
        .experts = s->experts,
        .experts_local = s->experts_local,
        .vocab = s->vocab,
        .samples = s->tokens / s->longest,
        .length = s->longest,
        .ranks = plan->layout.ep,
        .mine = s->mine,
        .most = s->most,
        .rank = s->rank,
        .targets = spec->lora_targets,
        .dropout = spec->lora_dropout != 0,
        .training = training,
    });
}

// Operations run one after another: the one with the largest scratch counts. evaluated: of the
// evaluation, NULL without one.
static void workspace_plan(const struct spec *spec, struct plan *plan, const struct sizes *s,
                           const struct sizes *evaluated, int threads)
{
    struct scratch all[SCRATCHES] = {0}, most = {0};

    if (plan->cpu) { // the experts' backward pass is not the evaluation's
        scratch_plan_cpu(spec, s, threads, all);
        for (int i = 0; i < SCRATCHES; i++)
            if (all[i].bytes > most.bytes)
                most = all[i];
        term(plan, MEMORY_WORKSPACE, most.name, most.bytes, "%llu tokens, %llu rows, %d thread%s",
             s->tokens, s->rows, threads, threads == 1 ? "" : "s");
    } else {
        struct gpu_scratch training = scratch_plan_gpu(spec, plan, s, true), evaluation = {0};
        if (evaluated)
            evaluation = scratch_plan_gpu(spec, plan, evaluated, false);
        if (evaluation.bytes > training.bytes)
            term(plan, MEMORY_WORKSPACE, evaluation.name, evaluation.bytes,
                 "%llu tokens, %llu rows, evaluated", s->tokens, evaluated->rows);
        else
            term(plan, MEMORY_WORKSPACE, training.name, training.bytes, "%llu tokens, %llu rows",
                 s->tokens, s->rows);
    }
}

// Rows on their way to the experts need both ends' buffers, rows on their way back one.
static void communication_plan(struct plan *plan, const struct sizes *s)
{
    amount sent = s->sent, there = quantised(plan, s->hidden);
    amount back = stream(plan, s->hidden);

    if (plan->layout.ep == 1) // nothing leaves the rank
        return;
    if (of(sent, there) + of(s->rows, there) > of(s->rows, back))
        term(plan, MEMORY_COMMUNICATION, "dispatch", of(sent, there) + of(s->rows, there),
             "(%llu sent + %llu received) rows x %llu bytes", sent, s->rows, there);
    else
        term(plan, MEMORY_COMMUNICATION, "return", of(s->rows, back), "%llu rows x %llu bytes",
             s->rows, back);
}

// The three largest categories in words.
int plan_cap_check(const struct spec *spec, const struct plan *plan, uint64_t cap_bytes,
                   struct fl_error *e)
{
    uint64_t need = plan->dry ? plan->mapped_bytes : plan->total_bytes + ROUNDING;
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
        "%s: the plan of %s a rank, rounding included, is above the cap of %s: %s; lower "
        "micro_batch_size, max_length or lora_rank, or raise "
        "expert_model_parallel_size",
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
    struct sizes s, evaluated;
    bool evaluates;
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
        .heads = model->heads,
        .q = (amount)model->heads * model->head_dim,
        .kv = (amount)model->kv_heads * model->head_dim,
        .width = model->expert_width,
        .experts = model->experts,
        .experts_local = plan->layout.experts_local,
        .top_k = model->top_k,
        .vocab = model->vocab,
        .longest = spec->max_length,
        .tokens = (amount)spec->micro_batch_size * spec->max_length,
        .rank = spec->lora_rank,
    };
    evaluated = s;
    rows_bound(spec->capacity_factor, &s, plan->layout.ep);
    rows_bound(0, &evaluated, plan->layout.ep);
    evaluates = spec->val_dataset_count > 0;
    plan->base_params = params_base(model, plan->layout.experts_local);
    plan->base_params_total = params_base(model, model->experts);
    plan->trainable_params = params_trainable(spec, model, plan->layout.experts_local);
    plan->trainable_params_total = params_trainable(spec, model, model->experts);
    weights_plan(plan, model, &s);
    states_plan(spec, plan);
    activations_plan(plan, model, &s, evaluates ? &evaluated : NULL);
    workspace_plan(spec, plan, &s, evaluates ? &evaluated : NULL, threads);
    communication_plan(plan, evaluates ? &evaluated : &s); // a capacity does not limit it
    return plan_cap_check(spec, plan, cap_bytes, e);
}
