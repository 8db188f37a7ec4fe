// SPDX-License-Identifier: Apache-2.0
// What a step costs in time and traffic.
#include "job/estimate.h"

#include "job/params.h"

#include <math.h>

// Shares of the peaks that were measured on an H200 with the best library for each, at the shapes
// of the 30B model: grouped and dense FP8 products (DeepGEMM), bf16 products (cuBLAS), attention
// (cuDNN), a device copy. Adapters' products are too thin for the tensor cores to be busy.
#define FP8_GROUPED     0.58
#define FP8_DENSE       0.60
#define BF16_DENSE      0.72
#define ATTENTION_THERE 0.48
#define ATTENTION_BACK  0.36
#define BF16_THIN       0.20
#define MEMORY_COPIED   0.885
#define LINK_USED       0.80 // of a link's peak, by large messages

// Thousands of launches a step were seen to cost about 10 ms: of one layer in one micro-batch.
#define LAUNCHES_S 0.2e-3

// Attention's backward pass computes five products where the forward one computes two.
#define BACK_PRODUCTS 2.5

// Times a layer's halves run: forward and backward, and again where they are computed again. Of the
// experts' half only the first two thirds are: nothing needs their output.
struct passes {
    double attention, experts; // recomputations: 0 or 1
};

static struct passes passes_of(const struct spec *spec)
{
    bool full = spec->recompute == RECOMPUTE_FULL || spec->recompute == RECOMPUTE_AUTO;
    bool selective = spec->recompute == RECOMPUTE_SELECTIVE;

    return (struct passes){
        .attention = full || (selective && spec->recompute_part == RECOMPUTE_ATTENTION),
        .experts = full || (selective && spec->recompute_part == RECOMPUTE_EXPERTS),
    };
}

// Of one micro-batch on one rank.
struct shape {
    double layers, hidden, q, kv, width, top_k, vocab, tp, ep, rank;
    double whole, tokens, rows; // tokens of its group; its own; times experts
    double length;
};

static struct shape shape_of(const struct spec *spec, const struct model *m,
                             const struct plan *plan)
{
    double tp = plan->layout.tp, whole = (double)spec->micro_batch_size * spec->max_length;

    return (struct shape){
        .layers = m->layers,
        .hidden = m->hidden,
        .q = (double)m->heads / tp * m->head_dim,
        .kv = fmax(m->kv_heads / tp, 1) * m->head_dim,
        .width = m->expert_width,
        .top_k = m->top_k,
        .vocab = m->vocab,
        .tp = tp,
        .ep = plan->layout.ep,
        .rank = spec->lora_rank,
        .whole = whole,
        .tokens = whole / tp,
        .rows = whole / tp * m->top_k,
        .length = spec->max_length,
    };
}

static double adapters_flops(const struct spec *spec, const struct shape *s)
{
    double qkv = s->q + 2 * s->kv, dense = 0, experts = 0;

    if (spec->lora_targets & (LORA_QKV | LORA_Q | LORA_K | LORA_V))
        dense += s->hidden + qkv;
    if (spec->lora_targets & LORA_PROJ)
        dense += s->q + s->hidden;
    if (spec->lora_targets & LORA_FC1)
        experts += s->hidden + 2 * s->width;
    if (spec->lora_targets & LORA_FC2)
        experts += s->width + s->hidden;
    return s->layers * 2 * s->rank * (s->whole * dense + s->rows * experts);
}

static void computing(const struct spec *spec, const struct shape *s, const struct gpu *gpu,
                      struct estimate *e)
{
    struct passes again = passes_of(spec);
    double qkv = s->q + 2 * s->kv;
    double dense = s->layers * 2 * s->whole * s->hidden * (qkv + s->q);
    double experts = s->layers * 2 * s->rows * s->hidden * 3 * s->width;
    double scores = s->layers * 2 * s->whole * s->length * s->q; // causal: half of both products
    double copied = gpu->memory * MEMORY_COPIED;
    // Norms, rotations, quantisation, gathering: bf16 values read and written around the products.
    double dense_bytes = s->layers * s->whole * 2 * (6 * s->hidden + 3 * qkv);
    double expert_bytes = s->layers * s->rows * 2 * (3 * s->hidden + 5 * s->width);

    e->products_s = dense * (2 + again.attention) / (gpu->fp8 * FP8_DENSE) +
                    experts * (2 + again.experts * 2 / 3) / (gpu->fp8 * FP8_GROUPED);
    e->attention_s = scores * (1 + again.attention) / (gpu->bf16 * ATTENTION_THERE) +
                     scores * BACK_PRODUCTS / (gpu->bf16 * ATTENTION_BACK);
    e->head_s = 2 * 2 * s->whole * s->hidden * s->vocab / s->tp / (gpu->bf16 * BF16_DENSE);
    e->adapters_s = adapters_flops(spec, s) * 3 / (gpu->bf16 * BF16_THIN);
    e->traffic_s =
        dense_bytes * (3 + again.attention) / copied + expert_bytes * (3 + again.experts) / copied;
}

// Bytes a second to the other ranks of a group of consecutive ranks.
static double link_of(const struct gpu *gpu, const struct fabric *fabric, double ranks)
{
    return (ranks <= fabric->node_gpus ? gpu->link : fmin(gpu->link, fabric->network)) * LINK_USED;
}

static double left_over(double time, double behind)
{
    return fmax(0, time - behind);
}

// Rows to the experts and back: FP8 with scales there, bf16 back, in the forward pass; the same
// with gradients in the backward pass; there once more when the experts are computed again.
static void exchange(const struct spec *spec, const struct shape *s, const struct gpu *gpu,
                     const struct fabric *fabric, struct estimate *e)
{
    double there = s->hidden * (1 + 4.0 / FP8_BLOCK), back = s->hidden * 2;
    double away = s->rows * (s->ep - 1) / s->ep;
    struct passes again = passes_of(spec);

    e->exchange_bytes = s->layers * away * (2 * (there + back) + again.experts * there);
    e->exchange_s = e->exchange_bytes / link_of(gpu, fabric, s->ep);
}

// Gathered a layer ahead, and inputs copied to the host, behind a layer's computing.
static void overlapped(const struct spec *spec, const struct shape *s, const struct plan *plan,
                       const struct gpu *gpu, const struct fabric *fabric, struct estimate *e)
{
    struct passes again = passes_of(spec);
    double dp = plan->layout.dp, computed = e->products_s + e->attention_s + e->traffic_s;

    if (spec->shard_frozen) {
        double layer = s->hidden * (2 * s->q + 2 * s->kv);
        e->gather_bytes = s->layers * layer * (2 + again.attention) * (dp - 1) / dp;
        e->gather_s =
            left_over(e->gather_bytes / link_of(gpu, fabric, plan->layout.world), computed);
    }
    if (spec->layer_inputs == LAYER_INPUTS_HOST) {
        double bytes = 2 * s->layers * s->tokens * s->hidden * 2;
        e->host_bytes += bytes;
        e->inputs_s = left_over(bytes / gpu->host_link, computed);
    }
}

static double ring(double bytes, double ranks)
{
    return ranks > 1 ? 2 * bytes * (ranks - 1) / ranks : 0;
}

// Once an iteration: gradients, and AdamW on the device or on the host's processors.
static void update(const struct spec *spec, const struct plan *plan, const struct model *m,
                   const struct gpu *gpu, const struct fabric *fabric, struct estimate *e)
{
    const struct layout *l = &plan->layout;
    double n = (double)plan->trainable_params, replicated;
    static const double stored[] = {4, 2, 2, 1};
    double state = 4 + stored[spec->exp_avg] + stored[spec->exp_avg_sq];
    struct spec dense = *spec;

    dense.lora_targets &= ~(unsigned)(LORA_FC1 | LORA_FC2);
    replicated = (double)params_trainable(&dense, m, l->tp, l->experts_local);
    e->gradient_bytes = ring(replicated * 4, l->dp) + ring((n - replicated) * 4, l->replicas);
    e->gradients_s = e->gradient_bytes / link_of(gpu, fabric, l->world);
    if (!spec->optimizer_offload) {
        e->optimizer_s = n * (2 * state + 4) / (gpu->memory * MEMORY_COPIED);
        return;
    }
    // Gradients down, bf16 parameters up; all ranks of a node share its memory.
    e->host_bytes += n * (4 + 2);
    e->optimizer_s = n * 4 / gpu->host_link + n * 2 / gpu->host_link +
                     n * (2 * state + 4) * fmin(l->world, fabric->node_gpus) / fabric->host_memory;
}

void estimate_make(const struct spec *spec, const struct model *model, const struct plan *plan,
                   const struct gpu *gpu, const struct fabric *fabric, struct estimate *out)
{
    struct shape s = shape_of(spec, model, plan);
    double micro = plan->layout.accumulation;

    *out = (struct estimate){.tokens = (double)spec->global_batch_size * spec->max_length};
    computing(spec, &s, gpu, out);
    out->launches_s = s.layers * LAUNCHES_S;
    exchange(spec, &s, gpu, fabric, out);
    overlapped(spec, &s, plan, gpu, fabric, out);
    double *const each[] = {&out->products_s,     &out->attention_s,  &out->head_s,
                            &out->adapters_s,     &out->traffic_s,    &out->exchange_s,
                            &out->launches_s,     &out->gather_s,     &out->inputs_s,
                            &out->exchange_bytes, &out->gather_bytes, &out->host_bytes};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        *each[i] *= micro;
    update(spec, plan, model, gpu, fabric, out);
    out->step_s = out->products_s + out->attention_s + out->head_s + out->adapters_s +
                  out->traffic_s + out->launches_s + out->exchange_s + out->gradients_s +
                  out->gather_s + out->inputs_s + out->optimizer_s;
}
