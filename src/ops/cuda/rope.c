// SPDX-License-Identifier: Apache-2.0
// RMSNorm of every q and k head, then rotary position embedding.
#include "rope.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/rowwise.h"

int cuda_rope_table(struct ops *ops, const int32_t *positions, int tokens, real *table,
                    struct fl_error *e)
{
    const struct model *m = ops->model;

    return CUDA_CHECK(
        rope_table(positions, tokens, m->head_dim, m->rope_theta, table, cuda_of(ops)->stream), e);
}

static struct rope rope_of(const struct model *m, const void *qkv, const float *q_norm,
                           const float *k_norm, const real *table, int tokens)
{
    return (struct rope){
        .qkv = qkv,
        .q_gain = q_norm,
        .k_gain = k_norm,
        .table = table,
        .tokens = tokens,
        .heads = m->heads,
        .kv_heads = m->kv_heads,
        .head_dim = m->head_dim,
        .eps = (float)m->rms_eps,
    };
}

int cuda_rope_forward(struct ops *ops, const void *qkv, const float *q_norm, const float *k_norm,
                      const real *table, int tokens, void *qk, struct fl_error *e)
{
    struct rope rope = rope_of(ops->model, qkv, q_norm, k_norm, table, tokens);

    return CUDA_CHECK(rope_forward(&rope, qk, cuda_of(ops)->stream), e);
}

int cuda_rope_backward(struct ops *ops, const void *qkv, const float *q_norm, const float *k_norm,
                       const real *table, int tokens, void *dqkv, struct fl_error *e)
{
    struct rope rope = rope_of(ops->model, qkv, q_norm, k_norm, table, tokens);

    return CUDA_CHECK(rope_backward(&rope, dqkv, cuda_of(ops)->stream), e);
}
