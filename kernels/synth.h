// SPDX-License-Identifier: Apache-2.0
// Weights made in device memory: bit for bit those of weights/synth.c, whose header tells what they
// are. Pointers are the device's. The launchers return 0 or a cudaError_t.
#ifndef FL_KERNELS_SYNTH_H
#define FL_KERNELS_SYNTH_H

#include "weights/synth.h"

#ifdef __cplusplus
extern "C" {
#endif

// synth_codes; book: host.
int synth_make_codes(const struct synth *synth, const struct synth_book *book, size_t first,
                     size_t rows, uint8_t *codes, float *scales, void *stream);
// synth_bf16 as bf16, or with wide as the same values in fp32.
int synth_make_values(const struct synth *synth, size_t first, size_t rows, bool wide, void *values,
                      void *stream);

#ifdef __cplusplus
}
#endif

#endif
