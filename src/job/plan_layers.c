// SPDX-License-Identifier: Apache-2.0
// What a micro-batch keeps, and sends.
#include "job/plan_parts.h"

#define TOKEN_BYTES 20 // id, target, position and key of a batch's token

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

    plan_term_add(plan, MEMORY_ACTIVATIONS, "attention of a layer", l->attention,
                  "%llu tokens x %llu bytes (norm, q k v twice, output)", T, l->attention / T);
    plan_term_add(plan, MEMORY_ACTIVATIONS, "router of a layer", l->router,
                  "%llu tokens x %llu bytes (norm, logits, weights, order of %llu rows)", T,
                  l->router / T, R);
    plan_term_add(plan, MEMORY_ACTIVATIONS, "experts of a layer", l->experts,
                  "%llu rows x %llu bytes (input, gate and up, SwiGLU)", R, l->experts / R);
}

// Of a micro-batch, whichever pass it is in.
static void batch_plan(struct plan *plan, const struct model *m, const struct sizes *s,
                       amount inputs)
{
    amount T = s->tokens, S = s->tokens * s->top_k, head_dim = m->head_dim, h = s->hidden;

    plan_term_add(plan, MEMORY_ACTIVATIONS, "batch", 3 * of(T, 4) + of(T, 8),
                  "%llu tokens x %d bytes", T, TOKEN_BYTES);
    plan_term_add(plan, MEMORY_ACTIVATIONS, "rotations", of(T, head_dim * 4),
                  "%llu tokens x %llu fp32", T, head_dim);
    plan_term_add(plan, MEMORY_ACTIVATIONS, "layer inputs", inputs * of(T, stream(plan, h)),
                  "%llu x %llu tokens x %llu %s", inputs, T, h, plan->cpu ? "fp32" : "bf16");
    plan_term_add(plan, MEMORY_ACTIVATIONS, "routes",
                  of(s->layers * S, 4) + of(s->layers * S, 1) + of(s->layers, 8) + aligned(8),
                  "%llu layers x %llu tokens x %llu experts x 5 bytes", s->layers, T, s->top_k);
}

// What stays from the forward to the backward pass, and the larger of a layer and the head. An
// evaluation (NULL: none) keeps the inputs of two layers, but no capacity limits its rows.
void plan_activations(struct plan *plan, const struct model *m, const struct sizes *s,
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
            plan_term_add(plan, MEMORY_ACTIVATIONS, "output of the experts", returned,
                          "(%llu rows + %llu returned) x %llu bytes, evaluated", evaluated->rows,
                          evaluated->sent, stream(plan, h));
            return;
        }
    }
    batch_plan(plan, m, s, s->layers + 1);
    plan_term_add(plan, MEMORY_ACTIVATIONS, "gradient of the output", row,
                  "%llu tokens x %llu bytes", T, stream(plan, h));
    if (row + logits > layer) {
        plan_term_add(plan, MEMORY_ACTIVATIONS, "output", row, "%llu tokens x %llu bytes", T,
                      stream(plan, h));
        plan_term_add(plan, MEMORY_ACTIVATIONS, "logits", logits, "%llu rows x %llu fp32", rows,
                      s->vocab);
        return;
    }
    layer_plan(plan, s, &l);
    plan_term_add(plan, MEMORY_ACTIVATIONS, "gradient of the residual", l.residual,
                  "%llu tokens x %llu bytes", T, stream(plan, h));
    if (l.back_experts > l.back_attention)
        plan_term_add(plan, MEMORY_ACTIVATIONS, "gradients of experts", l.back_experts,
                      "%llu rows, %llu returned, %llu tokens; x %llu bytes and less", R, s->sent, T,
                      quantised(plan, h) + stream(plan, s->width) + stream(plan, h));
    else
        plan_term_add(plan, MEMORY_ACTIVATIONS, "gradients of attention", l.back_attention,
                      "%llu tokens x %llu bytes", T, l.back_attention / T);
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
