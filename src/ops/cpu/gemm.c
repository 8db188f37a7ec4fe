// SPDX-License-Identifier: Apache-2.0
// Matrix products in real, and with frozen FP8 matrices dequantised a tile at a time.
#include "ops/cpu/cpu.h"

#include <cblas.h>

#ifdef FL_REAL_DOUBLE
#define cblas_gemm cblas_dgemm
#else
#define cblas_gemm cblas_sgemm
#endif

void gemm_nn(int m, int n, int k, real alpha, const real *a, int lda, const real *b, int ldb,
             real beta, real *c, int ldc)
{
    if (m > 0 && n > 0)
        cblas_gemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, alpha, a, lda, b, ldb, beta,
                   c, ldc);
}

void gemm_nt(int m, int n, int k, real alpha, const real *a, int lda, const real *b, int ldb,
             real beta, real *c, int ldc)
{
    if (m > 0 && n > 0)
        cblas_gemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, alpha, a, lda, b, ldb, beta, c,
                   ldc);
}

void gemm_tn(int m, int n, int k, real alpha, const real *a, int lda, const real *b, int ldb,
             real beta, real *c, int ldc)
{
    if (m > 0 && n > 0)
        cblas_gemm(CblasRowMajor, CblasTrans, CblasNoTrans, m, n, k, alpha, a, lda, b, ldb, beta, c,
                   ldc);
}

// The row of matrix scales that covers a row: the blocks restart with every part.
static int scale_row(const struct fp8_matrix *w, int row)
{
    int first = 0, part = 0;

    for (; part < w->parts - 1 && row >= w->part_rows[part]; part++) {
        row -= w->part_rows[part];
        first += (w->part_rows[part] + FP8_BLOCK - 1) / FP8_BLOCK;
    }
    return first + row / FP8_BLOCK;
}

// The code's seven bits are the top of a float whose exponent is 120 too small: scaling by 2^120
// is exact, for subnormals too. Frozen weights hold no NaN: the loader refuses it.
static void block_dequantise(const uint8_t *data, int count, float scale, real *to)
{
#pragma omp simd
    for (int i = 0; i < count; i++) {
        uint32_t magnitude = (uint32_t)(data[i] & 0x7f) << 20, sign = (uint32_t)(data[i] >> 7)
                                                                      << 31;
        to[i] = (real)(float_from_bits(magnitude | sign) * 0x1p120f * scale);
    }
}

static void tile_dequantise(const struct fp8_matrix *w, int index, int row, int rows, real *tile)
{
    const uint8_t *data = w->data + (size_t)index * (size_t)w->rows * (size_t)w->cols;
    const float *scales = w->scale + (size_t)index * (size_t)w->scale_rows * (size_t)w->scale_cols;

#pragma omp parallel for schedule(static)
    for (int r = row; r < row + rows; r++) {
        const uint8_t *from = data + (size_t)r * (size_t)w->cols;
        const float *scale = scales + (size_t)scale_row(w, r) * (size_t)w->scale_cols;
        real *to = tile + (size_t)(r - row) * (size_t)w->cols;
        for (int c = 0; c < w->cols; c += FP8_BLOCK)
            block_dequantise(from + c, w->cols - c < FP8_BLOCK ? w->cols - c : FP8_BLOCK,
                             scale[c / FP8_BLOCK], to + c);
    }
}

void base_forward(const struct fp8_matrix *w, int index, const real *x, int rows, real *y,
                  real *tile)
{
    for (int r = 0; r < w->rows && rows > 0; r += CPU_TILE_ROWS) {
        int n = w->rows - r < CPU_TILE_ROWS ? w->rows - r : CPU_TILE_ROWS;
        tile_dequantise(w, index, r, n, tile);
        gemm_nt(rows, n, w->cols, 1, x, w->cols, tile, w->cols, 0, y + r, w->rows);
    }
}

void base_backward(const struct fp8_matrix *w, int index, const real *dy, int rows, real *dx,
                   real *tile)
{
    for (int r = 0; r < w->rows && rows > 0; r += CPU_TILE_ROWS) {
        int n = w->rows - r < CPU_TILE_ROWS ? w->rows - r : CPU_TILE_ROWS;
        tile_dequantise(w, index, r, n, tile);
        gemm_nn(rows, w->cols, n, 1, dy + r, w->rows, tile, w->cols, r > 0, dx, w->cols);
    }
}
