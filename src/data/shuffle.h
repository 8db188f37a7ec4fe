// SPDX-License-Identifier: Apache-2.0
// The order of an epoch's samples: a permutation drawn from (seed, epoch) alone.
#ifndef FL_DATA_SHUFFLE_H
#define FL_DATA_SHUFFLE_H

#include <stddef.h>
#include <stdint.h>

// Fills order[count] with a uniformly drawn permutation of 0..count-1.
void shuffle_order(uint64_t seed, uint64_t epoch, uint32_t *order, size_t count);

#endif
