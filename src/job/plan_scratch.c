// SPDX-License-Identifier: Apache-2.0
// Scratch of operations: the one with the largest counts, since they run one after another.
#include "job/plan_parts.h"

#include "job/gpu_scratch.h"

#define CPU_ROWS       256  // of a dequantised tile, and of a block of LoRA rows, of ops/cpu
#define HEAD_TILE      1024 // rows of the head widened together, of ops/cpu
#define ATTENTION_ROWS 128  // query rows whose scores exist together, of ops/cpu
#define SCRATCHES      7    // operations whose scratch is looked at

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

void plan_scratch(const struct spec *spec, struct plan *plan, const struct sizes *s,
                  const struct sizes *evaluated, int threads)
{
    struct scratch all[SCRATCHES] = {0}, most = {0};

    if (plan->cpu) { // the experts' backward pass is not the evaluation's
        scratch_plan_cpu(spec, s, threads, all);
        for (int i = 0; i < SCRATCHES; i++)
            if (all[i].bytes > most.bytes)
                most = all[i];
        plan_term_add(plan, MEMORY_WORKSPACE, most.name, most.bytes,
                      "%llu tokens, %llu rows, %d thread%s", s->tokens, s->rows, threads,
                      threads == 1 ? "" : "s");
    } else {
        struct gpu_scratch training = scratch_plan_gpu(spec, plan, s, true), evaluation = {0};
        if (evaluated)
            evaluation = scratch_plan_gpu(spec, plan, evaluated, false);
        if (evaluation.bytes > training.bytes)
            plan_term_add(plan, MEMORY_WORKSPACE, evaluation.name, evaluation.bytes,
                          "%llu tokens, %llu rows, evaluated", s->tokens, evaluated->rows);
        else
            plan_term_add(plan, MEMORY_WORKSPACE, training.name, training.bytes,
                          "%llu tokens, %llu rows", s->tokens, s->rows);
    }
}
