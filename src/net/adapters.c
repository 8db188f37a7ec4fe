// SPDX-License-Identifier: Apache-2.0
// The LoRA parameters of a rank: their places, allocation and start.
#include "net/adapters.h"

#include "base/memory.h"
#include "base/philox.h"
#include "ops/ops.h"
#include "job/spec.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

struct shape {
    enum lora_target target;
    int in, out;
};

#define ATTENTION_TARGETS 5
#define EXPERT_TARGETS    2

static void attention_shapes(const struct model *m, struct shape shapes[ATTENTION_TARGETS])
{
    int q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;

    shapes[0] = (struct shape){LORA_QKV, m->hidden, q + 2 * kv};
    shapes[1] = (struct shape){LORA_Q, m->hidden, q};
    shapes[2] = (struct shape){LORA_K, m->hidden, kv};
    shapes[3] = (struct shape){LORA_V, m->hidden, kv};
    shapes[4] = (struct shape){LORA_PROJ, q, m->hidden};
}

static void expert_shapes(const struct model *m, struct shape shapes[EXPERT_TARGETS])
{
    shapes[0] = (struct shape){LORA_FC1, m->hidden, 2 * m->expert_width};
    shapes[1] = (struct shape){LORA_FC2, m->expert_width, m->hidden};
}

// Appends the adapters of one module: all their A, then all their B, from *top on.
static void module_append(struct adapters *adapters, const struct shape *shape, int layer, int rank,
                          int expert_first, int experts, size_t *top)
{
    size_t a_size = (size_t)rank * (size_t)shape->in, b_size = (size_t)rank * (size_t)shape->out;
    size_t count = (size_t)(experts ? experts : 1);

    for (size_t i = 0; i < count; i++)
        adapters->list[adapters->count++] = (struct adapter){
            .target = shape->target,
            .layer = layer,
            .expert = experts ? expert_first + (int)i : -1,
            .rank = rank,
            .in = shape->in,
            .out = shape->out,
            .a = *top + i * a_size,
            .b = *top + count * a_size + i * b_size,
        };
    *top += count * (a_size + b_size);
}

int adapters_create(const struct spec *spec, const struct model *model, const struct layout *layout,
                    struct arena *arena, struct adapters **out, struct fl_error *e)
{
    size_t most = (size_t)model->layers *
                  (size_t)(ATTENTION_TARGETS + EXPERT_TARGETS * layout->experts_local);
    unsigned unshared = LORA_Q | LORA_K | LORA_V;
    struct shape attention[ATTENTION_TARGETS], experts[EXPERT_TARGETS];
    struct adapters *adapters;
    size_t top = 0, bytes;
    void *params, *grads;
    int rc;

    *out = NULL;
    if (spec->lora_rank < 1)
        return error_set(e, -EINVAL, "%s: lora_rank %d: must be at least 1", spec->source,
                         spec->lora_rank);
    if ((spec->lora_targets & LORA_QKV) && (spec->lora_targets & unshared))
        return error_set(e, -EINVAL,
                         "%s: target_modules: linear_qkv and its q, k or v alone: choose one form",
                         spec->source);
    adapters = memory_zeroed(1, sizeof *adapters);
    adapters->list = memory_zeroed(most, sizeof *adapters->list);
    adapters->scale = spec->lora_alpha / spec->lora_rank;
    adapters->dropout = spec->lora_dropout;
    attention_shapes(model, attention);
    expert_shapes(model, experts);
    for (int layer = 0; layer < model->layers; layer++)
        for (int i = 0; i < ATTENTION_TARGETS; i++)
            if (spec->lora_targets & attention[i].target)
                module_append(adapters, &attention[i], layer, spec->lora_rank, 0, 0, &top);
    adapters->replicated = top;
    for (int layer = 0; layer < model->layers; layer++)
        for (int i = 0; i < EXPERT_TARGETS; i++)
            if (spec->lora_targets & experts[i].target)
                module_append(adapters, &experts[i], layer, spec->lora_rank, layout->expert_first,
                              layout->experts_local, &top);
    adapters->expert = top - adapters->replicated;
    bytes = top * sizeof(real);
    if ((rc = arena_alloc(arena, MEMORY_ADAPTERS, bytes, &params, e)) < 0 ||
        (rc = arena_alloc(arena, MEMORY_GRADIENTS, bytes, &grads, e)) < 0) {
        adapters_destroy(adapters);
        return rc;
    }
    adapters->params = params;
    adapters->grads = grads;
    *out = adapters;
    return 0;
}

void adapters_destroy(struct adapters *adapters)
{
    if (!adapters)
        return;
    free(adapters->list);
    free(adapters);
}

void adapters_init(struct adapters *adapters, uint64_t seed)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};

    for (const struct adapter *a = adapters->list; a < adapters->list + adapters->count; a++) {
        size_t count = (size_t)a->rank * (size_t)a->in;
        double bound = 1 / sqrt((double)a->in);
        for (size_t i = 0; i < count; i += 4) {
            // Layer and target share a word: neither comes near 16 bits.
            uint32_t counter[4] = {(uint32_t)(i / 4), (uint32_t)((i / 4) >> 32),
                                   (uint32_t)a->layer << 16 | (uint32_t)a->target,
                                   (uint32_t)a->expert};
            uint32_t random[4];
            philox4x32(counter, key, random);
            for (size_t j = i; j < i + 4 && j < count; j++)
                adapters->params[a->a + j] =
                    (real)((2 * (double)philox_uniform(random[j - i]) - 1) * bound);
        }
        for (size_t i = 0; i < (size_t)a->rank * (size_t)a->out; i++)
            adapters->params[a->b + i] = 0;
    }
}

int adapters_host_copy(const struct adapters *adapters, struct ops *ops, struct adapters *host,
                       struct fl_error *e)
{
    size_t count = adapters->replicated + adapters->expert;
    int rc;

    *host = *adapters;
    host->grads = NULL;
    if (ops->unified)
        return 0;
    host->params = memory_zeroed(count, sizeof *host->params);
    rc = ops->download(ops, host->params, adapters->params, count * sizeof *host->params, e);
    if (rc < 0)
        adapters_host_clear(host, adapters);
    return rc;
}

int adapters_host_return(const struct adapters *host, struct ops *ops, struct adapters *adapters,
                         struct fl_error *e)
{
    size_t count = adapters->replicated + adapters->expert;

    if (ops->unified)
        return 0;
    return ops->upload(ops, adapters->params, host->params, count * sizeof *host->params, e);
}

void adapters_host_clear(struct adapters *host, const struct adapters *adapters)
{
    if (host->params != adapters->params)
        free(host->params);
    host->params = NULL;
}

struct adapter *adapters_find(struct adapters *adapters, int layer, enum lora_target target,
                              int expert)
{
    for (struct adapter *a = adapters->list; a < adapters->list + adapters->count; a++)
        if (a->layer == layer && a->target == target && a->expert == expert)
            return a;
    return NULL;
}
