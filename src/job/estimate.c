// SPDX-License-Identifier: Apache-2.0
// What a step costs in time and traffic.
#include "job/estimate.h"

#include "job/params.h"

#include <math.h>

// Shares of an H200's peaks; other GPUs are scaled by theirs. Attention is this program's own at
// 2 x 2048 tokens, 578 and 414 TFLOP/s; the output layer is cuBLAS, copies a device's own. What is
// left was set so that the sum meets whole steps of the trainer, measured on one H200: the 30B
// model, EP 1, rank 16, all linear modules, 2 x 2048 tokens, take 244.7 ms with every layer
// computed again, 211 ms with none, and 269 ms as the first with dropout 0.05. Those three steps do
// not tell what of the backward pass is the adapters': ADAPTERS_BACK has what nothing else has.
#define FP8_GROUPED     0.50
#define FP8_DENSE       0.52
#define BF16_DENSE      0.72
#define ATTENTION_THERE 0.58
#define ATTENTION_BACK  0.42
#define BF16_THIN       0.20
#define MEMORY_COPIED   0.885

// How often a pass reads the frozen weights: the backward one reads, writes and reads them
// transposed.
#define WEIGHTS_THERE 1.0
#define WEIGHTS_BACK  3.0

// Of adapters' inputs in bf16, read and written: dropped out for the forward pass, and again for
// the gradients of A and of the input.
#define DROPOUT_THERE 2.0
#define DROPOUT_BACK  5.0

// How often the gradients of adapters read or write rows of their inputs and outputs.
#define ADAPTERS_BACK 8.0

// Bytes of a logit: written in fp32, read for the loss, its gradient written and read in bf16.
#define LOGIT_BYTES 12.0

// Thousands of launches a step were seen to cost about 10 ms: of one layer in one micro-batch.
#define LAUNCHES_S 0.2e-3

// Attention's backward pass computes five products where the forward one computes two.
#define BACK_PRODUCTS 2.5

// Of the experts' half of a layer, only its first two thirds are computed again: nothing needs
// their output.
#define AGAIN_EXPERTS (2.0 / 3)

// Times a layer's halves run: forward and backward, and again where they are computed again.
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
    double layers, hidden, q, kv, width, top_k, vocab, tp, dp, ep, rank, experts_local;
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
        .dp = plan->layout.dp,
        .experts_local = plan->layout.experts_local,
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

// Bytes of adapters' inputs.
static double dropped_dense(const struct spec *spec, const struct shape *s)
{
    bool qkv = spec->lora_targets & (LORA_QKV | LORA_Q | LORA_K | LORA_V);
    bool proj = spec->lora_targets & LORA_PROJ;

    return s->layers * s->whole * 2 * (qkv * s->hidden + proj * s->q);
}

static double dropped_experts(const struct spec *spec, const struct shape *s)
{
    bool fc1 = spec->lora_targets & LORA_FC1, fc2 = spec->lora_targets & LORA_FC2;

    return s->layers * s->rows * 2 * (fc1 * s->hidden + fc2 * s->width);
}

// And of their inputs and outputs.
static double adapted_bytes(const struct spec *spec, const struct shape *s)
{
    bool qkv = spec->lora_targets & (LORA_QKV | LORA_Q | LORA_K | LORA_V);
    bool proj = spec->lora_targets & LORA_PROJ, fc1 = spec->lora_targets & LORA_FC1;
    bool fc2 = spec->lora_targets & LORA_FC2;

    return dropped_dense(spec, s) + dropped_experts(spec, s) +
           s->layers * 2 *
               (s->whole * (qkv * (s->q + 2 * s->kv) + proj * s->hidden) +
                s->rows * (fc1 * 2 * s->width + fc2 * s->hidden));
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

    double fp8 = gpu->fp8 > 0 ? gpu->fp8 : gpu->bf16, experts_again = again.experts * AGAIN_EXPERTS;
    double dense_weights = s->layers * s->hidden * (qkv + s->q);
    double expert_weights = s->layers * s->experts_local * 3 * s->width * s->hidden;
    double thin = adapters_flops(spec, s);

    e->products_s = dense * (2 + again.attention) / (fp8 * FP8_DENSE) +
                    experts * (2 + experts_again) / (fp8 * FP8_GROUPED);
    e->weights_s = (dense_weights * (WEIGHTS_THERE * (1 + again.attention) + WEIGHTS_BACK) +
                    expert_weights * (WEIGHTS_THERE * (1 + experts_again) + WEIGHTS_BACK)) /
                   copied;
    e->attention_s = scores * (1 + again.attention) / (gpu->bf16 * ATTENTION_THERE) +
                     scores * BACK_PRODUCTS / (gpu->bf16 * ATTENTION_BACK);
    e->head_s = 2 * 2 * s->whole * s->hidden * s->vocab / s->tp / (gpu->bf16 * BF16_DENSE) +
                s->whole * s->vocab / s->tp * LOGIT_BYTES / copied;
    e->adapters_s = thin * (1 + (again.attention + again.experts) / 2) / (gpu->bf16 * BF16_THIN) +
                    thin * 2 / (gpu->bf16 * BF16_THIN) +
                    adapted_bytes(spec, s) * ADAPTERS_BACK / copied;
    e->traffic_s =
        (dense_bytes * (3 + again.attention) + expert_bytes * (3 + experts_again)) / copied;
    if (spec->lora_dropout > 0)
        e->dropout_s =
            (dropped_dense(spec, s) * (DROPOUT_THERE * (1 + again.attention) + DROPOUT_BACK) +
             dropped_experts(spec, s) * (DROPOUT_THERE * (1 + experts_again) + DROPOUT_BACK)) /
            copied;
}

static double left_over(double time, double behind)
{
    return fmax(0, time - behind);
}

// Bytes a second between ranks.
static double link_of(const struct gpu *gpu, const struct fabric *fabric, int ranks)
{
    const char *name;

    return gpu_link(gpu, fabric, ranks, &name);
}

// Rows to the experts and back: FP8 with scales there, bf16 back, in the forward pass; the same
// with gradients in the backward pass; there once more when the experts are computed again.
static void exchange(const struct spec *spec, const struct shape *s, const struct plan *plan,
                     const struct gpu *gpu, const struct fabric *fabric, struct estimate *e)
{
    double there = s->hidden * (1 + 4.0 / FP8_BLOCK), back = s->hidden * 2;
    double away = s->layers * s->rows * (s->ep - 1) / s->ep;

    e->dispatch_bytes = e->back_dispatch_bytes = away * there;
    e->return_bytes = e->back_return_bytes = away * back;
    e->again_bytes = passes_of(spec).experts * away * there;
    e->exchange_s = (e->dispatch_bytes + e->return_bytes + e->again_bytes + e->back_dispatch_bytes +
                     e->back_return_bytes) /
                    link_of(gpu, fabric, plan->layout.ep);
}

// Between the ranks that share heads and vocabulary: before attention all tokens, after it sums of
// their own; the same backward, and again where attention is; the output layer's input and its
// gradient, and the embedding's sums. Nothing of it is overlapped.
static void tensor(const struct spec *spec, const struct shape *s, const struct gpu *gpu,
                   const struct fabric *fabric, struct estimate *e)
{
    double tokens = s->whole * s->hidden * 2 * (s->tp - 1) / s->tp;

    e->tensor_bytes = tokens * (s->layers * (4 + 2 * passes_of(spec).attention) + 3);
    e->tensor_s = e->tensor_bytes / link_of(gpu, fabric, (int)s->tp);
}

// Frozen weights that are shards. Attention's are gathered a layer ahead, behind computing. The
// tables stay where they are: rows of all ranks come to each shard of the output layer, in chunks,
// and their gradients go back; each rank's rows of the embedding come from where they are.
static void shards(const struct spec *spec, const struct shape *s, const struct plan *plan,
                   const struct gpu *gpu, const struct fabric *fabric, struct estimate *e)
{
    double layer = s->hidden * (2 * s->q + 2 * s->kv) * (1 + 4.0 / FP8_BLOCK / FP8_BLOCK);
    double rows = s->tokens * s->hidden * 2, others = s->dp - 1;
    double computed = e->products_s + e->weights_s + e->attention_s + e->traffic_s;
    double rate = link_of(gpu, fabric, plan->layout.world);

    if (!spec->shard_frozen)
        return;
    e->gather_bytes = s->layers * layer * (2 + passes_of(spec).attention) * others / s->dp;
    e->gather_s = left_over(e->gather_bytes / rate, computed);
    e->tables_bytes = rows * (2 * others + others / s->dp);
    e->tables_s = e->tables_bytes / rate;
}

// Layer inputs on their way to host memory and back, behind computing.
static void inputs(const struct spec *spec, const struct shape *s, const struct gpu *gpu,
                   struct estimate *e)
{
    double computed = e->products_s + e->weights_s + e->attention_s + e->traffic_s;

    if (spec->layer_inputs == LAYER_INPUTS_HOST) {
        e->host_bytes = 2 * s->layers * s->tokens * s->hidden * 2;
        e->inputs_s = left_over(e->host_bytes / gpu->host_link, computed);
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
    e->dense_gradient_bytes = ring(replicated * 4, l->dp);
    e->expert_gradient_bytes = ring((n - replicated) * 4, l->replicas);
    e->gradients_s =
        (e->dense_gradient_bytes + e->expert_gradient_bytes) / link_of(gpu, fabric, l->world);
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
    exchange(spec, &s, plan, gpu, fabric, out);
    tensor(spec, &s, gpu, fabric, out);
    shards(spec, &s, plan, gpu, fabric, out);
    inputs(spec, &s, gpu, out);
    double *const each[] = {&out->products_s,
                            &out->weights_s,
                            &out->attention_s,
                            &out->head_s,
                            &out->adapters_s,
                            &out->dropout_s,
                            &out->traffic_s,
                            &out->launches_s,
                            &out->exchange_s,
                            &out->tensor_s,
                            &out->gather_s,
                            &out->tables_s,
                            &out->inputs_s,
                            &out->dispatch_bytes,
                            &out->return_bytes,
                            &out->again_bytes,
                            &out->back_dispatch_bytes,
                            &out->back_return_bytes,
                            &out->tensor_bytes,
                            &out->gather_bytes,
                            &out->tables_bytes,
                            &out->host_bytes};
    for (size_t i = 0; i < sizeof each / sizeof *each; i++)
        *each[i] *= micro;
    update(spec, plan, model, gpu, fabric, out);
    out->step_s = out->products_s + out->weights_s + out->attention_s + out->head_s +
                  out->adapters_s + out->dropout_s + out->traffic_s + out->launches_s +
                  out->exchange_s + out->tensor_s + out->gradients_s + out->gather_s +
                  out->tables_s + out->inputs_s + out->optimizer_s;
}
