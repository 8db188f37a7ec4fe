// SPDX-License-Identifier: Apache-2.0
// The order of an epoch's samples: Fisher and Yates with numbers of Philox.
#include "data/shuffle.h"

#include "base/philox.h"

#define PURPOSE 0x73687566u // keeps these numbers apart from others drawn with the same seed

// Uniform in 0..bound-1: numbers above the last whole multiple of bound are drawn again.
static uint64_t draw_below(const uint32_t key[2], uint64_t epoch, uint32_t *draw, uint64_t bound)
{
    const uint64_t excess = (UINT64_MAX % bound + 1) % bound; // 2^64 modulo bound
    uint32_t out[4];
    uint64_t number;

    do {
        uint32_t counter[4] = {(*draw)++, (uint32_t)epoch, (uint32_t)(epoch >> 32), PURPOSE};
        philox4x32(counter, key, out);
        number = (uint64_t)out[1] << 32 | out[0];
    } while (number > UINT64_MAX - excess);
    return number % bound;
}

void shuffle_order(uint64_t seed, uint64_t epoch, uint32_t *order, size_t count)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t draw = 0;

    for (size_t i = 0; i < count; i++)
        order[i] = (uint32_t)i;
    for (size_t i = count; i > 1; i--) {
        size_t k = draw_below(key, epoch, &draw, i);
        uint32_t kept = order[i - 1];
        order[i - 1] = order[k];
        order[k] = kept;
    }
}
