// SPDX-License-Identifier: Apache-2.0
// Weights made from a tensor's name and a seed, distributed like trained ones: projections in e4m3
// with 128x128 scales, whose few outlier columns set the scale of their blocks; the rest in bf16.
//
// Every value depends on (seed, name, row, column) alone: ranks, shards and a checkpoint on disk
// hold the same. Integers from Philox and tables: the same bits on every machine.
#ifndef FL_WEIGHTS_SYNTH_H
#define FL_WEIGHTS_SYNTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SYNTH_AMAX    4.2 // deviations of a Gaussian block that its code 448 stands for
#define SYNTH_OUTLIER 6   // times wider: an outlier column

// What a device needs to make the same.
enum { SYNTH_DRAW_CODES, SYNTH_DRAW_VALUES, SYNTH_DRAW_COLUMN, SYNTH_DRAW_BLOCK };
#define SYNTH_CODES_A_DRAW  8    // 16 bits each
#define SYNTH_VALUES_A_DRAW 2    // 64 bits each
#define SYNTH_OUTLIERS      200  // columns, one of them an outlier
#define SYNTH_SCALE_SPREAD  0.2  // of block scales around their mean
#define SYNTH_MAGNITUDES    0x7e // the code of 448, and so many are greater than 0
// Of a sum of four 16-bit numbers.
#define SYNTH_SUM_MEAN      131070.0
#define SYNTH_SUM_DEVIATION (65536 / 1.7320508075688772)

// Magnitude k + 1 of a Gaussian's e4m3 code begins at begin[.][k] of 32768 equally likely draws:
// [0] in blocks whose largest value is a Gaussian's, [1] where an outlier column's is.
struct synth_book {
    uint16_t begin[2][SYNTH_MAGNITUDES];
};

struct synth {
    uint32_t key[2];    // Philox key of the tensor
    double mean, sigma; // of its values; outlier columns aside
    size_t rows, cols;
};

// name as in the checkpoint; vectors are one row.
struct synth synth_open(uint64_t seed, const char *name, size_t rows, size_t cols);

void synth_book_make(struct synth_book *book);

// Rows [first, first + rows) of a projection; first is a multiple of 128. codes [rows, cols],
// scales [ceil(rows / 128), ceil(cols / 128)], rounded to bf16. Every block holds one code of 448.
void synth_codes(const struct synth *synth, size_t first, size_t rows, uint8_t *codes,
                 float *scales);
// The same rows of any other tensor as bf16.
void synth_bf16(const struct synth *synth, size_t first, size_t rows, uint16_t *values);

#endif
