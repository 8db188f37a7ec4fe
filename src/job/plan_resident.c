// SPDX-License-Identifier: Apache-2.0
// What stays in memory from the first step to the last.
#include "job/plan_parts.h"

#define GATHERED 2 // layers whose weights are whole, or whose gradients are on their way

// Rows of the vocabulary: whole, or this rank's share.
static void table_plan(struct plan *plan, const char *name, const struct sizes *s)
{
    amount ranks = s->tp * s->shards, rows = (s->vocab + ranks - 1) / ranks;

    if (ranks > 1)
        plan_term_add(plan, MEMORY_WEIGHTS, name, aligned(rows * s->hidden * 2),
                      "%llu / %llu ranks x %llu bf16", s->vocab, ranks, s->hidden);
    else
        plan_term_add(plan, MEMORY_WEIGHTS, name, aligned(rows * s->hidden * 2), "%llu x %llu bf16",
                      s->vocab, s->hidden);
}

static void weights_plan(struct plan *plan, const struct model *m, const struct sizes *s)
{
    amount L = s->layers, El = s->experts_local, h = s->hidden, w = s->width;
    amount qkv = s->q + 2 * s->kv, norms;

    plan_term_add(plan, MEMORY_WEIGHTS, "experts",
                  L * (aligned(El * 2 * w * h) + aligned(El * h * w)),
                  "%llu layers x %llu experts x 3 x %llu x %llu e4m3", L, El, w, h);
    plan_term_add(
        plan, MEMORY_WEIGHTS, "scales of experts",
        L * (aligned(El * 2 * blocks(w) * blocks(h) * 4) + aligned(El * blocks(h) * blocks(w) * 4)),
        "%llu layers x %llu experts x 3 x %llu x %llu blocks fp32", L, El, blocks(w), blocks(h));
    if (s->shards > 1) {
        plan_term_add(plan, MEMORY_WEIGHTS, "attention",
                      L * aligned(attention_bytes(s) / s->shards),
                      "%llu layers x %llu bytes / %llu ranks", L, attention_bytes(s), s->shards);
        plan_term_add(plan, MEMORY_WEIGHTS, "gathered layers", GATHERED * attention_bytes(s),
                      "%d x %llu bytes of attention", GATHERED, attention_bytes(s));
    } else {
        plan_term_add(plan, MEMORY_WEIGHTS, "attention", L * (aligned(qkv * h) + aligned(h * s->q)),
                      "%llu layers x (%llu + %llu) x %llu e4m3", L, qkv, s->q, h);
        plan_term_add(plan, MEMORY_WEIGHTS, "scales of attention",
                      L * (aligned((blocks(s->q) + 2 * blocks(s->kv)) * blocks(h) * 4) +
                           aligned(blocks(h) * blocks(s->q) * 4)),
                      "%llu layers x (%llu + %llu) x %llu blocks fp32", L,
                      blocks(s->q) + 2 * blocks(s->kv), blocks(s->q), blocks(h));
    }
    plan_term_add(plan, MEMORY_WEIGHTS, "routers", L * aligned(s->experts * h * 4),
                  "%llu layers x %llu x %llu fp32", L, s->experts, h);
    norms = 2 * aligned(h * 4) + 2 * aligned((amount)m->head_dim * 4);
    plan_term_add(plan, MEMORY_WEIGHTS, "norms", L * norms + aligned(h * 4),
                  "%llu layers x 2 x (%llu + %d) + %llu fp32", L, h, m->head_dim, h);
    table_plan(plan, "embedding", s);
    if (!m->tied_embeddings)
        table_plan(plan, "output layer", s);
}

// A moment as ops/moment.h stores it: fp16 and fp8 have a scale for every 128 values.
static amount moment_bytes(enum storage type, amount n)
{
    static const amount bytes[] = {4, 2, 2, 1};
    bool scaled = type == STORAGE_FP16 || type == STORAGE_FP8;

    return aligned(n * bytes[type]) + (scaled ? aligned(blocks(n) * 4) : 0);
}

amount plan_states_bytes(const struct spec *spec, amount params)
{
    return moment_bytes(spec->exp_avg, params) + moment_bytes(spec->exp_avg_sq, params);
}

static const char *moment_name(enum storage type)
{
    static const char *const names[] = {"fp32", "fp16 and scales", "bf16", "fp8 and scales"};

    return names[type];
}

// Parameters that are their own main parameters, and all that AdamW needs, on the device.
static void states_plan(const struct spec *spec, struct plan *plan)
{
    amount n = plan->trainable_params;

    plan_term_add(plan, MEMORY_ADAPTERS, "parameters", aligned(n * 4),
                  "%llu fp32, their own main parameters", n);
    plan_term_add(plan, MEMORY_GRADIENTS, "gradients", aligned(n * 4), "%llu fp32", n);
    plan_term_add(plan, MEMORY_OPTIMIZER, "first moments", moment_bytes(spec->exp_avg, n),
                  "%llu %s", n, moment_name(spec->exp_avg));
    plan_term_add(plan, MEMORY_OPTIMIZER, "second moments", moment_bytes(spec->exp_avg_sq, n),
                  "%llu %s", n, moment_name(spec->exp_avg_sq));
}

// Main parameters, moments and gradients wait in host memory; the device has what its products
// read, and the gradients of the layers on their way.
static void states_plan_offloaded(const struct spec *spec, struct plan *plan, const struct sizes *s)
{
    amount n = plan->trainable_params, layer = (n + s->layers - 1) / s->layers;

    plan_term_add(plan, MEMORY_ADAPTERS, "parameters", aligned(n * 2), "%llu bf16", n);
    plan_term_add(plan, MEMORY_GRADIENTS, "gradients", aligned(GATHERED * layer * 4),
                  "%d layers x %llu fp32", GATHERED, layer);
    plan_beside_add(plan, PLAN_HOST, "main parameters", n * 4, "%llu fp32", n);
    plan_beside_add(plan, PLAN_HOST, "moments",
                    moment_bytes(spec->exp_avg, n) + moment_bytes(spec->exp_avg_sq, n),
                    "%llu %s and %s", n, moment_name(spec->exp_avg), moment_name(spec->exp_avg_sq));
    plan_beside_add(plan, PLAN_HOST, "gradients", n * 4, "%llu fp32", n);
}

void plan_resident(const struct spec *spec, struct plan *plan, const struct model *model,
                   const struct sizes *sizes)
{
    weights_plan(plan, model, sizes);
    if (spec->optimizer_offload)
        states_plan_offloaded(spec, plan, sizes);
    else
        states_plan(spec, plan);
}
