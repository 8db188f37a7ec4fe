// SPDX-License-Identifier: Apache-2.0
// Some rows of one tensor on their way from the checkpoint to their place in memory.
#include "weights/piece.h"

#include "base/floats.h"
#include "base/memory.h"
#include "job/model.h"
#include "weights/quantise.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#define CHUNK 65536 // elements converted at once

static size_t blocks(size_t n)
{
    return (n + FP8_BLOCK - 1) / FP8_BLOCK;
}

static int refuse_value(const struct safetensors *file, const struct tensor *t, size_t row,
                        size_t col, struct fl_error *e)
{
    return error_set(e, -EINVAL,
                     "%s: tensor '%s': value [%zu, %zu] is not finite: the checkpoint is damaged, "
                     "copy or download it again",
                     safetensors_path(file), t->name, row, col);
}

static void floats_convert(enum tensor_type type, const void *raw, float *x, size_t count)
{
    const uint16_t *h = raw;

    if (type == TENSOR_BF16)
        for (size_t i = 0; i < count; i++)
            x[i] = bf16_to_float(h[i]);
    else if (type == TENSOR_F16)
        for (size_t i = 0; i < count; i++)
            x[i] = half_to_float(h[i]);
    else
        memcpy(x, raw, count * sizeof *x);
}

// count elements from element first as floats; raw holds count elements.
static int floats_read(const struct safetensors *file, const struct tensor *t, size_t first,
                       size_t count, void *raw, float *x, uint64_t *bytes, struct fl_error *e)
{
    size_t size = (size_t)tensor_type_bytes(t->type);
    int rc = safetensors_read(file, t, first * size, raw, count * size, e);

    if (rc < 0)
        return rc;
    floats_convert(t->type, raw, x, count);
    *bytes += count * size;
    return 0;
}

// Index of the first value that is not finite, or count.
static size_t finite_check(const float *x, size_t count)
{
    uint32_t bad = 0;
    size_t i = 0;

#pragma omp simd reduction(| : bad)
    for (size_t j = 0; j < count; j++)
        bad |= (float_bits(x[j]) & 0x7f800000) == 0x7f800000;
    if (!bad)
        return count;
    while (isfinite(x[i]))
        i++;
    return i;
}

// PIECE_FLOAT, and PIECE_BF16 of another type.
static int read_converted(const struct piece *p, uint64_t *bytes, struct fl_error *e)
{
    size_t first = p->first_row * p->cols, total = p->rows * p->cols;
    size_t chunk = total < CHUNK ? total : CHUNK;
    uint32_t *raw = memory_zeroed(chunk, sizeof *raw);
    float *x = memory_zeroed(chunk, sizeof *x);
    int rc = 0;

    for (size_t done = 0; done < total && rc == 0; done += chunk) {
        size_t n = total - done < chunk ? total - done : chunk, bad;
        rc = floats_read(p->file, p->tensor, first + done, n, raw, x, bytes, e);
        if (rc < 0)
            break;
        bad = finite_check(x, n);
        if (bad < n) {
            bad += first + done;
            rc = refuse_value(p->file, p->tensor, bad / p->cols, bad % p->cols, e);
        } else if (p->kind == PIECE_FLOAT) {
            memcpy((float *)p->data + done, x, n * sizeof *x);
        } else {
            for (size_t i = 0; i < n; i++)
                ((uint16_t *)p->data)[done + i] = bf16_from_float(x[i]);
        }
    }
    free(raw);
    free(x);
    return rc;
}

static int read_bf16(const struct piece *p, uint64_t *bytes, struct fl_error *e)
{
    size_t count = p->rows * p->cols, size = count * sizeof(uint16_t);
    const uint16_t *h = p->data;
    uint16_t bad = 0;
    int rc =
        safetensors_read(p->file, p->tensor, p->first_row * p->cols * sizeof *h, p->data, size, e);

    if (rc < 0)
        return rc;
    *bytes += size;
#pragma omp simd reduction(| : bad)
    for (size_t i = 0; i < count; i++)
        bad |= (h[i] & 0x7f80) == 0x7f80;
    for (size_t i = 0; bad; i++)
        if ((h[i] & 0x7f80) == 0x7f80)
            return refuse_value(p->file, p->tensor, p->first_row + i / p->cols, i % p->cols, e);
    return 0;
}

// All codes of the block are +0 or -0.
static bool block_is_zero(const struct piece *p, size_t block_row, size_t block_col)
{
    size_t first = block_col * FP8_BLOCK;
    size_t width = p->cols - first < FP8_BLOCK ? p->cols - first : FP8_BLOCK;
    size_t end = (block_row + 1) * FP8_BLOCK < p->rows ? (block_row + 1) * FP8_BLOCK : p->rows;

    for (size_t r = block_row * FP8_BLOCK; r < end; r++) {
        const uint8_t *codes = (const uint8_t *)p->data + r * p->cols + first;
        for (size_t c = 0; c < width; c++)
            if (codes[c] & 0x7f)
                return false;
    }
    return true;
}

static int scales_check(const struct piece *p, struct fl_error *e)
{
    size_t columns = blocks(p->cols), first = p->first_row / FP8_BLOCK;

    for (size_t i = 0; i < blocks(p->rows) * columns; i++) {
        float s = p->scales[i];
        if ((isfinite(s) && s > 0) || (s == 0 && block_is_zero(p, i / columns, i % columns)))
            continue;
        return error_set(e, -EINVAL,
                         "%s: tensor '%s': scale %g of block [%zu, %zu] is not finite and "
                         "positive: the checkpoint is damaged, copy or download it again",
                         safetensors_path(p->scale_file), p->scale->name, s, first + i / columns,
                         i % columns);
    }
    return 0;
}

// e4m3 has no infinity; 0x7f and 0xff are its NaNs.
static int codes_check(const struct piece *p, struct fl_error *e)
{
    for (size_t r = 0; r < p->rows; r++) {
        const uint8_t *codes = (const uint8_t *)p->data + r * p->cols;
        uint8_t bad = 0;
#pragma omp simd reduction(| : bad)
        for (size_t c = 0; c < p->cols; c++)
            bad |= (codes[c] & 0x7f) == 0x7f;
        for (size_t c = 0; bad; c++)
            if ((codes[c] & 0x7f) == 0x7f)
                return refuse_value(p->file, p->tensor, p->first_row + r, c, e);
    }
    return 0;
}

static int read_fp8(const struct piece *p, uint64_t *bytes, struct fl_error *e)
{
    size_t size = p->rows * p->cols, columns = blocks(p->cols), grid = blocks(p->rows) * columns;
    uint32_t *raw = memory_zeroed(grid, sizeof *raw);
    int rc;

    rc = safetensors_read(p->file, p->tensor, p->first_row * p->cols, p->data, size, e);
    if (rc < 0)
        goto out;
    *bytes += size;
    rc = floats_read(p->scale_file, p->scale, p->first_row / FP8_BLOCK * columns, grid, raw,
                     p->scales, bytes, e);
    if (rc == 0)
        rc = scales_check(p, e);
    if (rc == 0)
        rc = codes_check(p, e);
out:
    free(raw);
    return rc;
}

static int read_quantised(const struct piece *p, uint64_t *bytes, struct fl_error *e)
{
    size_t chunk = (p->rows < FP8_BLOCK ? p->rows : FP8_BLOCK) * p->cols;
    uint32_t *raw = memory_zeroed(chunk, sizeof *raw);
    float *x = memory_zeroed(chunk, sizeof *x);
    int rc = 0;

    for (size_t r = 0; r < p->rows; r += FP8_BLOCK) {
        size_t rows = p->rows - r < FP8_BLOCK ? p->rows - r : FP8_BLOCK, n = rows * p->cols, bad;
        size_t first = (p->first_row + r) * p->cols;
        rc = floats_read(p->file, p->tensor, first, n, raw, x, bytes, e);
        if (rc < 0)
            break;
        bad = finite_check(x, n);
        if (bad < n) {
            bad += first;
            rc = refuse_value(p->file, p->tensor, bad / p->cols, bad % p->cols, e);
            break;
        }
        block_row_quantise(x, (int)rows, (int)p->cols, (uint8_t *)p->data + r * p->cols,
                           p->scales + r / FP8_BLOCK * blocks(p->cols));
    }
    free(raw);
    free(x);
    return rc;
}

// PIECE_FP8, PIECE_BF16, or PIECE_FLOAT by way of bf16, which a checkpoint would hold.
static int make(const struct piece *p, uint64_t *bytes)
{
    size_t count = p->rows * p->cols;
    uint16_t *values;

    if (p->kind == PIECE_FP8) {
        synth_codes(&p->synth, p->first_row, p->rows, p->data, p->scales);
        *bytes += count;
        return 0;
    }
    values = p->kind == PIECE_BF16 ? p->data : memory_zeroed(count, sizeof *values);
    synth_bf16(&p->synth, p->first_row, p->rows, values);
    *bytes += count * sizeof *values;
    if (p->kind == PIECE_BF16)
        return 0;
    for (size_t i = 0; i < count; i++)
        ((float *)p->data)[i] = bf16_to_float(values[i]);
    free(values);
    return 0;
}

int piece_read(const struct piece *piece, uint64_t *bytes, struct fl_error *e)
{
    if (!piece->tensor)
        return make(piece, bytes);
    switch (piece->kind) {
    case PIECE_FP8:
        return read_fp8(piece, bytes, e);
    case PIECE_QUANTISE:
        return read_quantised(piece, bytes, e);
    case PIECE_BF16:
        if (piece->tensor->type == TENSOR_BF16)
            return read_bf16(piece, bytes, e);
        break;
    case PIECE_FLOAT:
        break;
    }
    return read_converted(piece, bytes, e);
}
