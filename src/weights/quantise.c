// SPDX-License-Identifier: Apache-2.0
// Floats to e4m3 with one scale for each 128x128 block.
#include "weights/quantise.h"

#include "base/floats.h"
#include "job/model.h"

#include <float.h>
#include <math.h>

static float block_scale(const float *x, int rows, int cols, int width)
{
    uint32_t largest = 0; // magnitudes compare as their bits do, and whole numbers faster
    float amax;

    for (int r = 0; r < rows; r++) {
        const float *row = x + (size_t)r * (size_t)cols;
#pragma omp simd reduction(max : largest)
        for (int c = 0; c < width; c++) {
            uint32_t magnitude = float_bits(row[c]) & 0x7fffffff;
            largest = magnitude > largest ? magnitude : largest;
        }
    }
    amax = float_from_bits(largest);
    return amax > 0 ? fmaxf(amax / E4M3_MAX, FLT_MIN) : 1;
}

void block_row_quantise(const float *x, int rows, int cols, uint8_t *codes, float *scales)
{
    for (int first = 0; first < cols; first += FP8_BLOCK) {
        int width = cols - first < FP8_BLOCK ? cols - first : FP8_BLOCK;
        float scale = block_scale(x + first, rows, cols, width);

        scales[first / FP8_BLOCK] = scale;
        for (int r = 0; r < rows; r++) {
            size_t row = (size_t)r * (size_t)cols + (size_t)first;
#pragma omp simd
            for (int c = 0; c < width; c++)
                codes[row + (size_t)c] = e4m3_from_float(x[row + (size_t)c] / scale);
        }
    }
}
