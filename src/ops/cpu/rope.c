// SPDX-License-Identifier: Apache-2.0
// RMSNorm of every q and k head, then rotary position embedding.
//
// Su et al., "RoFormer" (2021), in the half-split form of the Qwen checkpoints: element i of a head
// turns with element i + D/2 by the angle position * theta^(-2i / D).
#include "ops/cpu/cpu.h"

#include <math.h>

int cpu_rope_table(struct ops *ops, const int32_t *positions, int tokens, real *table,
                   struct fl_error *e)
{
    int half = ops->model->head_dim / 2;
    double theta = ops->model->rope_theta;

    (void)e;
#pragma omp parallel for schedule(static)
    for (int t = 0; t < tokens; t++)
        for (int i = 0; i < half; i++) {
            double angle = positions[t] * pow(theta, -(double)i / half);
            real *to = table + ((size_t)t * (size_t)half + (size_t)i) * 2;
            to[0] = (real)cos(angle);
            to[1] = (real)sin(angle);
        }
    return 0;
}

static real inverse_rms(const real *x, int count, double eps)
{
    double squares = 0;

    for (int i = 0; i < count; i++)
        squares += (double)x[i] * (double)x[i];
    return (real)(1 / sqrt(squares / count + eps));
}

static void head_forward(bool fp8, const real *x, const float *gain, const real *table, int dim,
                         double eps, real *y)
{
    real inverse = inverse_rms(x, dim, eps);
    int half = dim / 2;

    for (int i = 0; i < half; i++) {
        real c = table[2 * i], s = table[2 * i + 1];
        real low = x[i] * inverse * (real)gain[i];
        real high = x[i + half] * inverse * (real)gain[i + half];
        y[i] = round_to_bf16(fp8, low * c - high * s);
        y[i + half] = round_to_bf16(fp8, high * c + low * s);
    }
}

// d: gradient of the rotated head, becomes that of x.
static void head_backward(bool fp8, const real *x, const float *gain, const real *table, int dim,
                          double eps, real *d)
{
    real inverse = inverse_rms(x, dim, eps), shrink;
    int half = dim / 2;
    double dot = 0;

    for (int i = 0; i < half; i++) {
        real c = table[2 * i], s = table[2 * i + 1];
        real low = (d[i] * c + d[i + half] * s) * (real)gain[i];
        real high = (d[i + half] * c - d[i] * s) * (real)gain[i + half];
        d[i] = low;
        d[i + half] = high;
        dot += (double)low * (double)x[i] + (double)high * (double)x[i + half];
    }
    shrink = (real)(dot / dim) * inverse * inverse * inverse;
    for (int i = 0; i < dim; i++)
        d[i] = round_to_bf16(fp8, d[i] * inverse - x[i] * shrink);
}

int cpu_rope_forward(struct ops *ops, const void *qkv, const float *q_norm, const float *k_norm,
                     const real *table, int tokens, void *qk, struct fl_error *e)
{
    const struct model *m = ops->model;
    bool fp8 = cpu_of(ops)->fp8;
    size_t dim = (size_t)m->head_dim, turned = (size_t)(m->heads + m->kv_heads) * dim;
    size_t row = turned + (size_t)m->kv_heads * dim;

    (void)e;
#pragma omp parallel for schedule(static)
    for (int t = 0; t < tokens; t++)
        for (int h = 0; h < m->heads + m->kv_heads; h++)
            head_forward(fp8, (const real *)qkv + (size_t)t * row + (size_t)h * dim,
                         h < m->heads ? q_norm : k_norm, table + (size_t)t * dim, m->head_dim,
                         m->rms_eps, (real *)qk + (size_t)t * turned + (size_t)h * dim);
    return 0;
}

int cpu_rope_backward(struct ops *ops, const void *qkv, const float *q_norm, const float *k_norm,
                      const real *table, int tokens, void *dqkv, struct fl_error *e)
{
    const struct model *m = ops->model;
    bool fp8 = cpu_of(ops)->fp8;
    size_t dim = (size_t)m->head_dim, row = (size_t)(m->heads + 2 * m->kv_heads) * dim;

    (void)e;
#pragma omp parallel for schedule(static)
    for (int t = 0; t < tokens; t++)
        for (int h = 0; h < m->heads + m->kv_heads; h++) {
            size_t at = (size_t)t * row + (size_t)h * dim;
            head_backward(fp8, (const real *)qkv + at, h < m->heads ? q_norm : k_norm,
                          table + (size_t)t * dim, m->head_dim, m->rms_eps, (real *)dqkv + at);
        }
    return 0;
}
