// SPDX-License-Identifier: Apache-2.0
// Some rows of one tensor on their way from the checkpoint, or from nothing, to their place in
// memory.
#ifndef FL_WEIGHTS_PIECE_H
#define FL_WEIGHTS_PIECE_H

#include "base/error.h"
#include "weights/safetensors.h"
#include "weights/synth.h"

#include <stddef.h>
#include <stdint.h>

enum piece_kind {
    PIECE_FLOAT,    // BF16, F16 or F32 to float
    PIECE_BF16,     // BF16, F16 or F32 to bfloat16
    PIECE_FP8,      // F8_E4M3 as it is, its scales to float
    PIECE_QUANTISE, // BF16, F16 or F32 to e4m3 and scales
};

struct piece {
    enum piece_kind kind;
    const struct safetensors *file, *scale_file;
    struct synth synth;                  // what makes it, where tensor is NULL
    const struct tensor *tensor, *scale; // scale: PIECE_FP8 only, [ceil(N / 128), ceil(cols / 128)]
    size_t first_row, rows, cols;        // FP8 and QUANTISE: first_row is a multiple of 128
    void *data;                          // where first_row goes
    float *scales;                       // where first_row's scales go
};

// Reads, converts and checks; *bytes is increased by what was read. Errors name file, tensor and
// place: not finite, a scale not finite or not positive, and those of safetensors_read.
int piece_read(const struct piece *piece, uint64_t *bytes, struct fl_error *e);

#endif
