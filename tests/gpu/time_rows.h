// SPDX-License-Identifier: Apache-2.0
// Rates of the operations on rows, for test_rows --time.
#ifndef FL_GPU_TIME_ROWS_H
#define FL_GPU_TIME_ROWS_H

#include "ops/cuda/cuda.h"

// Prints microseconds and GB/s of each; changes model's shape.
void time_rows(struct cuda *cuda, struct model *model);

#endif
