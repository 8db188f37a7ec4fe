// SPDX-License-Identifier: Apache-2.0
// One pass over a micro-batch: its buffers, what the probe sees, its adapters.
#include "net/pass.h"

#include "base/memory.h"
#include "base/philox.h"

#include <stdlib.h>

int pass_push(struct pass *pass, enum memory_category category, size_t bytes, void **out,
              struct fl_error *e)
{
    return arena_push(pass->net->config.arena, category, bytes, out, e);
}

int pass_push_rows(struct pass *pass, enum ops_row kind, int rows, int cols, void **out,
                   struct fl_error *e)
{
    return pass_push(pass, MEMORY_ACTIVATIONS,
                     (size_t)rows * pass->ops->row_bytes(pass->ops, kind, cols), out, e);
}

int pass_push_reals(struct pass *pass, size_t count, real **out, struct fl_error *e)
{
    void *p;
    int rc = pass_push(pass, MEMORY_ACTIVATIONS, count * sizeof(real), &p, e);

    *out = p;
    return rc;
}

static int push_copy(struct pass *pass, const void *host, size_t bytes, void **out,
                     struct fl_error *e)
{
    int rc = pass_push(pass, MEMORY_ACTIVATIONS, bytes, out, e);

    return rc < 0 ? rc : pass->ops->upload(pass->ops, *out, host, bytes, e);
}

static int batch_upload(struct pass *pass, const struct batch *host, struct fl_error *e)
{
    size_t tokens = (size_t)host->tokens;
    void *ids, *targets, *positions, *keys;
    int rc;

    if ((rc = push_copy(pass, host->ids, tokens * sizeof *host->ids, &ids, e)) < 0 ||
        (rc = push_copy(pass, host->targets, tokens * sizeof *host->targets, &targets, e)) < 0 ||
        (rc = push_copy(pass, host->positions, tokens * sizeof *host->positions, &positions, e)) <
            0 ||
        (rc = push_copy(pass, host->keys, tokens * sizeof *host->keys, &keys, e)) < 0)
        return rc;
    pass->batch = *host;
    pass->batch.ids = ids;
    pass->batch.targets = targets;
    pass->batch.positions = positions;
    pass->batch.keys = keys;
    return 0;
}

// The routing of the probe, where it has one.
static int routing_replay(struct pass *pass, struct fl_error *e)
{
    const struct net_probe *probe = &pass->net->probe;
    size_t slots =
        (size_t)pass->model->layers * (size_t)pass->batch.tokens * (size_t)pass->model->top_k;
    uint8_t *all;
    int rc;

    if (!probe->routing)
        return 0;
    if ((rc = pass->ops->upload(pass->ops, pass->ids, probe->routing, slots * sizeof *pass->ids,
                                e)) < 0)
        return rc;
    if (probe->kept)
        return pass->ops->upload(pass->ops, pass->kept, probe->kept, slots, e);
    all = memory_zeroed(slots, 1);
    for (size_t i = 0; i < slots; i++)
        all[i] = 1;
    rc = pass->ops->upload(pass->ops, pass->kept, all, slots, e);
    free(all);
    return rc;
}

int pass_open(struct pass *pass, const struct batch *host, struct fl_error *e)
{
    const struct model *m = pass->model;
    struct ops *ops = pass->ops;
    size_t layers = (size_t)m->layers, tokens = (size_t)host->tokens;
    size_t slots = layers * tokens * (size_t)m->top_k;
    void *ids, *kept, *aux, *loss_sum;
    int rc;

    if ((rc = batch_upload(pass, host, e)) < 0 ||
        (rc = pass_push(pass, MEMORY_ACTIVATIONS, slots * sizeof *pass->ids, &ids, e)) < 0 ||
        (rc = pass_push(pass, MEMORY_ACTIVATIONS, slots * sizeof *pass->kept, &kept, e)) < 0 ||
        (rc = pass_push(pass, MEMORY_ACTIVATIONS, layers * sizeof *pass->aux, &aux, e)) < 0 ||
        (rc = pass_push(pass, MEMORY_ACTIVATIONS, sizeof *pass->loss_sum, &loss_sum, e)) < 0 ||
        (rc = pass_push_reals(pass, tokens * (size_t)m->head_dim, &pass->rope, e)) < 0)
        return rc;
    pass->ids = ids;
    pass->kept = kept;
    pass->aux = aux;
    pass->loss_sum = loss_sum;
    for (int i = 0; i <= m->layers; i++) {
        if (!pass->training && i >= 2)
            pass->inputs[i] = pass->inputs[i - 2];
        else if ((rc = pass_push_rows(pass, ROW_STREAM, host->tokens, m->hidden, &pass->inputs[i],
                                      e)) < 0)
            return rc;
    }
    if ((rc = ops->zero(ops, pass->loss_sum, sizeof *pass->loss_sum, e)) < 0 ||
        (rc = ops->rope_table(ops, pass->batch.positions, host->tokens, pass->rope, e)) < 0)
        return rc;
    return routing_replay(pass, e);
}

int pass_see_rows(struct pass *pass, const char *what, int layer, const void *x, int rows, int cols,
                  struct fl_error *e)
{
    const struct net_probe *probe = &pass->net->probe;
    real *host;
    int rc;

    if (!probe->see)
        return 0;
    host = memory_zeroed((size_t)rows * (size_t)cols, sizeof *host);
    rc = pass->ops->stream_read(pass->ops, host, x, rows, cols, e);
    if (rc == 0)
        probe->see(probe->context, what, layer, host, rows, cols);
    free(host);
    return rc;
}

int pass_see_reals(struct pass *pass, const char *what, int layer, const real *x, int rows,
                   int cols, struct fl_error *e)
{
    const struct net_probe *probe = &pass->net->probe;
    size_t count = (size_t)rows * (size_t)cols;
    real *host;
    int rc;

    if (!probe->see)
        return 0;
    host = memory_zeroed(count, sizeof *host);
    rc = pass->ops->download(pass->ops, host, x, count * sizeof *host, e);
    if (rc == 0)
        probe->see(probe->context, what, layer, host, rows, cols);
    free(host);
    return rc;
}

int pass_see_routing(struct pass *pass, int layer, struct fl_error *e)
{
    const struct net_probe *probe = &pass->net->probe;
    int tokens = pass->batch.tokens, top_k = pass->model->top_k, rc;
    size_t slots = (size_t)tokens * (size_t)top_k, first = (size_t)layer * slots;
    int32_t *ids;
    uint8_t *kept;
    real *values;

    if (!probe->see)
        return 0;
    ids = memory_zeroed(slots, sizeof *ids);
    kept = memory_zeroed(slots, sizeof *kept);
    values = memory_zeroed(slots, sizeof *values);
    if ((rc = pass->ops->download(pass->ops, ids, pass->ids + first, slots * sizeof *ids, e)) < 0 ||
        (rc = pass->ops->download(pass->ops, kept, pass->kept + first, slots, e)) < 0)
        goto out;
    for (size_t i = 0; i < slots; i++)
        values[i] = (real)ids[i];
    probe->see(probe->context, "experts", layer, values, tokens, top_k);
    for (size_t i = 0; i < slots; i++)
        values[i] = kept[i];
    probe->see(probe->context, "kept", layer, values, tokens, top_k);
out:
    free(values);
    free(kept);
    free(ids);
    return rc;
}

// The key of a module's dropout in one layer and step, so that a mask depends on nothing else but
// expert, token and column.
static void dropout_key(const struct pass *pass, int layer, enum lora_target target,
                        uint32_t key[2])
{
    uint64_t seed = pass->net->config.spec->seed;
    const uint32_t seed_words[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)pass->step, (uint32_t)(pass->step >> 32),
                                 (uint32_t)layer, (uint32_t)target};
    uint32_t random[4];

    philox4x32(counter, seed_words, random);
    key[0] = random[0];
    key[1] = random[1];
}

void pass_lora(const struct pass *pass, int layer, unsigned targets, struct lora *lora)
{
    struct adapters *adapters = pass->net->config.adapters;
    const struct layout *layout = pass->net->config.layout;
    const struct model *m = pass->model;
    bool experts = targets & (LORA_FC1 | LORA_FC2);
    int q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;

    *lora = (struct lora){
        .scale = adapters->scale,
        .dropout = pass->training ? adapters->dropout : 0,
        .expert_first = experts ? layout->expert_first : 0,
    };
    for (unsigned target = 1; target <= targets; target <<= 1) {
        struct lora_part *part = &lora->part[lora->count];
        const struct adapter *a;
        if (!(targets & target))
            continue;
        a = adapters_find(adapters, layer, (enum lora_target)target,
                          experts ? layout->expert_first : -1);
        if (!a)
            continue;
        *part = (struct lora_part){
            .a = adapters->params + a->a,
            .b = adapters->params + a->b,
            .da = adapters->grads + a->a,
            .db = adapters->grads + a->b,
            .row = target == LORA_K   ? q
                   : target == LORA_V ? q + kv
                                      : 0,
            .rows = a->out,
        };
        dropout_key(pass, layer, (enum lora_target)target, part->key);
        lora->rank = a->rank;
        lora->count++;
    }
}

bool pass_keeps_attention(const struct pass *pass)
{
    const struct spec *spec = pass->net->config.spec;

    return pass->training &&
           (spec->recompute == RECOMPUTE_NONE ||
            (spec->recompute == RECOMPUTE_SELECTIVE && spec->recompute_part == RECOMPUTE_EXPERTS));
}

bool pass_keeps_experts(const struct pass *pass)
{
    return pass->training && pass->net->config.spec->recompute == RECOMPUTE_NONE;
}
