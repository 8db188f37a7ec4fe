// SPDX-License-Identifier: Apache-2.0
// Weights made on the device.
#include "synth.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/weights.h"

int cuda_make_codes(struct ops *ops, const struct synth *synth, size_t first, size_t rows,
                    uint8_t *codes, float *scales, struct fl_error *e)
{
    struct cuda *cuda = cuda_of(ops);
    struct synth_book book;
    int rc = CUDA_CHECK(cudaSetDevice(cuda->device), e);

    synth_book_make(&book);
    return rc < 0
               ? rc
               : CUDA_CHECK(
                     synth_make_codes(synth, &book, first, rows, codes, scales, cuda->stream), e);
}

int cuda_make_values(struct ops *ops, const struct synth *synth, size_t first, size_t rows,
                     bool wide, void *values, struct fl_error *e)
{
    struct cuda *cuda = cuda_of(ops);
    int rc = CUDA_CHECK(cudaSetDevice(cuda->device), e);

    return rc < 0
               ? rc
               : CUDA_CHECK(synth_make_values(synth, first, rows, wide, values, cuda->stream), e);
}
