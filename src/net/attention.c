// SPDX-License-Identifier: Apache-2.0
// First half of a layer: norm, q k v, attention, output projection.
#include "net/pass.h"

int attention_forward(struct pass *pass, int layer, struct attention *a, struct fl_error *e)
{
    const struct model *m = pass->model;
    const struct layer_weights *w = &pass->net->config.weights->layers[layer];
    const struct batch *b = &pass->batch;
    struct ops *ops = pass->ops;
    int tokens = b->tokens, wide = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim, rc;

    pass_lora(pass, layer, LORA_QKV | LORA_Q | LORA_K | LORA_V, &a->qkv_lora);
    pass_lora(pass, layer, LORA_PROJ, &a->proj_lora);
    if ((rc = pass_push_rows(pass, ROW_STREAM, tokens, m->hidden, &a->h, e)) < 0 ||
        (rc = pass_push_rows(pass, ROW_QUANTISED, tokens, m->hidden, &a->hq, e)) < 0 ||
        (rc = pass_push_rows(pass, ROW_STREAM, tokens, wide + 2 * kv, &a->qkv, e)) < 0 ||
        (rc = pass_push_rows(pass, ROW_STREAM, tokens, wide + kv, &a->qk, e)) < 0 ||
        (rc = pass_push_rows(pass, ROW_STREAM, tokens, wide, &a->out, e)) < 0 ||
        (rc = pass_push_rows(pass, ROW_QUANTISED, tokens, wide, &a->outq, e)) < 0 ||
        (rc = pass_push_rows(pass, ROW_STREAM, tokens, m->hidden, &a->delta, e)) < 0 ||
        (rc = pass_push_reals(pass, (size_t)m->heads * (size_t)tokens, &a->lse, e)) < 0)
        return rc;
    if ((rc = ops->norm_forward(ops, pass->inputs[layer], NULL, w->input_norm, tokens, m->hidden,
                                NULL, a->h, a->hq, e)) < 0 ||
        (rc = ops->linear_forward(ops, &w->qkv, &a->qkv_lora, b->keys, a->h, a->hq, tokens, a->qkv,
                                  e)) < 0 ||
        (rc = ops->rope_forward(ops, a->qkv, w->q_norm, w->k_norm, pass->rope, tokens, a->qk, e)) <
            0 ||
        (rc = ops->attention_forward(ops, a->qk, a->qkv, b->starts, b->samples, a->out, a->lse,
                                     e)) < 0 ||
        (rc = ops->quantise(ops, a->out, tokens, wide, a->outq, e)) < 0 ||
        (rc = ops->linear_forward(ops, &w->proj, &a->proj_lora, b->keys, a->out, a->outq, tokens,
                                  a->delta, e)) < 0)
        return rc;
    return 0;
}

int attention_backward(struct pass *pass, int layer, struct attention *a, void *dx,
                       struct fl_error *e)
{
    const struct model *m = pass->model;
    const struct layer_weights *w = &pass->net->config.weights->layers[layer];
    const struct batch *b = &pass->batch;
    struct ops *ops = pass->ops;
    int tokens = b->tokens, wide = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim, rc;
    void *dout, *dqkv, *dh;

    if ((rc = pass_push_rows(pass, ROW_STREAM, tokens, wide, &dout, e)) < 0 ||
        (rc = pass_push_rows(pass, ROW_STREAM, tokens, wide + 2 * kv, &dqkv, e)) < 0 ||
        (rc = pass_push_rows(pass, ROW_STREAM, tokens, m->hidden, &dh, e)) < 0)
        return rc;
    if ((rc = ops->linear_backward(ops, &w->proj, &a->proj_lora, b->keys, a->out, dx, tokens, dout,
                                   e)) < 0 ||
        (rc = ops->attention_backward(ops, a->qk, a->qkv, a->out, a->lse, dout, b->starts,
                                      b->samples, dqkv, e)) < 0 ||
        (rc = ops->rope_backward(ops, a->qkv, w->q_norm, w->k_norm, pass->rope, tokens, dqkv, e)) <
            0)
        return rc;
    // Below the first layer lies only the frozen embedding.
    if (layer == 0)
        return ops->linear_backward(ops, &w->qkv, &a->qkv_lora, b->keys, a->h, dqkv, tokens, NULL,
                                    e);
    if ((rc = ops->linear_backward(ops, &w->qkv, &a->qkv_lora, b->keys, a->h, dqkv, tokens, dh,
                                   e)) < 0)
        return rc;
    return ops->norm_backward(ops, pass->inputs[layer], w->input_norm, dh, tokens, m->hidden, dx,
                              e);
}
