// SPDX-License-Identifier: Apache-2.0
// AdamW, the norm of gradients, scaling.
#include "ops/cpu/cpu.h"

#include <math.h>

int cpu_sum_squares(struct ops *ops, const real *x, size_t count, double *sum, struct fl_error *e)
{
    struct cpu *cpu = cpu_of(ops);
    struct arena_mark mark = arena_mark(cpu->arena);
    struct cpu_scratch scratch = cpu_sum_squares_scratch(count);
    size_t chunks = scratch.bytes[0] / sizeof(double); // whatever the number of threads
    void *push[CPU_SCRATCHES] = {NULL};
    double *sums;
    int rc = cpu_push(cpu, &scratch, push, e);

    if (rc < 0)
        return rc;
    sums = push[0];
#pragma omp parallel for schedule(static)
    for (size_t c = 0; c < chunks; c++) {
        size_t end = (c + 1) * CPU_SUM_CHUNK < count ? (c + 1) * CPU_SUM_CHUNK : count;
        sums[c] = 0;
        for (size_t i = c * CPU_SUM_CHUNK; i < end; i++)
            sums[c] += (double)x[i] * (double)x[i];
    }
    *sum = 0;
    for (size_t c = 0; c < chunks; c++)
        *sum += sums[c];
    arena_release(cpu->arena, mark);
    return 0;
}

int cpu_scale(struct ops *ops, real *x, size_t count, double factor, struct fl_error *e)
{
    (void)ops;
    (void)e;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < count; i++)
        x[i] *= (real)factor;
    return 0;
}

int cpu_adamw(struct ops *ops, const struct adamw *adamw, double grad_scale, size_t count,
              real *params, const real *grads, const struct moment *first,
              const struct moment *second, struct fl_error *e)
{
    real beta1 = (real)adamw->beta1, beta2 = (real)adamw->beta2, eps = (real)adamw->eps;
    real decay = (real)(1 - adamw->lr * adamw->weight_decay);
    real rate = (real)(adamw->lr / (1 - pow(adamw->beta1, (double)adamw->step)));
    real correction = (real)sqrt(1 - pow(adamw->beta2, (double)adamw->step));
    real scale = (real)grad_scale;

    (void)ops;
    (void)e;
#pragma omp parallel for schedule(static)
    for (size_t start = 0; start < count; start += MOMENT_BLOCK) {
        size_t n = count - start < MOMENT_BLOCK ? count - start : MOMENT_BLOCK;
        size_t block = start / MOMENT_BLOCK;
        real m[MOMENT_BLOCK], v[MOMENT_BLOCK];
        moment_load(first, block, n, m);
        moment_load(second, block, n, v);
        for (size_t i = 0; i < n; i++) {
            real g = scale * grads[start + i];
            m[i] = beta1 * m[i] + (1 - beta1) * g;
            v[i] = beta2 * v[i] + (1 - beta2) * g * g;
            params[start + i] = decay * params[start + i] -
                                rate * m[i] / ((real)sqrt((double)v[i]) / correction + eps);
        }
        moment_store(first, block, n, m);
        moment_store(second, block, n, v);
    }
    return 0;
}
