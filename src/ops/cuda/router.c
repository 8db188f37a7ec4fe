// SPDX-License-Identifier: Apache-2.0
// The router on the device.
#include "ops/cuda/cuda.h"
#include "ops/cuda/routing.h"
#include "router.h"

#include <errno.h>

int cuda_router_forward(struct ops *ops, const void *h, const float *weight, int tokens,
                        int64_t capacity, bool replay, struct routing *routing, struct fl_error *e)
{
    struct cuda *cuda = cuda_of(ops);
    const struct model *m = ops->model;
    struct arena_mark mark = arena_mark(cuda->arena);
    struct router router = {.h = h,
                            .weight = weight,
                            .ids = routing->ids,
                            .kept = routing->kept,
                            .logits = routing->logits,
                            .probs = routing->probs,
                            .weights = routing->weights,
                            .h_pitch = stream_row_bytes(m->hidden) / 2,
                            .tokens = tokens,
                            .hidden = m->hidden,
                            .experts = m->experts,
                            .top_k = m->top_k,
                            .normalise = m->norm_topk_prob,
                            .replay = replay};
    void *push[CUDA_SCRATCHES];
    int rc;

    if (m->experts > ROUTER_EXPERTS_MOST || m->top_k > ROUTER_TOP_K_MOST)
        return error_set(e, -EINVAL,
                         "router: %d experts, %d a token: the GPU's router has room for %d and "
                         "%d; set backend: cpu",
                         m->experts, m->top_k, ROUTER_EXPERTS_MOST, ROUTER_TOP_K_MOST);
    rc = cuda_push_all(cuda, cuda_router_forward_scratch(m, tokens), push, e);
    if (rc < 0)
        goto out;
    router.mass = push[0];
    router.slots = push[1];
    if ((rc = CUDA_CHECK(sm90_router_forward(&router, cuda->stream), e)) < 0 ||
        (rc = CUDA_CHECK(router_load_balance(router.mass, router.slots, tokens, m->experts,
                                             m->top_k, routing->aux, cuda->stream),
                         e)) < 0)
        goto out;
    if (!replay && capacity > 0)
        rc = CUDA_CHECK(router_capacity(routing->ids, routing->weights, tokens * m->top_k,
                                        m->experts, capacity, routing->kept, cuda->stream),
                        e);
out:
    arena_release(cuda->arena, mark);
    return rc;
}

int cuda_router_backward(struct ops *ops, const float *weight, int tokens,
                         const struct routing *routing, const real *dweights, double aux_scale,
                         void *dh, struct fl_error *e)
{
    struct cuda *cuda = cuda_of(ops);
    const struct model *m = ops->model;
    struct arena_mark mark = arena_mark(cuda->arena);
    struct router_gradient gradient = {.weight = weight,
                                       .probs = routing->probs,
                                       .ids = routing->ids,
                                       .dweights = dweights,
                                       .dh = dh,
                                       .dh_pitch = stream_row_bytes(m->hidden) / 2,
                                       .tokens = tokens,
                                       .hidden = m->hidden,
                                       .experts = m->experts,
                                       .top_k = m->top_k,
                                       .normalise = m->norm_topk_prob};
    void *push[CUDA_SCRATCHES];
    int rc;

    if (tokens == 0)
        return 0;
    rc = cuda_push_all(cuda, cuda_router_backward_scratch(m, tokens), push, e);
    if (rc < 0)
        goto out;
    gradient.dlogits_high = push[0];
    gradient.dlogits_low = push[1];
    if (aux_scale != 0) {
        gradient.counts = push[2];
        gradient.load = aux_scale * m->experts / ((double)m->top_k * tokens * tokens);
        rc = CUDA_CHECK(
            router_count(routing->ids, tokens * m->top_k, m->experts, push[2], cuda->stream), e);
    }
    if (rc == 0)
        rc = CUDA_CHECK(router_backward(&gradient, cuda->stream), e);
out:
    arena_release(cuda->arena, mark);
    return rc;
}
