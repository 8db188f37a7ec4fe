// SPDX-License-Identifier: Apache-2.0
// Quantisation of activations: e4m3 in blocks of 1x128, to values and back.
#include "ops/cpu/cpu.h"

#include <float.h>
#include <math.h>
#include <string.h>

void quantise_block(const real *x, int count, real *y)
{
    float amax = 0, scale, inverse;

#pragma omp simd reduction(max : amax)
    for (int i = 0; i < count; i++) {
        float a = fabsf((float)x[i]);
        amax = a > amax ? a : amax; // a NaN compares false
    }
    // An all-zero block divides by no zero, nor a tiny one by a subnormal scale.
    scale = (amax > FLT_MIN * E4M3_MAX ? amax : FLT_MIN * E4M3_MAX) / E4M3_MAX;
    inverse = 1 / scale;
#pragma omp simd
    for (int i = 0; i < count; i++)
        y[i] = (real)(e4m3_round((float)x[i] * inverse) * scale);
}

void quantise_rows(bool fp8, const real *x, int rows, int cols, const int *part_cols, int parts,
                   real *y)
{
    if (!fp8) {
        if (rows > 0)
            memcpy(y, x, (size_t)rows * (size_t)cols * sizeof(real));
        return;
    }
#pragma omp parallel for schedule(static)
    for (int r = 0; r < rows; r++) {
        size_t at = (size_t)r * (size_t)cols;
        for (int p = 0; p < parts; at += (size_t)part_cols[p++])
            for (int c = 0; c < part_cols[p]; c += FP8_BLOCK) {
                int n = part_cols[p] - c < FP8_BLOCK ? part_cols[p] - c : FP8_BLOCK;
                quantise_block(x + at + c, n, y + at + c);
            }
    }
}

int cpu_quantise(struct ops *ops, const void *x, int rows, int cols, void *xq, struct fl_error *e)
{
    (void)e;
    quantise_rows(cpu_of(ops)->fp8, x, rows, cols, &cols, 1, xq);
    return 0;
}
