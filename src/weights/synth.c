// SPDX-License-Identifier: Apache-2.0
// Weights made from a tensor's name and a seed.
#include "weights/synth.h"

#include "base/floats.h"
#include "base/memory.h"
#include "base/philox.h"
#include "job/model.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#define NORM_SPREAD   0.15 // of norm gains around 1
#define ROUTER_SPREAD 1.5  // of router logits: what a trained router's margins look like
#define LOGIT_SPREAD  0.8  // of the output's logits
#define TABLE         65536
#define LARGEST_CODE  SYNTH_MAGNITUDES

// e4m3 codes of Gaussian values by 16 uniform bits, the highest the sign: of blocks whose largest
// value is a Gaussian's, and of blocks where an outlier column's is.
static uint8_t plain[TABLE], quiet[TABLE];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

// Code c stands for what lies between the middles to its neighbours; a magnitude is below x with
// probability erf(x / sqrt 2).
static void table_fill(uint8_t *table, double amax)
{
    int code = 0;
    double end = 0;

    for (int i = 0; i < TABLE / 2; i++) {
        double below = (i + 0.5) / (TABLE / 2);
        while (code < LARGEST_CODE && below >= end) {
            double middle = ((double)e4m3_values[code] + (double)e4m3_values[code + 1]) / 2;
            end = erf(middle / (double)E4M3_MAX * amax / sqrt(2));
            if (below >= end)
                code++;
        }
        table[i] = (uint8_t)code;
        table[i + TABLE / 2] = (uint8_t)(code | 0x80);
    }
}

static void tables_fill(void)
{
    table_fill(plain, SYNTH_AMAX);
    table_fill(quiet, SYNTH_AMAX * SYNTH_OUTLIER);
}

void synth_book_make(struct synth_book *book)
{
    const uint8_t *const tables[2] = {plain, quiet};

    pthread_once(&tables_once, tables_fill);
    for (int t = 0; t < 2; t++)
        for (int i = 0, code = 0; code < SYNTH_MAGNITUDES; code++) {
            while (i < TABLE / 2 && tables[t][i] <= code)
                i++;
            book->begin[t][code] = (uint16_t)i;
        }
}

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n >= m && !strcmp(name + n - m, end);
}

// FNV-1a of the name, spread by Philox.
static void key_make(uint64_t seed, const char *name, uint32_t key[2])
{
    const uint32_t seed_words[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint64_t hash = 14695981039346656037u;
    uint32_t counter[4] = {0}, out[4];

    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 1099511628211u;
    counter[0] = (uint32_t)hash;
    counter[1] = (uint32_t)(hash >> 32);
    philox4x32(counter, seed_words, out);
    key[0] = out[0];
    key[1] = out[1];
}

struct synth synth_open(uint64_t seed, const char *name, size_t rows, size_t cols)
{
    struct synth s = {.rows = rows, .cols = cols, .sigma = 1 / sqrt((double)cols)};

    key_make(seed, name, s.key);
    if (ends_in(name, "norm.weight")) {
        s.mean = 1;
        s.sigma = NORM_SPREAD;
    } else if (ends_in(name, "mlp.gate.weight")) {
        s.sigma *= ROUTER_SPREAD;
    } else if (ends_in(name, "lm_head.weight")) {
        s.sigma *= LOGIT_SPREAD;
    }
    return s;
}

// what: what the draw is for, SYNTH_DRAW_*
static void draw(const struct synth *s, uint32_t what, uint64_t index, uint32_t out[4])
{
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), what, 0};

    philox4x32(counter, s->key, out);
}

static size_t blocks(size_t n)
{
    return (n + FP8_BLOCK - 1) / FP8_BLOCK;
}

// Which columns are outliers, [cols]; free().
static uint8_t *outliers_find(const struct synth *s)
{
    uint8_t *outlier = memory_zeroed(s->cols, 1);
    uint32_t out[4];

    for (size_t c = 0; c < s->cols; c += 4) {
        draw(s, SYNTH_DRAW_COLUMN, c / 4, out);
        for (size_t i = 0; i < 4 && c + i < s->cols; i++)
            outlier[c + i] = out[i] % SYNTH_OUTLIERS == 0;
    }
    return outlier;
}

// A row of the tensor; loud: which blocks hold an outlier column.
static void row_fill(const struct synth *s, size_t row, const uint8_t *outlier, const uint8_t *loud,
                     uint8_t *codes)
{
    uint64_t first = (uint64_t)row * ((s->cols + SYNTH_CODES_A_DRAW - 1) / SYNTH_CODES_A_DRAW);
    uint32_t out[4];

    for (size_t c = 0; c < s->cols; c += SYNTH_CODES_A_DRAW) {
        draw(s, SYNTH_DRAW_CODES, first + c / SYNTH_CODES_A_DRAW, out);
        for (size_t i = 0; i < SYNTH_CODES_A_DRAW && c + i < s->cols; i++) {
            uint16_t bits = (uint16_t)(out[i / 2] >> (i % 2 * 16));
            bool wide = outlier[c + i] || !loud[(c + i) / FP8_BLOCK];
            codes[c + i] = wide ? plain[bits] : quiet[bits];
        }
    }
}

// The scale of a block, and its largest code at a place drawn among its outlier columns, or all.
static float block_finish(const struct synth *s, size_t block_row, size_t block_col,
                          const uint8_t *outlier, bool loud, uint8_t *codes, size_t rows)
{
    size_t first = block_col * FP8_BLOCK, cols = s->cols - first, place, col = 0;
    size_t candidates = 0;
    uint32_t out[4];
    double scale;

    cols = cols < FP8_BLOCK ? cols : FP8_BLOCK;
    draw(s, SYNTH_DRAW_BLOCK, (uint64_t)block_row * blocks(s->cols) + block_col, out);
    for (size_t c = 0; c < cols; c++)
        candidates += !loud || outlier[first + c];
    place = out[1] % candidates;
    for (size_t c = 0; c < cols; c++)
        if ((!loud || outlier[first + c]) && place-- == 0)
            col = c;
    codes[out[2] % rows * s->cols + first + col] = (uint8_t)(LARGEST_CODE | (out[3] & 0x80));
    scale = s->sigma * SYNTH_AMAX / (double)E4M3_MAX * (loud ? SYNTH_OUTLIER : 1);
    scale *= 1 + SYNTH_SCALE_SPREAD * ((double)philox_uniform(out[0]) - 0.5);
    return bf16_round((float)scale);
}

void synth_codes(const struct synth *s, size_t first, size_t rows, uint8_t *codes, float *scales)
{
    size_t columns = blocks(s->cols);
    uint8_t *outlier = outliers_find(s), *loud = memory_zeroed(columns, 1);

    pthread_once(&tables_once, tables_fill);
    for (size_t c = 0; c < s->cols; c++)
        loud[c / FP8_BLOCK] |= outlier[c];
    for (size_t r = 0; r < rows; r++)
        row_fill(s, first + r, outlier, loud, codes + r * s->cols);
    for (size_t r = 0; r < rows; r += FP8_BLOCK)
        for (size_t b = 0; b < columns; b++)
            scales[r / FP8_BLOCK * columns + b] =
                block_finish(s, (first + r) / FP8_BLOCK, b, outlier, loud[b], codes + r * s->cols,
                             rows - r < FP8_BLOCK ? rows - r : FP8_BLOCK);
    free(loud);
    free(outlier);
}

// The sum of four uniform values is as good as Gaussian here and needs no rounding function.
static double gaussian(uint32_t low, uint32_t high)
{
    double sum = (double)(low & 0xffff) + (double)(low >> 16) + (double)(high & 0xffff) +
                 (double)(high >> 16);

    return (sum - SYNTH_SUM_MEAN) / SYNTH_SUM_DEVIATION;
}

void synth_bf16(const struct synth *s, size_t first, size_t rows, uint16_t *values)
{
    uint64_t draws = (s->cols + SYNTH_VALUES_A_DRAW - 1) / SYNTH_VALUES_A_DRAW;
    uint32_t out[4];

    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < s->cols; c += SYNTH_VALUES_A_DRAW) {
            draw(s, SYNTH_DRAW_VALUES, (first + r) * draws + c / SYNTH_VALUES_A_DRAW, out);
            for (size_t i = 0; i < SYNTH_VALUES_A_DRAW && c + i < s->cols; i++)
                values[r * s->cols + c + i] = bf16_from_float(
                    (float)(s->mean + s->sigma * gaussian(out[2 * i], out[2 * i + 1])));
        }
}
