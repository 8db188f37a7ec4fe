// SPDX-License-Identifier: Apache-2.0
// The router: probabilities, the chosen experts and their weights, capacity, load balancing.
#include "ops/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void probabilities(const real *logits, int experts, real *probs)
{
    real top = logits[0], sum = 0;

    for (int i = 1; i < experts; i++)
        top = logits[i] > top ? logits[i] : top;
    for (int i = 0; i < experts; i++) {
        probs[i] = real_exp(logits[i] - top);
        sum += probs[i];
    }
    for (int i = 0; i < experts; i++)
        probs[i] /= sum;
}

static void choose(const real *probs, int experts, int top_k, int32_t *ids)
{
    for (int k = 0; k < top_k; k++) {
        int best = -1;
        for (int i = 0; i < experts; i++) {
            bool taken = false;
            for (int j = 0; j < k; j++)
                taken |= ids[j] == i;
            // Written so that a NaN still gives top_k different experts; the loss will show it.
            if (!taken && (best < 0 || probs[i] > probs[best]))
                best = i;
        }
        ids[k] = best;
    }
}

static void weigh(const struct model *m, const real *probs, const int32_t *ids, real *weights)
{
    real sum = 0;

    for (int k = 0; k < m->top_k; k++)
        sum += probs[ids[k]];
    for (int k = 0; k < m->top_k; k++)
        weights[k] = probs[ids[k]] / (m->norm_topk_prob ? sum : 1);
}

// Orders an expert's slots: greatest weight first, ties to the earlier slot.
static int slot_compare(const void *left, const void *right, void *context)
{
    const real *weights = context;
    int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;

    if (weights[a] != weights[b])
        return weights[a] > weights[b] ? -1 : 1;
    return a < b ? -1 : 1;
}

// mine: scratch [slots], with a capacity.
static void drop(const struct model *m, int tokens, int64_t capacity, struct routing *routing,
                 int32_t *mine)
{
    int slots = tokens * m->top_k;

    memset(routing->kept, 1, (size_t)slots);
    for (int i = 0; i < m->experts && capacity > 0; i++) {
        int64_t count = 0;
        for (int32_t s = 0; s < slots; s++)
            if (routing->ids[s] == i)
                mine[count++] = s;
        if (count > capacity)
            qsort_r(mine, (size_t)count, sizeof *mine, slot_compare, routing->weights);
        for (int64_t s = capacity; s < count; s++)
            routing->kept[mine[s]] = 0;
    }
}

static int64_t slots_of(const struct routing *routing, int slots, int expert)
{
    int64_t count = 0;

    for (int s = 0; s < slots; s++)
        count += routing->ids[s] == expert;
    return count;
}

static double load_balance(const struct model *m, int tokens, const struct routing *routing)
{
    double sum = 0;

    for (int i = 0; i < m->experts && tokens > 0; i++) {
        double mass = 0;
        for (int t = 0; t < tokens; t++)
            mass += (double)routing->probs[(size_t)t * (size_t)m->experts + (size_t)i];
        sum += mass * (double)slots_of(routing, tokens * m->top_k, i);
    }
    return tokens ? sum * m->experts / ((double)m->top_k * tokens * tokens) : 0;
}

// weight as reals [E, H].
static void weight_widen(const struct model *m, const float *weight, real *wide)
{
    size_t count = (size_t)m->experts * (size_t)m->hidden;

    for (size_t i = 0; i < count; i++)
        wide[i] = (real)weight[i];
}

int cpu_router_forward(struct ops *ops, const void *h, const float *weight, int tokens,
                       int64_t capacity, bool replay, struct routing *routing, struct fl_error *e)
{
    struct cpu *cpu = cpu_of(ops);
    const struct model *m = ops->model;
    struct arena_mark mark = arena_mark(cpu->arena);
    struct cpu_scratch scratch = cpu_router_forward_scratch(m, tokens, capacity, replay);
    void *push[CPU_SCRATCHES] = {NULL}; // the widened weight; with a capacity, slots
    real *wide;
    int rc = cpu_push(cpu, &scratch, push, e);

    if (rc < 0)
        goto out;
    wide = push[0];
    weight_widen(m, weight, wide);
    gemm_nt(tokens, m->experts, m->hidden, 1, h, m->hidden, wide, m->hidden, 0, routing->logits,
            m->experts);
#pragma omp parallel for schedule(static)
    for (int t = 0; t < tokens; t++) {
        size_t row = (size_t)t * (size_t)m->experts, slot = (size_t)t * (size_t)m->top_k;
        probabilities(routing->logits + row, m->experts, routing->probs + row);
        if (!replay)
            choose(routing->probs + row, m->experts, m->top_k, routing->ids + slot);
        weigh(m, routing->probs + row, routing->ids + slot, routing->weights + slot);
    }
    if (!replay)
        drop(m, tokens, capacity, routing, push[1]);
    *routing->aux = load_balance(m, tokens, routing);
out:
    arena_release(cpu->arena, mark);
    return rc;
}

// Gradient of one token's probabilities: through the weights of its slots, and through the loads.
static void probabilities_backward(const struct model *m, const real *probs, const int32_t *ids,
                                   const real *dweights, const real *loads, real *dlogits)
{
    real sum = 0, dot = 0;

    memcpy(dlogits, loads, (size_t)m->experts * sizeof(real));
    for (int k = 0; k < m->top_k; k++) {
        sum += probs[ids[k]];
        dot += dweights[k] * probs[ids[k]];
    }
    for (int k = 0; k < m->top_k; k++)
        dlogits[ids[k]] += m->norm_topk_prob ? dweights[k] / sum - dot / (sum * sum) : dweights[k];
    dot = 0;
    for (int i = 0; i < m->experts; i++)
        dot += probs[i] * dlogits[i];
    for (int i = 0; i < m->experts; i++)
        dlogits[i] = probs[i] * (dlogits[i] - dot);
}

int cpu_router_backward(struct ops *ops, const float *weight, int tokens,
                        const struct routing *routing, const real *dweights, double aux_scale,
                        void *dh, struct fl_error *e)
{
    struct cpu *cpu = cpu_of(ops);
    const struct model *m = ops->model;
    struct arena_mark mark = arena_mark(cpu->arena);
    size_t experts = (size_t)m->experts, top_k = (size_t)m->top_k;
    double load = tokens ? aux_scale * m->experts / ((double)m->top_k * tokens * tokens) : 0;
    struct cpu_scratch scratch = cpu_router_backward_scratch(m, tokens);
    void *push[CPU_SCRATCHES] = {NULL};
    real *wide, *dlogits, *loads;
    int rc = cpu_push(cpu, &scratch, push, e);

    if (rc < 0)
        goto out;
    wide = push[0];
    dlogits = push[1];
    loads = push[2];
    weight_widen(m, weight, wide);
    for (int i = 0; i < m->experts; i++)
        loads[i] = (real)(load * (double)slots_of(routing, tokens * m->top_k, i));
#pragma omp parallel for schedule(static)
    for (int t = 0; t < tokens; t++)
        probabilities_backward(m, routing->probs + (size_t)t * experts,
                               routing->ids + (size_t)t * top_k, dweights + (size_t)t * top_k,
                               loads, dlogits + (size_t)t * experts);
    gemm_nn(tokens, m->hidden, m->experts, 1, dlogits, m->experts, wide, m->hidden, 1, dh,
            m->hidden);
    round_rows(cpu->fp8, dh, (size_t)tokens * (size_t)m->hidden);
out:
    arena_release(cpu->arena, mark);
    return rc;
}
