// SPDX-License-Identifier: Apache-2.0
// The tensors of a Qwen3-MoE checkpoint by name, shape and use.
#include "weights/model_tensors.h"

#include <stdarg.h>
#include <stdio.h>

struct walk {
    int (*visit)(void *context, const struct model_tensor *tensor);
    void *context;
    int rc;
};

bool tensor_is_projection(enum tensor_use use)
{
    switch (use) {
    case USE_Q:
    case USE_K:
    case USE_V:
    case USE_O:
    case USE_GATE:
    case USE_UP:
    case USE_DOWN:
        return true;
    default:
        return false;
    }
}

__attribute__((format(printf, 3, 4))) static void show(struct walk *w, struct model_tensor t,
                                                       const char *name, ...)
{
    va_list args;

    if (w->rc < 0)
        return;
    va_start(args, name);
    vsnprintf(t.name, sizeof t.name, name, args);
    va_end(args);
    w->rc = w->visit(w->context, &t);
}

static struct model_tensor vector(enum tensor_use use, int layer, int cols)
{
    return (struct model_tensor){.use = use, .layer = layer, .dims = 1, .rows = 1, .cols = cols};
}

static struct model_tensor matrix(enum tensor_use use, int layer, int expert, int rows, int cols)
{
    return (struct model_tensor){
        .use = use, .layer = layer, .expert = expert, .dims = 2, .rows = rows, .cols = cols};
}

static void layer_walk(struct walk *w, const struct model *m, int l, int first, int count)
{
    int q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim, h = m->hidden;
    int width = m->expert_width;

    show(w, vector(USE_INPUT_NORM, l, h), "model.layers.%d.input_layernorm.weight", l);
    show(w, matrix(USE_Q, l, 0, q, h), "model.layers.%d.self_attn.q_proj.weight", l);
    show(w, matrix(USE_K, l, 0, kv, h), "model.layers.%d.self_attn.k_proj.weight", l);
    show(w, matrix(USE_V, l, 0, kv, h), "model.layers.%d.self_attn.v_proj.weight", l);
    show(w, vector(USE_Q_NORM, l, m->head_dim), "model.layers.%d.self_attn.q_norm.weight", l);
    show(w, vector(USE_K_NORM, l, m->head_dim), "model.layers.%d.self_attn.k_norm.weight", l);
    show(w, matrix(USE_O, l, 0, h, q), "model.layers.%d.self_attn.o_proj.weight", l);
    show(w, vector(USE_POST_NORM, l, h), "model.layers.%d.post_attention_layernorm.weight", l);
    show(w, matrix(USE_ROUTER, l, 0, m->experts, h), "model.layers.%d.mlp.gate.weight", l);
    for (int i = first; i < first + count; i++) {
        show(w, matrix(USE_GATE, l, i, width, h), "model.layers.%d.mlp.experts.%d.gate_proj.weight",
             l, i);
        show(w, matrix(USE_UP, l, i, width, h), "model.layers.%d.mlp.experts.%d.up_proj.weight", l,
             i);
        show(w, matrix(USE_DOWN, l, i, h, width), "model.layers.%d.mlp.experts.%d.down_proj.weight",
             l, i);
    }
}

int model_tensors_walk(const struct model *m, int expert_first, int expert_count,
                       int (*visit)(void *context, const struct model_tensor *tensor),
                       void *context)
{
    struct walk w = {.visit = visit, .context = context};

    show(&w, matrix(USE_EMBED, 0, 0, m->vocab, m->hidden), "model.embed_tokens.weight");
    for (int l = 0; l < m->layers && w.rc == 0; l++)
        layer_walk(&w, m, l, expert_first, expert_count);
    show(&w, vector(USE_FINAL_NORM, 0, m->hidden), "model.norm.weight");
    if (!m->tied_embeddings)
        show(&w, matrix(USE_HEAD, 0, 0, m->vocab, m->hidden), "lm_head.weight");
    return w.rc;
}
