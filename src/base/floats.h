// SPDX-License-Identifier: Apache-2.0
// Small float formats: bfloat16, IEEE half, and the two 8-bit floats of OCP OFP8 / NVIDIA Hopper.
// Rounding is to nearest even. e4m3 is the "fn" kind: no infinity, NaN = 0x7f, largest 448.
#ifndef FL_BASE_FLOATS_H
#define FL_BASE_FLOATS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define E4M3_MAX 448.0f
#define E5M2_MAX 57344.0f

static inline uint32_t float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float float_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float bf16_to_float(uint16_t h)
{
    return float_from_bits((uint32_t)h << 16);
}

static inline uint16_t bf16_from_float(float x)
{
    uint32_t u = float_bits(x);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)((u >> 16) | 0x40); // quiet NaN
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

// x rounded to bfloat16.
static inline float bf16_round(float x)
{
    return bf16_to_float(bf16_from_float(x));
}

float half_to_float(uint16_t h);
uint16_t half_from_float(float x);

// The 256 values of each format, indexed by the byte.
extern const float e4m3_values[256];
extern const float e5m2_values[256];

// Saturating, as the hardware's cvt.rn.satfinite: |x| above the largest finite value gives it; NaN
// stays NaN.
uint8_t e5m2_from_float(float x);

// Free of branches, so that loops over it become vector code.
static inline uint8_t e4m3_from_float(float x)
{
    uint32_t u = float_bits(x), magnitude = u & 0x7fffffff, sign = (u >> 24) & 0x80;
    uint32_t normal = ((magnitude + 0x7ffff + ((magnitude >> 20) & 1)) >> 20) - (120 << 3);
    // Below 2^-6 the grid is one of 2^-9, which the sum with 2^14 rounds to.
    uint32_t subnormal = float_bits(float_from_bits(magnitude) + 0x1p14f) - float_bits(0x1p14f);
    uint32_t code = magnitude < 0x3c800000 ? subnormal : normal;

    code = code < 0x7e ? code : 0x7e;
    code = magnitude > 0x7f800000 ? 0x7f : code;
    return (uint8_t)(sign | code);
}

// The value of e4m3_from_float(x), without its byte.
static inline float e4m3_round(float x)
{
    uint32_t u = float_bits(x), magnitude = u & 0x7fffffff, sign = u & 0x80000000;
    float normal = float_from_bits((magnitude + 0x7ffff + ((magnitude >> 20) & 1)) & 0xfff00000);
    float subnormal = float_from_bits(magnitude) + 0x1p14f - 0x1p14f; // on a grid of 2^-9

    if (magnitude > 0x7f800000)
        return x;
    if (magnitude < 0x3c800000) // 2^-6, the smallest normal
        normal = subnormal;
    if (normal > E4M3_MAX)
        normal = E4M3_MAX;
    return float_from_bits(float_bits(normal) | sign);
}

#endif
