// SPDX-License-Identifier: Apache-2.0
// The tensors of an adapter file in PEFT's names.
#include "weights/adapter_tensors.h"

#include "base/memory.h"

#include <stdlib.h>

#define ATTENTION_PROJECTIONS 4 // the first ones; the others are an expert's

// A projection and its rows in a target's fused matrix.
struct projection {
    const char *name;
    unsigned fused, alone; // targets it belongs to
    int first_row, rows, cols;
};

static void projections_make(const struct model *m, struct projection p[ADAPTER_PROJECTIONS])
{
    const int q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    const int hidden = m->hidden, width = m->expert_width;

    p[0] = (struct projection){"q_proj", LORA_QKV, LORA_Q, 0, q, hidden};
    p[1] = (struct projection){"k_proj", LORA_QKV, LORA_K, q, kv, hidden};
    p[2] = (struct projection){"v_proj", LORA_QKV, LORA_V, q + kv, kv, hidden};
    p[3] = (struct projection){"o_proj", 0, LORA_PROJ, 0, hidden, q};
    p[4] = (struct projection){"gate_proj", LORA_FC1, 0, 0, width, hidden};
    p[5] = (struct projection){"up_proj", LORA_FC1, 0, width, width, hidden};
    p[6] = (struct projection){"down_proj", 0, LORA_FC2, 0, hidden, width};
}

static void pair_append(struct adapter_tensors *t, const struct projection *p, unsigned targets,
                        int layer, int expert, int rank)
{
    bool fused = p->fused & targets;
    struct adapter_tensor a = {.target = (enum lora_target)(fused ? p->fused : p->alone),
                               .layer = layer,
                               .expert = expert,
                               .rows = rank,
                               .cols = p->cols};
    struct adapter_tensor b = a;
    char *module;

    if (!((p->fused | p->alone) & targets))
        return;
    module = expert < 0
                 ? memory_format("base_model.model.model.layers.%d.self_attn.%s", layer, p->name)
                 : memory_format("base_model.model.model.layers.%d.mlp.experts.%d.%s", layer,
                                 expert, p->name);
    a.name = memory_format("%s.lora_A.weight", module);
    b.name = memory_format("%s.lora_B.weight", module);
    b.is_b = true;
    b.first_row = fused ? p->first_row : 0;
    b.rows = p->rows;
    b.cols = rank;
    t->list[t->count++] = a;
    t->list[t->count++] = b;
    free(module);
}

struct adapter_tensors *adapter_tensors_create(const struct spec *spec, const struct model *model)
{
    struct adapter_tensors *t = memory_zeroed(1, sizeof *t);
    size_t most = 2 * (size_t)model->layers * (4 + 3 * (size_t)model->experts);
    struct projection p[ADAPTER_PROJECTIONS];

    t->list = memory_zeroed(most, sizeof *t->list);
    projections_make(model, p);
    for (int layer = 0; layer < model->layers; layer++) {
        for (int i = 0; i < ATTENTION_PROJECTIONS; i++)
            pair_append(t, &p[i], spec->lora_targets, layer, -1, spec->lora_rank);
        for (int expert = 0; expert < model->experts; expert++)
            for (int i = ATTENTION_PROJECTIONS; i < ADAPTER_PROJECTIONS; i++)
                pair_append(t, &p[i], spec->lora_targets, layer, expert, spec->lora_rank);
    }
    return t;
}

void adapter_tensors_destroy(struct adapter_tensors *tensors)
{
    if (!tensors)
        return;
    for (size_t i = 0; i < tensors->count; i++)
        free(tensors->list[i].name);
    free(tensors->list);
    free(tensors);
}

int adapter_projections(unsigned targets, const char *names[ADAPTER_PROJECTIONS])
{
    static const struct model any;
    struct projection p[ADAPTER_PROJECTIONS];
    int count = 0;

    projections_make(&any, p);
    for (int i = 0; i < ADAPTER_PROJECTIONS; i++)
        if ((p[i].fused | p[i].alone) & targets)
            names[count++] = p[i].name;
    return count;
}
