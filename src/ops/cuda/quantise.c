// SPDX-License-Identifier: Apache-2.0
// Quantisation of activations: e4m3 in blocks of 1x128.
#include "quantise.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/rowwise.h"

int cuda_quantise(struct ops *ops, const void *x, int rows, int cols, void *xq, struct fl_error *e)
{
    return CUDA_CHECK(quantise_to_rows(x, rows, cols, xq, cuda_of(ops)->stream), e);
}
