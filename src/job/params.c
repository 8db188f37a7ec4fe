// SPDX-License-Identifier: Apache-2.0
// Parameter counts in closed form.
#include "job/params.h"

// Columns of q, and of k or v, on one of tp ranks.
static uint64_t q_cols(const struct model *m, int tp)
{
    return (uint64_t)(m->heads / tp) * (uint64_t)m->head_dim;
}

static uint64_t kv_cols(const struct model *m, int tp)
{
    return (uint64_t)(m->kv_heads > tp ? m->kv_heads / tp : 1) * (uint64_t)m->head_dim;
}

static uint64_t attention(const struct model *m, int tp)
{
    return (2 * q_cols(m, tp) + 2 * kv_cols(m, tp)) * (uint64_t)m->hidden;
}

static uint64_t experts_of_layer(const struct model *m, int experts)
{
    return 3ull * m->expert_width * m->hidden * experts;
}

uint64_t params_base(const struct model *m, int tp, int experts)
{
    uint64_t router = (uint64_t)m->experts * m->hidden;
    uint64_t norms = 2ull * m->hidden + 2ull * m->head_dim;
    uint64_t layer = attention(m, tp) + router + norms + experts_of_layer(m, experts);

    uint64_t tables = m->tied_embeddings ? 1 : 2, rows = ((uint64_t)m->vocab + tp - 1) / tp;

    return m->layers * layer + tables * rows * m->hidden + m->hidden;
}

static uint64_t adapter(const struct spec *spec, uint64_t in, uint64_t out)
{
    return (in + out) * spec->lora_rank;
}

uint64_t params_trainable(const struct spec *spec, const struct model *m, int tp, int experts)
{
    uint64_t q = q_cols(m, tp), kv = kv_cols(m, tp);
    uint64_t hidden = m->hidden, width = m->expert_width, dense = 0, expert = 0;

    if (spec->lora_targets & LORA_QKV)
        dense += adapter(spec, hidden, q + 2 * kv);
    if (spec->lora_targets & LORA_Q)
        dense += adapter(spec, hidden, q);
    if (spec->lora_targets & LORA_K)
        dense += adapter(spec, hidden, kv);
    if (spec->lora_targets & LORA_V)
        dense += adapter(spec, hidden, kv);
    if (spec->lora_targets & LORA_PROJ)
        dense += adapter(spec, q, hidden);
    if (spec->lora_targets & LORA_FC1)
        expert += adapter(spec, hidden, 2 * width);
    if (spec->lora_targets & LORA_FC2)
        expert += adapter(spec, width, hidden);
    return m->layers * (dense + experts * expert);
}

uint64_t params_reported_block(const struct model *m)
{
    uint64_t layer = attention(m, 1) + experts_of_layer(m, m->experts) + 2ull * m->hidden;

    return m->layers * layer + m->hidden;
}

uint64_t params_reported_embedding(const struct model *m)
{
    return (m->tied_embeddings ? 1ull : 2ull) * m->vocab * m->hidden;
}
