// SPDX-License-Identifier: Apache-2.0
// The three questions a plan is asked: how the count arises, where the memory goes, what to change.
#include "job/plan_print.h"

#include "base/bytes.h"
#include "job/params.h"

#include <string.h>

typedef unsigned long long amount;

#define TRAINER_STATES 16 // bytes a parameter: fp32 main, gradient and two moments of a plain AdamW

static void count_explain(FILE *out, const struct plan_view *v)
{
    const struct model *m = v->model;
    const struct plan *plan = v->plan;
    int tp = plan->layout.tp, local = plan->layout.experts_local;
    amount q = (amount)(m->heads / tp) * (amount)m->head_dim, h = (amount)m->hidden;
    amount kv = (amount)(m->kv_heads > tp ? m->kv_heads / tp : 1) * (amount)m->head_dim;
    amount tables = m->tied_embeddings ? 1 : 2,
           rows = ((amount)m->vocab + (amount)tp - 1) / (amount)tp;
    struct spec dense = *v->spec, expert = *v->spec;
    amount attention, one;

    dense.lora_targets &= ~(unsigned)(LORA_FC1 | LORA_FC2);
    expert.lora_targets &= (unsigned)(LORA_FC1 | LORA_FC2);
    attention = params_trainable(&dense, m, tp, local) / (amount)m->layers;
    one = params_trainable(&expert, m, tp, 1) / (amount)m->layers;
    fprintf(out, "How the count arises\n");
    fprintf(
        out,
        "  base of a rank  %llu = %d x (%llu q k v + %llu proj + %llu router + %llu norms + %d x "
        "%llu experts) + %llu x %llu x %llu embeddings + %llu norm\n",
        (amount)plan->base_params, m->layers, (q + 2 * kv) * h, q * h, (amount)m->experts * h,
        2 * h + 2 * (amount)m->head_dim, local, 3 * (amount)m->expert_width * h, tables, rows, h,
        h);
    fprintf(out, "  LoRA of a rank  %llu = %d x (%llu attention + %d x %llu experts)\n",
            (amount)plan->trainable_params, m->layers, attention, local, one);
    fprintf(out,
            "  an A [%d x in] is shared by q, k and v, and by gate and up; every other target and "
            "each B [out x %d] is its own\n",
            v->spec->lora_rank, v->spec->lora_rank);
    fprintf(out,
            "  a rank holds %d of %d experts of every layer, so its count is not the model's: "
            "%.2f billion, with adapters on all of them %.4f million\n",
            local, m->experts,
            (double)(params_reported_block(m) + params_reported_embedding(m)) / 1e9,
            (double)plan->trainable_params_total / 1e6);
}

static uint64_t named(const struct plan *plan, enum memory_category category)
{
    return plan->bytes[category];
}

static void row(FILE *out, const char *name, double here, double bf16, double twice)
{
    fprintf(out, "  %-26s %10.2f GiB %14.2f GiB %14.2f GiB\n", name, here / 0x1p30, bf16 / 0x1p30,
            twice / 0x1p30);
}

// Base weights once in FP8; as BF16; and as trainers hold them that keep rows and columns quantised
// apart, both with fp32 scales of their blocks.
static void memory_explain(FILE *out, const struct plan_view *v)
{
    const struct plan *plan = v->plan;
    double weights = (double)named(plan, MEMORY_WEIGHTS), fp8 = 0, states, plain, rest = 0;

    for (int i = 0; i < plan->term_count; i++) {
        const struct plan_term *t = &plan->terms[i];
        bool eight = t->category == MEMORY_WEIGHTS &&
                     (!strncmp(t->name, "experts", 7) || !strncmp(t->name, "attention", 9) ||
                      !strncmp(t->name, "gathered", 8) || !strncmp(t->name, "scales", 6));
        if (eight)
            fp8 += (double)t->bytes;
    }
    for (int c = MEMORY_ACTIVATIONS; c < MEMORY_CATEGORIES; c++)
        rest += (double)named(plan, (enum memory_category)c);
    states = (double)(named(plan, MEMORY_ADAPTERS) + named(plan, MEMORY_GRADIENTS) +
                      named(plan, MEMORY_OPTIMIZER));
    plain = (double)plan->trainable_params * TRAINER_STATES;
    fprintf(out, "Where the memory of a rank goes\n");
    fprintf(out, "  %-26s %14s %18s %18s\n", "", "here", "base in BF16", "two FP8 copies");
    row(out, "base weights", weights, weights + fp8, weights + fp8);
    row(out, "adapters and their states", states, plain, plain);
    row(out, "activations and scratch", rest, rest, rest);
    row(out, "all, beside the context", weights + states + rest, weights + fp8 + plain + rest,
        weights + fp8 + plain + rest);
    fprintf(out,
            "  FP8 weights that are held twice, or widened, cost what BF16 does: here one copy "
            "serves the forward and the backward pass\n");
    fprintf(out,
            "  the other columns keep 16 bytes of fp32 states for each adapter parameter, as plain "
            "AdamW does; and the same activations, which is kind to them\n");
}

static void singles_print(FILE *out, const struct plan_view *v)
{
    char device[BYTES_TEXT], host[BYTES_TEXT];

    fprintf(out, "What one change saves, and costs an iteration on %s\n", v->gpu->name);
    fprintf(out, "  %-58s %14s %14s %12s\n", "", "device", "host", "time");
    for (int i = 0; i < v->single_count; i++) {
        const struct fit_single *s = &v->singles[i];
        fprintf(out, "  %-58s %c%13s %c%13s %+9.1f ms%s\n", s->change,
                s->device_saved < 0 ? '+' : '-',
                bytes_format((uint64_t)(s->device_saved < 0 ? -s->device_saved : s->device_saved),
                             device),
                s->host_saved < 0 ? '+' : '-',
                bytes_format((uint64_t)(s->host_saved < 0 ? -s->host_saved : s->host_saved), host),
                s->step_more_s * 1e3, s->runs ? "" : "  not run by this version yet");
    }
}

void plan_explain(FILE *out, const struct plan_view *v)
{
    count_explain(out, v);
    if (v->gpu) {
        memory_explain(out, v);
        singles_print(out, v);
    }
}

// Whether this version is nearer to running some choices than others.
static bool mixed(const struct plan_view *v)
{
    for (int i = 1; i < v->choice_count; i++)
        if (v->choices[i].runs != v->choices[0].runs ||
            v->choices[i].written != v->choices[0].written)
            return true;
    return false;
}

void plan_print_fit(FILE *out, const struct plan_view *v)
{
    char text[FIT_CHANGES], need[BYTES_TEXT], host[BYTES_TEXT], cap[BYTES_TEXT];

    fprintf(out, "What fits %s of a rank's device, %s\n", bytes_format(v->cap_bytes, cap),
            mixed(v) ? "nearest to what this version runs first, of these the soonest"
                     : "soonest first");
    if (v->choice_count == 0)
        fprintf(out, "  nothing: not with a lower rank nor with 64 times as many GPUs\n");
    for (int i = 0; i < v->choice_count; i++) {
        const struct fit_choice *c = &v->choices[i];
        fprintf(out, "  %8.1f ms %12s %12s of the host  %s%s%s\n", c->step_s * 1e3,
                bytes_format(c->need, need), bytes_format(c->host, host),
                c->changes ? "change " : "as it is",
                c->changes ? fit_changes(v->spec, v->plan->layout.world, c, text) : "",
                c->runs      ? ""
                : c->written ? " (not on several GPUs in this version yet)"
                             : " (planned, not run by this version yet)");
    }
}
