// SPDX-License-Identifier: Apache-2.0
// Philox 4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy
// as 1, 2, 3" (SC11): the same key and counter give the same numbers on every rank and device.
#ifndef FL_BASE_PHILOX_H
#define FL_BASE_PHILOX_H

#include <stdint.h>

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

// Uniform in [0, 1) with 24 bits.
static inline float philox_uniform(uint32_t u)
{
    return (float)(u >> 8) * 0x1p-24f;
}

#endif
