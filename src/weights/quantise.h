// SPDX-License-Identifier: Apache-2.0
// Floats to e4m3 with one scale for each 128x128 block.
#ifndef FL_WEIGHTS_QUANTISE_H
#define FL_WEIGHTS_QUANTISE_H

#include <stddef.h>
#include <stdint.h>

// One block row: x and codes [rows <= 128, cols], scales [ceil(cols / 128)]. scale = amax / 448,
// but at least FLT_MIN so that x / scale stays exact to a rounding, and 1 for a block of zeros. x
// must be finite.
void block_row_quantise(const float *x, int rows, int cols, uint8_t *codes, float *scales);

#endif
