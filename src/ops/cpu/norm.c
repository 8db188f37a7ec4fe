// SPDX-License-Identifier: Apache-2.0
// Embedding and RMSNorm.
#include "ops/cpu/cpu.h"

#include <math.h>

int cpu_embed(struct ops *ops, const uint16_t *table, const int32_t *ids, int tokens, void *x,
              struct fl_error *e)
{
    size_t hidden = (size_t)ops->model->hidden;
    real *out = x;

    (void)e;
    for (int t = 0; t < tokens; t++)
        for (size_t c = 0; c < hidden; c++)
            out[(size_t)t * hidden + c] = (real)bf16_to_float(table[(size_t)ids[t] * hidden + c]);
    return 0;
}

int cpu_norm_forward(struct ops *ops, const void *x, const void *delta, const float *gain, int rows,
                     int cols, void *sum, void *y, void *yq, struct fl_error *e)
{
    bool fp8 = cpu_of(ops)->fp8;
    double eps = ops->model->rms_eps;

    (void)e;
#pragma omp parallel for schedule(static)
    for (int r = 0; r < rows; r++) {
        size_t at = (size_t)r * (size_t)cols;
        const real *from = (const real *)x + at;
        real *to = (real *)y + at, inverse;
        double squares = 0;
        if (delta) {
            const real *add = (const real *)delta + at;
            real *total = (real *)sum + at;
            for (int c = 0; c < cols; c++)
                total[c] = round_to_bf16(fp8, from[c] + add[c]);
            from = total;
        }
        for (int c = 0; c < cols; c++)
            squares += (double)from[c] * (double)from[c];
        inverse = (real)(1 / sqrt(squares / cols + eps));
        for (int c = 0; c < cols; c++)
            to[c] = from[c] * inverse * (real)gain[c];
    }
    if (yq)
        quantise_rows(fp8, y, rows, cols, &cols, 1, yq);
    round_rows(fp8, y, (size_t)rows * (size_t)cols);
    return 0;
}

int cpu_norm_backward(struct ops *ops, const void *x, const float *gain, const void *dy, int rows,
                      int cols, void *dx, struct fl_error *e)
{
    bool fp8 = cpu_of(ops)->fp8;
    double eps = ops->model->rms_eps;

    (void)e;
#pragma omp parallel for schedule(static)
    for (int r = 0; r < rows; r++) {
        size_t at = (size_t)r * (size_t)cols;
        const real *s = (const real *)x + at, *d = (const real *)dy + at;
        real *to = (real *)dx + at, inverse, shrink;
        double squares = 0, dot = 0;
        for (int c = 0; c < cols; c++) {
            squares += (double)s[c] * (double)s[c];
            dot += (double)s[c] * (double)d[c] * (double)gain[c];
        }
        inverse = (real)(1 / sqrt(squares / cols + eps));
        shrink = (real)(dot / cols) * inverse * inverse * inverse;
        for (int c = 0; c < cols; c++)
            to[c] = round_to_bf16(fp8, to[c] + d[c] * (real)gain[c] * inverse - s[c] * shrink);
    }
    return 0;
}
