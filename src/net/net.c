// SPDX-License-Identifier: Apache-2.0
// The network's passes: embedding, layers, head, and back through layers kept or computed again.
#include "net/pass.h"

#include "base/memory.h"

#include <stdlib.h>

int net_create(const struct net_config *config, struct net **out, struct fl_error *e)
{
    size_t layers = (size_t)config->model->layers, ep = (size_t)config->layout->ep;
    struct net *net = memory_zeroed(1, sizeof *net);

    (void)e;
    net->config = *config;
    net->counts = memory_zeroed(layers * dispatch_counts(config), sizeof *net->counts);
    net->send_bytes = memory_zeroed(ep, sizeof *net->send_bytes);
    net->recv_bytes = memory_zeroed(ep, sizeof *net->recv_bytes);
    net->inputs = memory_zeroed(layers + 1, sizeof *net->inputs);
    net->states = memory_zeroed(layers, sizeof *net->states);
    *out = net;
    return 0;
}

void net_destroy(struct net *net)
{
    if (!net)
        return;
    free(net->states);
    free(net->inputs);
    free(net->recv_bytes);
    free(net->send_bytes);
    free(net->counts);
    free(net);
}

void net_probe_set(struct net *net, const struct net_probe *probe)
{
    net->probe = *probe;
}

// What stays for the backward pass stays on the arena's stack, below all that comes later.
static int layer_forward(struct pass *pass, int layer, struct fl_error *e)
{
    struct layer_state *state = &pass->net->states[layer];
    struct arena *arena = pass->net->config.arena;
    struct arena_mark mark = arena_mark(arena);
    bool replay = pass->net->probe.routing;
    int tokens = pass->batch.tokens, rc;

    if ((rc = pass_see_rows(pass, "hidden", layer, pass->inputs[layer], tokens, pass->model->hidden,
                            e)) < 0 ||
        (rc = attention_forward(pass, layer, &state->attention, e)) < 0)
        goto out;
    if (pass_keeps_attention(pass))
        mark = arena_mark(arena);
    if ((rc = moe_forward(pass, layer, state->attention.delta, replay, &state->moe, e)) < 0)
        goto out;
    if (pass_keeps_experts(pass))
        mark = arena_mark(arena);
    if ((rc = moe_finish(pass, layer, &state->moe, pass->inputs[layer + 1], e)) < 0 ||
        (rc = pass_see_reals(pass, "router_logits", layer, state->moe.routing.logits, tokens,
                             pass->model->experts, e)) < 0 ||
        (rc = pass_see_routing(pass, layer, e)) < 0)
        goto out;
out:
    arena_release(arena, mark);
    return rc;
}

// Computes again what was not kept, up to the experts' activation: nothing behind it is needed for
// a gradient.
static int layer_backward(struct pass *pass, int layer, void *dx, struct fl_error *e)
{
    struct layer_state *state = &pass->net->states[layer];
    struct arena *arena = pass->net->config.arena;
    struct arena_mark mark = arena_mark(arena);
    int rc = 0;

    if (!pass_keeps_attention(pass))
        rc = attention_forward(pass, layer, &state->attention, e);
    if (rc == 0 && !pass_keeps_experts(pass))
        rc = moe_forward(pass, layer, state->attention.delta, true, &state->moe, e);
    if (rc < 0 || (rc = moe_backward(pass, layer, &state->moe, dx, e)) < 0 ||
        (rc = attention_backward(pass, layer, &state->attention, dx, e)) < 0)
        goto out;
out:
    arena_release(arena, mark);
    return rc;
}

// Loss of the final norm's rows, a chunk at a time; with dh, their gradient too.
static int head(struct pass *pass, const void *h, double loss_scale, void *dh, struct fl_error *e)
{
    const struct model *m = pass->model;
    const uint16_t *weight = pass->net->config.weights->head;
    struct ops *ops = pass->ops;
    struct arena *arena = pass->net->config.arena;
    struct arena_mark mark = arena_mark(arena);
    size_t row = ops->row_bytes(ops, ROW_STREAM, m->hidden);
    int tokens = pass->batch.tokens, rc;
    int most = tokens < NET_HEAD_CHUNK ? tokens : NET_HEAD_CHUNK;
    real *logits;

    if ((rc = pass_push_reals(pass, (size_t)most * (size_t)m->vocab, &logits, e)) < 0)
        return rc;
    for (int t = 0; t < tokens; t += NET_HEAD_CHUNK) {
        int n = tokens - t < NET_HEAD_CHUNK ? tokens - t : NET_HEAD_CHUNK;
        if ((rc = ops->head_forward(ops, (const char *)h + (size_t)t * row, weight, n, logits, e)) <
                0 ||
            (rc = pass_see_reals(pass, "logits", t, logits, n, m->vocab, e)) < 0 ||
            (rc = ops->cross_entropy(ops, logits, pass->batch.targets + t, n, dh != NULL,
                                     loss_scale, pass->loss_sum, e)) < 0)
            break;
        if (dh &&
            (rc = ops->head_backward(ops, logits, weight, n, (char *)dh + (size_t)t * row, e)) < 0)
            break;
    }
    arena_release(arena, mark);
    return rc;
}

static int forward(struct pass *pass, double loss_scale, void *dh, struct fl_error *e)
{
    const struct model *m = pass->model;
    const struct model_weights *w = pass->net->config.weights;
    struct ops *ops = pass->ops;
    struct arena *arena = pass->net->config.arena;
    struct arena_mark mark;
    int tokens = pass->batch.tokens, rc;
    void *h;

    if ((rc = ops->embed(ops, w->embed, pass->batch.ids, tokens, pass->inputs[0], e)) < 0)
        return rc;
    for (int layer = 0; layer < m->layers; layer++)
        if ((rc = layer_forward(pass, layer, e)) < 0)
            return rc;
    mark = arena_mark(arena); // what layers keep is below it
    if ((rc = pass_push_rows(pass, ROW_STREAM, tokens, m->hidden, &h, e)) < 0 ||
        (rc = ops->norm_forward(ops, pass->inputs[m->layers], NULL, w->final_norm, tokens,
                                m->hidden, NULL, h, NULL, e)) < 0 ||
        (rc = pass_see_rows(pass, "hidden", m->layers, h, tokens, m->hidden, e)) < 0 ||
        (rc = head(pass, h, loss_scale, dh, e)) < 0)
        goto out;
out:
    arena_release(arena, mark);
    return rc;
}

// dh: gradient of the final norm's rows.
static int backward(struct pass *pass, const void *dh, struct fl_error *e)
{
    const struct model *m = pass->model;
    struct ops *ops = pass->ops;
    int tokens = pass->batch.tokens, rc;
    void *dx;

    if ((rc = pass_push_rows(pass, ROW_STREAM, tokens, m->hidden, &dx, e)) < 0 ||
        (rc = ops->zero(ops, dx, (size_t)tokens * ops->row_bytes(ops, ROW_STREAM, m->hidden), e)) <
            0 ||
        (rc =
             ops->norm_backward(ops, pass->inputs[m->layers], pass->net->config.weights->final_norm,
                                dh, tokens, m->hidden, dx, e)) < 0)
        return rc;
    for (int layer = m->layers - 1; layer >= 0; layer--)
        if ((rc = layer_backward(pass, layer, dx, e)) < 0)
            return rc;
    return 0;
}

static int losses_read(struct pass *pass, struct net_loss *loss, struct fl_error *e)
{
    int layers = pass->model->layers, rc;
    double *aux = memory_zeroed((size_t)layers, sizeof *aux);

    loss->targets = pass->batch.target_count;
    loss->aux_loss = 0;
    if ((rc = pass->ops->download(pass->ops, &loss->loss_sum, pass->loss_sum, sizeof(double), e)) <
            0 ||
        (rc = pass->ops->download(pass->ops, aux, pass->aux, (size_t)layers * sizeof *aux, e)) < 0)
        goto out;
    for (int i = 0; i < layers; i++)
        loss->aux_loss += aux[i] / layers;
out:
    free(aux);
    return rc;
}

static struct pass pass_of(struct net *net)
{
    return (struct pass){
        .net = net,
        .ops = net->config.ops,
        .model = net->config.model,
        .inputs = net->inputs,
    };
}

int net_train(struct net *net, const struct batch *batch, uint64_t step, double loss_scale,
              double aux_scale, struct net_loss *loss, struct fl_error *e)
{
    struct arena_mark mark = arena_mark(net->config.arena);
    struct pass pass = pass_of(net);
    void *dh;
    int rc;

    pass.training = true;
    pass.step = step;
    pass.aux_scale = aux_scale * net->config.spec->aux_loss_coeff;
    if ((rc = pass_open(&pass, batch, e)) < 0 ||
        (rc = pass_push_rows(&pass, ROW_STREAM, batch->tokens, pass.model->hidden, &dh, e)) < 0 ||
        (rc = forward(&pass, loss_scale, dh, e)) < 0 || (rc = backward(&pass, dh, e)) < 0 ||
        (rc = losses_read(&pass, loss, e)) < 0)
        goto out;
out:
    arena_release(net->config.arena, mark);
    return rc;
}

int net_evaluate(struct net *net, const struct batch *batch, struct net_loss *loss,
                 struct fl_error *e)
{
    struct arena_mark mark = arena_mark(net->config.arena);
    struct pass pass = pass_of(net);
    int rc;

    if ((rc = pass_open(&pass, batch, e)) < 0 || (rc = forward(&pass, 0, NULL, e)) < 0 ||
        (rc = losses_read(&pass, loss, e)) < 0)
        goto out;
out:
    arena_release(net->config.arena, mark);
    return rc;
}
