// SPDX-License-Identifier: Apache-2.0
// A moment of AdamW as it is stored.
//
//   fp32  as computed
//   bf16  rounded to nearest
//   fp16  in blocks of 128, divided by amax / 65504: a plain half would flush squares of gradients
//   fp8   in blocks of 128, divided by amax / 448, e4m3; of the second moment the square root,
//   whose
//         range is half as wide, and never 0 unless it is 0: an update divides by it
#ifndef FL_OPS_MOMENT_H
#define FL_OPS_MOMENT_H

#include "job/spec.h"
#include "ops/real.h"

#include <stddef.h>

#define MOMENT_BLOCK 128

struct moment {
    enum storage type;
    bool root;     // fp8 holds square roots
    void *values;  // [count]
    float *scales; // [ceil(count / 128)], of fp16 and fp8
};

// Bytes of each array; 0: none.
size_t moment_values_bytes(enum storage type, size_t count);
size_t moment_scales_bytes(enum storage type, size_t count);

// One block, count <= 128 values; a moment whose bytes are all 0 is 0. Host memory.
void moment_load(const struct moment *moment, size_t block, size_t count, real *x);
void moment_store(const struct moment *moment, size_t block, size_t count, const real *x);

#endif
