// SPDX-License-Identifier: Apache-2.0
// What a micro-batch keeps, and sends.
#include "job/plan_parts.h"

#define TOKEN_BYTES 20 // id, target, position and key of a batch's token
#define IN_FLIGHT   3  // layer inputs on the device when the others are in host memory

// One layer computed again and differentiated; bytes, the gradient of the residual included.
struct layer_sizes {
    amount attention, router, experts, residual, back_attention, back_experts;
};

static struct layer_sizes layer_sizes(const struct plan *plan, const struct sizes *s)
{
    amount T = s->tokens, R = s->rows, S = s->tokens * s->top_k, h = s->hidden, w = s->width;
    amount A = s->whole, qkv = s->q + 2 * s->kv; // attention sees all tokens, of its own heads
    amount row = of(T, stream(plan, h)), quantised_row = of(T, quantised(plan, h));

    return (struct layer_sizes){
        .attention = of(A, stream(plan, h)) + row + of(A, quantised(plan, h)) +
                     of(A, stream(plan, qkv)) + of(A, stream(plan, s->q + s->kv)) +
                     of(A, stream(plan, s->q)) + of(A, quantised(plan, s->q)) + of(A, s->heads * 4),
        .router = 2 * row + quantised_row + 2 * of(T, s->experts * 4) + 3 * of(S, 4) + of(R, 4) +
                  of(R, 8),
        .experts = of(R, quantised(plan, h)) + of(R, stream(plan, 2 * w)) + of(R, stream(plan, w)) +
                   of(R, quantised(plan, w)),
        .residual = row,
        .back_attention =
            of(A, stream(plan, s->q)) + of(A, stream(plan, qkv)) + of(A, stream(plan, h)),
        .back_experts = row + quantised_row + of(s->sent, stream(plan, h)) + of(s->sent, 4) +
                        of(S, 4) + of(R, quantised(plan, h)) + of(R, stream(plan, w)) +
                        of(R, stream(plan, h)) + 2 * of(R, 4),
    };
}

// Names, and numbers per token, of what a layer's forward pass leaves to its backward pass.
static void layer_plan(struct plan *plan, const struct sizes *s, const struct layer_sizes *l)
{
    amount T = s->tokens, R = s->rows;

    plan_term_add(plan, MEMORY_ACTIVATIONS, "attention of a layer", l->attention,
                  "%llu tokens x %llu bytes (norm, q k v twice, output)", T, l->attention / T);
    plan_term_add(plan, MEMORY_ACTIVATIONS, "router of a layer", l->router,
                  "%llu tokens x %llu bytes (norm, logits, weights, order of %llu rows)", T,
                  l->router / T, R);
    plan_term_add(plan, MEMORY_ACTIVATIONS, "experts of a layer", l->experts,
                  "%llu rows x %llu bytes (input, gate and up, SwiGLU)", R, l->experts / R);
}

// Of a micro-batch, whichever pass it is in.
static void batch_plan(struct plan *plan, const struct model *m, const struct sizes *s)
{
    amount T = s->tokens, S = s->tokens * s->top_k, head_dim = m->head_dim;

    plan_term_add(plan, MEMORY_ACTIVATIONS, "batch", 3 * of(T, 4) + of(T, 8),
                  "%llu tokens x %d bytes", T, TOKEN_BYTES);
    plan_term_add(plan, MEMORY_ACTIVATIONS, "rotations", of(s->whole, head_dim * 4),
                  "%llu tokens x %llu fp32", s->whole, head_dim);
    plan_term_add(plan, MEMORY_ACTIVATIONS, "routes",
                  of(s->layers * S, 4) + of(s->layers * S, 1) + of(s->layers, 8) + aligned(8),
                  "%llu layers x %llu tokens x %llu experts x 5 bytes", s->layers, T, s->top_k);
}

// What stays from the forward to the backward pass, and the larger of a layer and the head. An
// evaluation (NULL: none) keeps the inputs of two layers, but no capacity limits its rows.
// Inputs of layers as they wait for the backward pass: count of them on the device, where only
// those on their way stay when the rest is in host memory.
static amount inputs_bytes(const struct spec *spec, const struct plan *plan, const struct sizes *s,
                           amount count)
{
    amount row = of(s->tokens, stream(plan, s->hidden));

    if (spec->layer_inputs == LAYER_INPUTS_HOST)
        return smaller(count, IN_FLIGHT) * row;
    if (spec->layer_inputs == LAYER_INPUTS_FP8)
        return 2 * row + count * of(s->tokens, quantised(plan, s->hidden));
    return count * row;
}

static void inputs_plan(const struct spec *spec, struct plan *plan, const struct sizes *s,
                        amount count)
{
    amount T = s->tokens, h = s->hidden;

    plan_term_add(plan, MEMORY_ACTIVATIONS, "layer inputs", inputs_bytes(spec, plan, s, count),
                  "%llu x %llu tokens x %llu %s", count, T, h,
                  plan->cpu                                ? "fp32"
                  : spec->layer_inputs == LAYER_INPUTS_FP8 ? "e4m3 and scales, two bf16"
                                                           : "bf16");
    if (spec->layer_inputs == LAYER_INPUTS_HOST)
        plan_beside_add(plan, PLAN_HOST, "layer inputs", count * of(T, stream(plan, h)),
                        "%llu x %llu tokens x %llu bf16, pinned", count, T, h);
}

// What of a layer is not computed again, and so stays from its forward to its backward pass.
static amount kept_bytes(const struct spec *spec, const struct layer_sizes *l)
{
    switch (spec->recompute) {
    case RECOMPUTE_NONE:
        return l->attention + l->router + l->experts;
    case RECOMPUTE_SELECTIVE:
        return spec->recompute_part == RECOMPUTE_EXPERTS ? l->attention : l->router + l->experts;
    case RECOMPUTE_FULL:
    case RECOMPUTE_AUTO:
        break;
    }
    return 0;
}

// Whether evaluation's peak is above training's: it keeps the inputs of two layers, but no capacity
// limits its rows. returned: of the experts.
static bool evaluation_peaks(const struct spec *spec, const struct plan *plan,
                             const struct sizes *s, const struct layer_sizes *v, amount returned,
                             amount training)
{
    amount rows = smaller(s->whole, HEAD_ROWS), row = of(s->tokens, stream(plan, s->hidden));
    amount logits = of(rows, (s->vocab + s->tp - 1) / s->tp * 4);
    amount passed = v->attention + v->router + v->experts + returned;

    return larger(passed, row + logits) + 2 * row >
           training + inputs_bytes(spec, plan, s, s->layers + 1) + row;
}

static void training_plan(struct plan *plan, const struct sizes *s, const struct layer_sizes *l)
{
    amount T = s->tokens, R = s->rows, h = s->hidden;

    layer_plan(plan, s, l);
    plan_term_add(plan, MEMORY_ACTIVATIONS, "gradient of the residual", l->residual,
                  "%llu tokens x %llu bytes", T, stream(plan, h));
    if (l->back_experts > l->back_attention)
        plan_term_add(plan, MEMORY_ACTIVATIONS, "gradients of experts", l->back_experts,
                      "%llu rows, %llu returned, %llu tokens; x %llu bytes and less", R, s->sent, T,
                      quantised(plan, h) + stream(plan, s->width) + stream(plan, h));
    else
        plan_term_add(plan, MEMORY_ACTIVATIONS, "gradients of attention", l->back_attention,
                      "%llu tokens x %llu bytes", T, l->back_attention / T);
}

// What stays from the forward to the backward pass, and the larger of a layer and the head.
void plan_activations(const struct spec *spec, struct plan *plan, const struct model *m,
                      const struct sizes *s, const struct sizes *evaluated)
{
    amount T = s->tokens, h = s->hidden, rows = smaller(s->whole, HEAD_ROWS);
    amount vocab = (s->vocab + s->tp - 1) / s->tp;
    amount row = of(T, stream(plan, h)), logits = of(rows, vocab * 4), kept;
    struct layer_sizes l = layer_sizes(plan, s);
    amount layer =
        l.attention + l.router + l.experts + l.residual + larger(l.back_experts, l.back_attention);
    amount head;

    kept = kept_bytes(spec, &l);
    head = row + logits + kept; // all layers are kept then; below, all but the one at hand
    batch_plan(plan, m, s);
    if (evaluated) {
        struct layer_sizes v = layer_sizes(plan, evaluated);
        amount returned =
            of(evaluated->rows, stream(plan, h)) + of(evaluated->sent, stream(plan, h));
        if (evaluation_peaks(spec, plan, s, &v, returned,
                             larger(layer, head) + (s->layers - 1) * kept)) {
            plan_term_add(plan, MEMORY_ACTIVATIONS, "layer inputs", 2 * row,
                          "2 x %llu tokens x %llu %s", T, h, plan->cpu ? "fp32" : "bf16");
            layer_plan(plan, evaluated, &v);
            plan_term_add(plan, MEMORY_ACTIVATIONS, "output of the experts", returned,
                          "(%llu rows + %llu returned) x %llu bytes, evaluated", evaluated->rows,
                          evaluated->sent, stream(plan, h));
            return;
        }
    }
    inputs_plan(spec, plan, s, s->layers + 1);
    plan_term_add(plan, MEMORY_ACTIVATIONS, "gradient of the output", row,
                  "%llu tokens x %llu bytes", T, stream(plan, h));
    if (kept)
        plan_term_add(plan, MEMORY_ACTIVATIONS, "layers not computed again",
                      (s->layers - (head <= layer)) * kept, "%llu layers x %llu bytes",
                      s->layers - (head <= layer), kept);
    if (head <= layer) {
        training_plan(plan, s, &l);
        return;
    }
    plan_term_add(plan, MEMORY_ACTIVATIONS, "output", row, "%llu tokens x %llu bytes", T,
                  stream(plan, h));
    plan_term_add(plan, MEMORY_ACTIVATIONS, "logits", logits, "%llu rows x %llu fp32", rows, vocab);
}

// Rows on their way to the experts need both ends' buffers, rows on their way back one.
void plan_communication(struct plan *plan, const struct sizes *s)
{
    amount sent = s->sent, there = quantised(plan, s->hidden);
    amount back = stream(plan, s->hidden);

    if (plan->layout.ep == 1) // nothing leaves the rank
        return;
    if (of(sent, there) + of(s->rows, there) > of(s->rows, back))
        plan_term_add(plan, MEMORY_COMMUNICATION, "dispatch", of(sent, there) + of(s->rows, there),
                      "(%llu sent + %llu received) rows x %llu bytes", sent, s->rows, there);
    else
        plan_term_add(plan, MEMORY_COMMUNICATION, "return", of(s->rows, back),
                      "%llu rows x %llu bytes", s->rows, back);
}
