// SPDX-License-Identifier: Apache-2.0
// What test_rows and its rates share: the end at an error, and the rates for test_rows --time.
#ifndef FL_GPU_TIME_ROWS_H
#define FL_GPU_TIME_ROWS_H

#include "ops/cuda/cuda.h"

// What a call that failed said; every call of an operation hands it over.
extern struct fl_error rows_error;

// Ends the test with that error where rc is not 0.
void rows_require(int rc);

#define OK(call)    rows_require(call)
#define CHECK(call) OK(CUDA_CHECK(call, &rows_error))

// Prints microseconds and GB/s of each; changes model's shape.
void time_rows(struct cuda *cuda, struct model *model);

#endif
