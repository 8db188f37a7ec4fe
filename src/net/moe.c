// SPDX-License-Identifier: Apache-2.0
// Second half of a layer: norm, router, experts on their ranks, combination.
#include "net/pass.h"

#include <math.h>

// Rows of one expert from this rank and micro-batch; 0: no limit.
static int64_t capacity(const struct pass *pass)
{
    double factor = pass->net->config.spec->capacity_factor;

    if (!pass->training || factor <= 0)
        return 0;
    return (int64_t)ceil(pass->batch.tokens * pass->model->top_k * factor / pass->model->experts);
}

static int routing_push(struct pass *pass, int layer, struct routing *r, struct fl_error *e)
{
    size_t tokens = (size_t)pass->batch.tokens, experts = (size_t)pass->model->experts;
    size_t slots = tokens * (size_t)pass->model->top_k;
    int rc;

    r->ids = pass->ids + (size_t)layer * slots;
    r->kept = pass->kept + (size_t)layer * slots;
    r->aux = pass->aux + layer;
    if ((rc = pass_push_reals(pass, tokens * experts, &r->logits, e)) < 0 ||
        (rc = pass_push_reals(pass, tokens * experts, &r->probs, e)) < 0 ||
        (rc = pass_push_reals(pass, slots, &r->weights, e)) < 0)
        return rc;
    return 0;
}

int moe_forward(struct pass *pass, int layer, const void *delta, bool replay, struct moe *m,
                struct fl_error *e)
{
    const struct layer_weights *w = &pass->net->config.weights->layers[layer];
    struct ops *ops = pass->ops;
    int tokens = pass->batch.tokens, hidden = pass->model->hidden;
    int width = pass->model->expert_width, rows, rc;

    pass_lora(pass, layer, LORA_FC1, &m->fc1_lora);
    pass_lora(pass, layer, LORA_FC2, &m->fc2_lora);
    if ((rc = pass_push_rows(pass, ROW_STREAM, tokens, hidden, &m->x, e)) < 0 ||
        (rc = pass_push_rows(pass, ROW_STREAM, tokens, hidden, &m->h, e)) < 0 ||
        (rc = pass_push_rows(pass, ROW_QUANTISED, tokens, hidden, &m->hq, e)) < 0 ||
        (rc = routing_push(pass, layer, &m->routing, e)) < 0)
        return rc;
    if ((rc = ops->norm_forward(ops, pass->inputs[layer], delta, w->post_norm, tokens, hidden, m->x,
                                m->h, m->hq, e)) < 0 ||
        (rc = ops->router_forward(ops, m->h, w->router, tokens, capacity(pass), replay, &m->routing,
                                  e)) < 0 ||
        (rc = dispatch_open(pass, layer, &m->routing, &m->dispatch, e)) < 0)
        return rc;
    rows = m->dispatch.group.rows;
    if ((rc = pass_push_rows(pass, ROW_QUANTISED, rows, hidden, &m->rows, e)) < 0 ||
        (rc = pass_push_rows(pass, ROW_STREAM, rows, 2 * width, &m->gate_up, e)) < 0 ||
        (rc = pass_push_rows(pass, ROW_STREAM, rows, width, &m->act, e)) < 0 ||
        (rc = pass_push_rows(pass, ROW_QUANTISED, rows, width, &m->actq, e)) < 0)
        return rc;
    if ((rc = dispatch_send(pass, &m->dispatch, m->hq, pass->model->top_k,
                            ops->row_bytes(ops, ROW_QUANTISED, hidden), m->rows, e)) < 0 ||
        (rc = ops->fc1_forward(ops, &w->fc1, &m->fc1_lora, &m->dispatch.group, m->rows, m->gate_up,
                               m->act, m->actq, e)) < 0)
        return rc;
    return 0;
}

int moe_finish(struct pass *pass, int layer, struct moe *m, void *out, struct fl_error *e)
{
    const struct layer_weights *w = &pass->net->config.weights->layers[layer];
    struct ops *ops = pass->ops;
    int hidden = pass->model->hidden, rc;
    void *y, *returned;

    if ((rc = pass_push_rows(pass, ROW_STREAM, m->dispatch.group.rows, hidden, &y, e)) < 0 ||
        (rc = pass_push_rows(pass, ROW_STREAM, m->dispatch.rows_sent, hidden, &returned, e)) < 0)
        return rc;
    if ((rc = ops->fc2_forward(ops, &w->fc2, &m->fc2_lora, &m->dispatch.group, m->act, m->actq, y,
                               e)) < 0 ||
        (rc = dispatch_return(pass, &m->dispatch, y, ops->row_bytes(ops, ROW_STREAM, hidden),
                              returned, e)) < 0 ||
        (rc = ops->combine(ops, returned, m->dispatch.position, m->routing.weights, m->x,
                           pass->batch.tokens, out, e)) < 0)
        return rc;
    return 0;
}

// The experts' part: rows' gradients and routing weights' gradients, back in the order sent.
static int experts_backward(struct pass *pass, int layer, struct moe *m, const void *dx,
                            void *returned, real *returned_weights, struct fl_error *e)
{
    const struct layer_weights *w = &pass->net->config.weights->layers[layer];
    struct ops *ops = pass->ops;
    const struct dispatch *d = &m->dispatch;
    int tokens = pass->batch.tokens, hidden = pass->model->hidden, rows = d->group.rows, rc;
    size_t stream_bytes = ops->row_bytes(ops, ROW_STREAM, hidden);
    size_t quantised_bytes = ops->row_bytes(ops, ROW_QUANTISED, hidden);
    void *dxq, *dy, *dact, *drows;
    real *weights, *dweights;

    if ((rc = pass_push_rows(pass, ROW_QUANTISED, tokens, hidden, &dxq, e)) < 0 ||
        (rc = pass_push_rows(pass, ROW_QUANTISED, rows, hidden, &dy, e)) < 0 ||
        (rc = pass_push_rows(pass, ROW_STREAM, rows, pass->model->expert_width, &dact, e)) < 0 ||
        (rc = pass_push_rows(pass, ROW_STREAM, rows, hidden, &drows, e)) < 0 ||
        (rc = pass_push_reals(pass, (size_t)rows, &weights, e)) < 0 ||
        (rc = pass_push_reals(pass, (size_t)rows, &dweights, e)) < 0)
        return rc;
    if ((rc = ops->quantise(ops, dx, tokens, hidden, dxq, e)) < 0 ||
        (rc = dispatch_send(pass, d, dxq, pass->model->top_k, quantised_bytes, dy, e)) < 0 ||
        (rc = dispatch_send(pass, d, m->routing.weights, 1, sizeof(real), weights, e)) < 0 ||
        (rc = ops->fc2_backward(ops, &w->fc2, &m->fc2_lora, &d->group, m->act, dy, weights, dact,
                                dweights, e)) < 0 ||
        (rc = ops->fc1_backward(ops, &w->fc1, &m->fc1_lora, &d->group, m->rows, m->gate_up, dact,
                                drows, e)) < 0 ||
        (rc = dispatch_return(pass, d, drows, stream_bytes, returned, e)) < 0 ||
        (rc = dispatch_return(pass, d, dweights, sizeof(real), returned_weights, e)) < 0)
        return rc;
    return 0;
}

int moe_backward(struct pass *pass, int layer, struct moe *m, void *dx, struct fl_error *e)
{
    const struct layer_weights *w = &pass->net->config.weights->layers[layer];
    struct ops *ops = pass->ops;
    const struct dispatch *d = &m->dispatch;
    int tokens = pass->batch.tokens, hidden = pass->model->hidden, rc;
    int slots = tokens * pass->model->top_k;
    struct arena_mark mark = arena_mark(pass->net->config.arena);
    void *returned, *dh;
    real *returned_weights, *dweights;

    if ((rc = pass_push_rows(pass, ROW_STREAM, tokens, hidden, &dh, e)) < 0 ||
        (rc = pass_push_rows(pass, ROW_STREAM, d->rows_sent, hidden, &returned, e)) < 0 ||
        (rc = pass_push_reals(pass, (size_t)d->rows_sent, &returned_weights, e)) < 0 ||
        (rc = pass_push_reals(pass, (size_t)slots, &dweights, e)) < 0 ||
        (rc = experts_backward(pass, layer, m, dx, returned, returned_weights, e)) < 0)
        goto out;
    if ((rc = ops->combine(ops, returned, d->position, NULL, NULL, tokens, dh, e)) < 0 ||
        (rc = ops->rows_gather(ops, returned_weights, d->position, 1, slots, sizeof(real), dweights,
                               e)) < 0 ||
        (rc = ops->router_backward(ops, w->router, tokens, &m->routing, dweights, pass->aux_scale,
                                   dh, e)) < 0 ||
        (rc = ops->norm_backward(ops, m->x, w->post_norm, dh, tokens, hidden, dx, e)) < 0)
        goto out;
out:
    arena_release(pass->net->config.arena, mark);
    return rc;
}
