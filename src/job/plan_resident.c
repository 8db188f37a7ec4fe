// SPDX-License-Identifier: Apache-2.0
// What stays in memory from the first step to the last.
#include "job/plan_parts.h"

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
    plan_term_add(plan, MEMORY_WEIGHTS, "attention", L * (aligned(qkv * h) + aligned(h * s->q)),
                  "%llu layers x (%llu + %llu) x %llu e4m3", L, qkv, s->q, h);
    plan_term_add(plan, MEMORY_WEIGHTS, "scales of attention",
                  L * (aligned((blocks(s->q) + 2 * blocks(s->kv)) * blocks(h) * 4) +
                       aligned(blocks(h) * blocks(s->q) * 4)),
                  "%llu layers x (%llu + %llu) x %llu blocks fp32", L,
                  blocks(s->q) + 2 * blocks(s->kv), blocks(s->q), blocks(h));
    plan_term_add(plan, MEMORY_WEIGHTS, "routers", L * aligned(s->experts * h * 4),
                  "%llu layers x %llu x %llu fp32", L, s->experts, h);
    norms = 2 * aligned(h * 4) + 2 * aligned((amount)m->head_dim * 4);
    plan_term_add(plan, MEMORY_WEIGHTS, "norms", L * norms + aligned(h * 4),
                  "%llu layers x 2 x (%llu + %d) + %llu fp32", L, h, m->head_dim, h);
    plan_term_add(plan, MEMORY_WEIGHTS, "embedding", aligned(s->vocab * h * 2), "%llu x %llu bf16",
                  s->vocab, h);
    if (!m->tied_embeddings)
        plan_term_add(plan, MEMORY_WEIGHTS, "output layer", aligned(s->vocab * h * 2),
                      "%llu x %llu bf16", s->vocab, h);
}

// A moment as ops/moment.h stores it: fp16 and fp8 have a scale for every 128 values.
static void moment_plan(struct plan *plan, const char *name, enum storage type)
{
    static const char *const names[] = {"fp32", "fp16 and scales", "bf16", "fp8 and scales"};
    static const amount bytes[] = {4, 2, 2, 1};
    amount n = plan->trainable_params;
    bool scaled = type == STORAGE_FP16 || type == STORAGE_FP8;

    plan_term_add(plan, MEMORY_OPTIMIZER, name,
                  aligned(n * bytes[type]) + (scaled ? aligned(blocks(n) * 4) : 0), "%llu %s", n,
                  names[type]);
}

static void states_plan(const struct spec *spec, struct plan *plan)
{
    amount n = plan->trainable_params;

    plan_term_add(plan, MEMORY_ADAPTERS, "parameters", aligned(n * 4),
                  "%llu fp32, their own main parameters", n);
    plan_term_add(plan, MEMORY_GRADIENTS, "gradients", aligned(n * 4), "%llu fp32", n);
    moment_plan(plan, "first moments", spec->exp_avg);
    moment_plan(plan, "second moments", spec->exp_avg_sq);
}

void plan_resident(const struct spec *spec, struct plan *plan, const struct model *model,
                   const struct sizes *sizes)
{
    weights_plan(plan, model, sizes);
    states_plan(spec, plan);
}
