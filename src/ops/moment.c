// SPDX-License-Identifier: Apache-2.0
// A moment of AdamW as it is stored.
#include "ops/moment.h"

#include "base/floats.h"

#include <float.h>
#include <math.h>

#define HALF_MAX   65504.0f
#define CODE_LEAST 1 // e4m3's smallest value

static size_t blocks(size_t count)
{
    return (count + MOMENT_BLOCK - 1) / MOMENT_BLOCK;
}

size_t moment_values_bytes(enum storage type, size_t count)
{
    switch (type) {
    case STORAGE_FP32:
        return count * sizeof(real);
    case STORAGE_FP16:
    case STORAGE_BF16:
        return count * sizeof(uint16_t);
    case STORAGE_FP8:
        return count;
    }
    return 0;
}

size_t moment_scales_bytes(enum storage type, size_t count)
{
    return type == STORAGE_FP16 || type == STORAGE_FP8 ? blocks(count) * sizeof(float) : 0;
}

void moment_load(const struct moment *m, size_t block, size_t count, real *x)
{
    const size_t first = block * MOMENT_BLOCK;
    const uint16_t *halves = (const uint16_t *)m->values + first;
    const uint8_t *codes = (const uint8_t *)m->values + first;

    switch (m->type) {
    case STORAGE_FP32:
        memcpy(x, (const real *)m->values + first, count * sizeof *x);
        break;
    case STORAGE_BF16:
        for (size_t i = 0; i < count; i++)
            x[i] = (real)bf16_to_float(halves[i]);
        break;
    case STORAGE_FP16:
        for (size_t i = 0; i < count; i++)
            x[i] = (real)(half_to_float(halves[i]) * m->scales[block]);
        break;
    case STORAGE_FP8:
        for (size_t i = 0; i < count; i++) {
            float value = e4m3_values[codes[i]] * m->scales[block];
            x[i] = (real)(m->root ? value * value : value);
        }
        break;
    }
}

// amax / most, and 1 over it; both 0 for a block of zeros, and for one so small that 1 over its
// scale would be infinite.
static float scale_of(const float *x, size_t count, float most, float *inverse)
{
    float amax = 0, scale;

    for (size_t i = 0; i < count; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    scale = amax / most;
    if (scale < FLT_MIN)
        scale = 0;
    *inverse = scale > 0 ? 1 / scale : 0;
    return scale;
}

void moment_store(const struct moment *m, size_t block, size_t count, const real *x)
{
    const size_t first = block * MOMENT_BLOCK;
    uint16_t *halves = (uint16_t *)m->values + first;
    uint8_t *codes = (uint8_t *)m->values + first;
    float values[MOMENT_BLOCK], inverse;

    if (m->type == STORAGE_FP32) {
        memcpy((real *)m->values + first, x, count * sizeof *x);
        return;
    }
    for (size_t i = 0; i < count; i++)
        values[i] = m->type == STORAGE_FP8 && m->root ? sqrtf((float)x[i]) : (float)x[i];
    if (m->type == STORAGE_BF16) {
        for (size_t i = 0; i < count; i++)
            halves[i] = bf16_from_float(values[i]);
        return;
    }
    m->scales[block] =
        scale_of(values, count, m->type == STORAGE_FP16 ? HALF_MAX : E4M3_MAX, &inverse);
    for (size_t i = 0; i < count; i++) {
        if (m->type == STORAGE_FP16) {
            halves[i] = half_from_float(fminf(fmaxf(values[i] * inverse, -HALF_MAX), HALF_MAX));
            continue;
        }
        codes[i] = e4m3_from_float(values[i] * inverse);
        if (m->root && codes[i] == 0 && values[i] > 0 && m->scales[block] > 0)
            codes[i] = CODE_LEAST;
    }
}
