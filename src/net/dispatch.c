// SPDX-License-Identifier: Apache-2.0
// Rows on their way to the ranks of their experts and back.
#include "net/pass.h"

// Fills send_bytes and recv_bytes for rows of row_bytes.
static void exchange_sizes(struct net *net, const struct dispatch *d, size_t row_bytes)
{
    int local = net->config.layout->experts_local;

    for (int r = 0; r < net->config.layout->ep; r++) {
        int64_t send = 0, recv = 0;
        for (int i = r * local; i < (r + 1) * local; i++) {
            send += d->sent[i];
            recv += d->received[i];
        }
        net->send_bytes[r] = (size_t)send * row_bytes;
        net->recv_bytes[r] = (size_t)recv * row_bytes;
    }
}

size_t dispatch_counts(const struct net_config *config)
{
    return 2 * (size_t)config->model->experts + (size_t)config->layout->experts_local;
}

int dispatch_open(struct pass *pass, int layer, const struct routing *routing, struct dispatch *d,
                  struct fl_error *e)
{
    struct net *net = pass->net;
    const struct layout *layout = net->config.layout;
    size_t slots = (size_t)pass->batch.tokens * (size_t)pass->model->top_k;
    size_t local = (size_t)layout->experts_local;
    int64_t sent = 0, arrived = 0;
    void *order, *position, *index, *keys;
    int rc;

    if ((rc = pass_push(pass, MEMORY_ACTIVATIONS, slots * sizeof(int32_t), &order, e)) < 0 ||
        (rc = pass_push(pass, MEMORY_ACTIVATIONS, slots * sizeof(int32_t), &position, e)) < 0)
        return rc;
    d->order = order;
    d->position = position;
    d->sent = net->counts + (size_t)layer * dispatch_counts(&net->config);
    d->received = d->sent + pass->model->experts;
    d->grouped = d->received + pass->model->experts;
    if ((rc = pass->ops->dispatch_plan(pass->ops, routing, pass->batch.tokens, d->order,
                                       d->position, d->sent, e)) < 0 ||
        (rc = comm_all_to_all(net->config.ep_comm, d->sent, d->received, local * sizeof *d->sent,
                              e)) < 0)
        return rc;
    for (int i = 0; i < layout->experts_local; i++) {
        d->grouped[i] = 0;
        for (int r = 0; r < layout->ep; r++)
            d->grouped[i] += d->received[(size_t)r * local + (size_t)i];
        arrived += d->grouped[i];
    }
    for (int i = 0; i < pass->model->experts; i++)
        sent += d->sent[i];
    d->rows_sent = (int)sent;
    d->group = (struct group){
        .experts = layout->experts_local, .rows = (int)arrived, .counts = d->grouped};
    if ((rc = pass_push(pass, MEMORY_ACTIVATIONS, (size_t)arrived * sizeof(int32_t), &index, e)) <
            0 ||
        (rc = pass_push(pass, MEMORY_ACTIVATIONS, (size_t)arrived * sizeof(uint64_t), &keys, e)) <
            0 ||
        (rc = pass->ops->regroup_plan(pass->ops, d->received, layout->ep, layout->experts_local,
                                      index, e)) < 0)
        return rc;
    d->index = index;
    d->group.keys = keys;
    return dispatch_send(pass, d, pass->batch.keys, pass->model->top_k, sizeof(uint64_t), keys, e);
}

int dispatch_send(struct pass *pass, const struct dispatch *d, const void *from, int divide,
                  size_t row_bytes, void *grouped, struct fl_error *e)
{
    struct net *net = pass->net;
    struct ops *ops = pass->ops;
    struct arena *arena = net->config.arena;
    struct arena_mark mark = arena_mark(arena);
    void *out, *in;
    int rc;

    if (net->config.layout->ep == 1) // sent in the order of experts already
        return ops->rows_gather(ops, from, d->order, divide, d->rows_sent, row_bytes, grouped, e);
    exchange_sizes(net, d, row_bytes);
    if ((rc = pass_push(pass, MEMORY_COMMUNICATION, (size_t)d->rows_sent * row_bytes, &out, e)) <
            0 ||
        (rc = pass_push(pass, MEMORY_COMMUNICATION, (size_t)d->group.rows * row_bytes, &in, e)) <
            0 ||
        (rc = ops->rows_gather(ops, from, d->order, divide, d->rows_sent, row_bytes, out, e)) < 0 ||
        (rc = comm_all_to_all_v(net->config.ep_comm, out, net->send_bytes, in, net->recv_bytes,
                                e)) < 0 ||
        (rc = ops->rows_gather(ops, in, d->index, 1, d->group.rows, row_bytes, grouped, e)) < 0)
        goto out;
out:
    arena_release(arena, mark);
    return rc;
}

int dispatch_return(struct pass *pass, const struct dispatch *d, const void *grouped,
                    size_t row_bytes, void *rows, struct fl_error *e)
{
    struct net *net = pass->net;
    struct ops *ops = pass->ops;
    struct arena *arena = net->config.arena;
    struct arena_mark mark = arena_mark(arena);
    void *out;
    int rc;

    if (net->config.layout->ep == 1)
        return ops->rows_scatter(ops, grouped, d->index, d->rows_sent, row_bytes, rows, e);
    exchange_sizes(net, d, row_bytes);
    if ((rc = pass_push(pass, MEMORY_COMMUNICATION, (size_t)d->group.rows * row_bytes, &out, e)) <
            0 ||
        (rc = ops->rows_scatter(ops, grouped, d->index, d->group.rows, row_bytes, out, e)) < 0 ||
        (rc = comm_all_to_all_v(net->config.ep_comm, out, net->recv_bytes, rows, net->send_bytes,
                                e)) < 0)
        goto out;
out:
    arena_release(arena, mark);
    return rc;
}
