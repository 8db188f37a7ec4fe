// SPDX-License-Identifier: Apache-2.0
// Quantisation, frozen products, LoRA, norm, loss and optimizer against plain fp64 loops.
#include "unit/ops_fixture.h"

#include <float.h>

// Nearest e4m3 value, of two equally near the one with the even code.
static double e4m3_nearest(double x)
{
    int best = 0;

    for (int code = 0; code < 0x7f; code++) {
        double d = fabs(fabs(x) - (double)e4m3_values[code]);
        double least = fabs(fabs(x) - (double)e4m3_values[best]);
        if (d < least || (d == least && code % 2 == 0))
            best = code;
    }
    return copysign((double)e4m3_values[best], x);
}

static void quantise_values(void **state)
{
    real *x = random_reals(1, 128, 3), y[128];
    float amax = 0, scale, inverse;
    (void)state;
    for (int i = 0; i < 128; i++) {
        x[i] *= powf(0.9f, (float)i); // down to subnormal codes
        amax = fmaxf(amax, fabsf(x[i]));
    }
    quantise_block(x, 128, y);
    scale = amax / 448;
    inverse = 1 / scale;
    for (int i = 0; i < 128; i++)
        assert_true(y[i] == (float)e4m3_nearest((double)(x[i] * inverse)) * scale);
    free(x);
}

static void quantise_extremes(void **state)
{
    real zeros[128] = {0}, y[128], x[128];
    (void)state;
    quantise_block(zeros, 128, y);
    for (int i = 0; i < 128; i++)
        assert_true(y[i] == 0);
    for (int i = 0; i < 128; i++)
        x[i] = (real)i;
    x[5] = NAN;
    quantise_block(x, 128, y);
    assert_true(isnan(y[5]));
    assert_true(y[127] == 127 && fabsf(y[64] - 64) < 4);
    x[5] = INFINITY;
    quantise_block(x, 128, y);
    assert_true(isnan(y[5]) && isnan(y[127]));
    x[0] = FLT_MIN / 4; // its scale would be subnormal
    quantise_block(x, 1, y);
    assert_true(isfinite(y[0]) && y[0] <= x[0] * 2);
}

static void quantise_parts(void **state)
{
    int parts[2] = {192, 192};
    real *x = random_reals(2, 2 * 384, 1), *y = memory_zeroed(2 * 384, sizeof *y), expected[128];
    static const int starts[] = {0, 128, 192, 320}, lengths[] = {128, 64, 128, 64};
    (void)state;
    for (int i = 192; i < 384; i++)
        x[i] *= 1000; // the second part's scale must not reach into the first
    quantise_rows(true, x, 2, 384, parts, 2, y);
    for (int r = 0; r < 2; r++)
        for (int b = 0; b < 4; b++) {
            quantise_block(x + r * 384 + starts[b], lengths[b], expected);
            assert_memory_equal(y + r * 384 + starts[b], expected,
                                (size_t)lengths[b] * sizeof(real));
        }
    quantise_rows(false, x, 2, 384, parts, 2, y);
    assert_memory_equal(x, y, 2 * 384 * sizeof(real));
    free(y);
    free(x);
}

// Two matrices [200 + 130, 150]: partial blocks, a part that restarts, more rows than a tile.
static void frozen_products(void **state)
{
    enum { ROWS = 330, COLS = 150, N = 7 };
    struct fp8_matrix w = {.count = 2,
                           .rows = ROWS,
                           .cols = COLS,
                           .parts = 2,
                           .part_rows = {200, 130},
                           .scale_rows = 4,
                           .scale_cols = 2};
    real *x = random_reals(3, N * COLS, 1), *dy = random_reals(4, N * ROWS, 1);
    real *y = memory_zeroed(N * ROWS, sizeof *y), *dx = memory_zeroed(N * COLS, sizeof *dx), *tile;
    double *expected = memory_zeroed(N * ROWS, sizeof *expected);
    double *dexpected = memory_zeroed(N * COLS, sizeof *dexpected);
    (void)state;
    w.data = memory_zeroed(2 * ROWS * COLS, 1);
    w.scale = memory_zeroed(2 * 4 * 2, sizeof *w.scale);
    for (size_t i = 0; i < 2 * ROWS * COLS; i++)
        w.data[i] = (uint8_t)(i * 37 % 251 == 127 ? 0 : i * 37 % 251); // 0x7f is NaN
    for (int i = 0; i < 16; i++)
        w.scale[i] = 0.001f * (float)(i + 1);
    for (int n = 0; n < N; n++)
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < COLS; c++) {
                int block = r < 200 ? r / 128 : 2 + (r - 200) / 128;
                double weight = (double)e4m3_values[w.data[(ROWS + r) * COLS + c]] *
                                (double)w.scale[8 + block * 2 + c / 128];
                expected[n * ROWS + r] += (double)x[n * COLS + c] * weight;
                dexpected[n * COLS + c] += (double)dy[n * ROWS + r] * weight;
            }
    tile = memory_zeroed(base_tile_size(&w), sizeof *tile);
    base_forward(&w, 1, x, N, y, tile);
    close_to("y", y, expected, N * ROWS, 1e-6);
    base_backward(&w, 1, dy, N, dx, tile);
    close_to("dx", dx, dexpected, N * COLS, 1e-6);
    free(tile);
    free(w.scale);
    free(w.data);
    free(dexpected);
    free(expected);
    free(dx);
    free(y);
    free(dy);
    free(x);
}

// A row's dropout depends on its token's key alone, not on its place, block or neighbours.
static void dropout_by_token(void **state)
{
    enum { ROWS = 700, IN = 50, OUT = 6, RANK = IN };
    struct lora lora = {.count = 1, .rank = RANK, .scale = 1, .dropout = 0.5, .expert_first = 3};
    real *x = memory_zeroed(ROWS * IN, sizeof *x), *a = memory_zeroed(RANK * IN, sizeof *a);
    real *b = memory_zeroed(OUT * RANK, sizeof *b), *y = memory_zeroed(ROWS * OUT, sizeof *y);
    real *again = memory_zeroed(ROWS * OUT, sizeof *again), *scratch;
    uint64_t *keys = memory_zeroed(ROWS, sizeof *keys), *reversed = memory_zeroed(ROWS, 8);
    double mean = 0;
    (void)state;
    for (int i = 0; i < ROWS * IN; i++)
        x[i] = 1;
    for (int i = 0; i < RANK; i++)
        a[i * IN + i] = 1; // S is the dropped row itself
    for (int i = 0; i < RANK; i++)
        b[0 * RANK + i] = 1, b[1 * RANK + i] = (real)(i * i);
    for (int r = 0; r < ROWS; r++) {
        keys[r] = (1ull << 40) + (uint64_t)r;
        reversed[ROWS - 1 - r] = keys[r];
    }
    lora.part[0] = (struct lora_part){.a = a, .b = b, .rows = OUT, .key = {11, 12}};
    scratch = memory_zeroed(lora_scratch_size(&lora, IN), sizeof *scratch);
    lora_forward(false, &lora, 0, keys, x, ROWS, IN, y, OUT, scratch);
    lora_forward(false, &lora, 0, reversed, x, ROWS, IN, again, OUT, scratch);
    for (int r = 0; r < ROWS; r++) {
        mean += (double)y[r * OUT] / (ROWS * IN);
        assert_memory_equal(y + r * OUT, again + (ROWS - 1 - r) * OUT, OUT * sizeof(real));
    }
    assert_true(fabs(mean - 1) < 0.02); // the kept are scaled by 1 / (1 - p)
    memset(again, 0, ROWS * OUT * sizeof *again);
    lora.expert_first = 4;
    lora_forward(false, &lora, 0, keys, x, ROWS, IN, again, OUT, scratch);
    assert_memory_not_equal(y, again, ROWS * OUT * sizeof *y);
    free(scratch);
    free(reversed);
    free(keys);
    free(again);
    free(y);
    free(b);
    free(a);
    free(x);
}

static const struct model small = {
    .layers = 1, .hidden = 24, .experts = 4, .top_k = 2, .vocab = 1500, .rms_eps = 1e-6};

static void norm(void **state)
{
    enum { ROWS = 3, COLS = 200 };
    struct fixture f;
    real *x = random_reals(5, ROWS * COLS, 1), *delta = random_reals(6, ROWS * COLS, 1);
    real *sum = random_reals(7, ROWS * COLS, 1), *y = random_reals(7, ROWS * COLS, 1);
    float *gain = random_reals(8, COLS, 2);
    double *expected = memory_zeroed(ROWS * COLS, sizeof *expected);
    (void)state;
    fixture_open(&f, &small, NUMERICS_EXACT);
    for (int r = 0; r < ROWS; r++) {
        double squares = 0;
        for (int c = 0; c < COLS; c++)
            squares += pow((double)x[r * COLS + c] + (double)delta[r * COLS + c], 2);
        for (int c = 0; c < COLS; c++)
            expected[r * COLS + c] = ((double)x[r * COLS + c] + (double)delta[r * COLS + c]) /
                                     sqrt(squares / COLS + 1e-6) * (double)gain[c];
    }
    check_ok(f.ops->norm_forward(f.ops, x, delta, gain, ROWS, COLS, sum, y, NULL, &f.e), &f.e);
    close_to("norm", y, expected, ROWS * COLS, 1e-6);
    assert_true(sum[9] == x[9] + delta[9]);
    fixture_close(&f);
    fixture_open(&f, &small, NUMERICS_FP8);
    check_ok(f.ops->norm_forward(f.ops, x, delta, gain, ROWS, COLS, sum, y, NULL, &f.e), &f.e);
    close_to("norm in bf16", y, expected, ROWS * COLS, 0x1p-7);
    for (int i = 0; i < ROWS * COLS; i++)
        assert_true(y[i] == bf16_round(y[i]) && sum[i] == bf16_round(x[i] + delta[i]));
    fixture_close(&f);
    free(expected);
    free(gain);
    free(y);
    free(sum);
    free(delta);
    free(x);
}

static void cross_entropy(void **state)
{
    enum { ROWS = 5, VOCAB = 1500 };
    struct fixture f;
    real *logits = random_reals(9, ROWS * VOCAB, 30), *kept = random_reals(9, ROWS * VOCAB, 30);
    int32_t targets[ROWS] = {3, -1, 1499, 0, -1};
    double *expected = memory_zeroed(ROWS * VOCAB, sizeof *expected), loss = 0, sum = 100;
    (void)state;
    fixture_open(&f, &small, NUMERICS_EXACT);
    for (int r = 0; r < ROWS; r++) {
        double total = 0;
        for (int v = 0; v < VOCAB; v++)
            total += exp((double)logits[r * VOCAB + v]);
        for (int v = 0; v < VOCAB && targets[r] >= 0; v++)
            expected[r * VOCAB + v] =
                0.5 * (exp((double)logits[r * VOCAB + v]) / total - (v == targets[r]));
        if (targets[r] >= 0)
            loss += log(total) - (double)logits[r * VOCAB + targets[r]];
    }
    check_ok(f.ops->cross_entropy(f.ops, logits, targets, ROWS, false, 0.5, &sum, &f.e), &f.e);
    assert_true(fabs(sum - 100 - loss) < 1e-5 * loss);
    assert_memory_equal(logits, kept, ROWS * VOCAB * sizeof(real));
    check_ok(f.ops->cross_entropy(f.ops, logits, targets, ROWS, true, 0.5, &sum, &f.e), &f.e);
    assert_true(fabs(sum - 100 - 2 * loss) < 1e-5 * loss);
    close_to("dlogits", logits, expected, ROWS * VOCAB, 1e-5);
    fixture_close(&f);
    free(expected);
    free(kept);
    free(logits);
}

static void head(void **state)
{
    enum { ROWS = 3, VOCAB = 1500, HIDDEN = 24 };
    struct fixture f;
    real *h = random_reals(10, ROWS * HIDDEN, 1), *d = random_reals(11, ROWS * VOCAB, 1);
    real *weights = random_reals(12, VOCAB * HIDDEN, 1), *dh = random_reals(13, ROWS * HIDDEN, 1);
    real *logits = memory_zeroed(ROWS * VOCAB, sizeof *logits);
    uint16_t *table = memory_zeroed(VOCAB * HIDDEN, sizeof *table);
    double *expected = memory_zeroed(ROWS * VOCAB, sizeof *expected);
    double *dexpected = memory_zeroed(ROWS * HIDDEN, sizeof *dexpected);
    (void)state;
    fixture_open(&f, &small, NUMERICS_EXACT);
    for (int i = 0; i < VOCAB * HIDDEN; i++)
        table[i] = bf16_from_float(weights[i]);
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VOCAB; v++)
            for (int c = 0; c < HIDDEN; c++) {
                double w = (double)bf16_to_float(table[v * HIDDEN + c]);
                expected[r * VOCAB + v] += (double)h[r * HIDDEN + c] * w;
                dexpected[r * HIDDEN + c] += (double)d[r * VOCAB + v] * w;
            }
    check_ok(f.ops->head_forward(f.ops, h, table, ROWS, logits, &f.e), &f.e);
    close_to("logits", logits, expected, ROWS * VOCAB, 1e-6);
    check_ok(f.ops->head_backward(f.ops, d, table, ROWS, dh, &f.e), &f.e);
    close_to("dh", dh, dexpected, ROWS * HIDDEN, 1e-5);
    fixture_close(&f);
    free(dexpected);
    free(expected);
    free(table);
    free(logits);
    free(dh);
    free(weights);
    free(d);
    free(h);
}

static void optimizer(void **state)
{
    enum { COUNT = 70000 };
    struct fixture f;
    struct adamw adamw = {
        .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    real *p = random_reals(14, COUNT, 1), *g = random_reals(15, COUNT, 1);
    real *m = memory_zeroed(COUNT, sizeof *m), *v = memory_zeroed(COUNT, sizeof *v);
    const struct moment first = {.values = m}, second = {.values = v};
    double *expected = memory_zeroed(COUNT, sizeof *expected), squares = 0, sum;
    (void)state;
    fixture_open(&f, &small, NUMERICS_EXACT);
    for (int i = 0; i < COUNT; i++) {
        double em = 0, ev = 0, gradient = 0.5 * (double)g[i];
        squares += (double)g[i] * (double)g[i];
        expected[i] = (double)p[i];
        for (int t = 1; t <= 3; t++) {
            em = 0.9 * em + 0.1 * gradient;
            ev = 0.95 * ev + 0.05 * gradient * gradient;
            expected[i] -= 0.01 * 0.1 * expected[i];
            expected[i] -= 0.01 * (em / (1 - pow(0.9, t))) / (sqrt(ev / (1 - pow(0.95, t))) + 1e-8);
        }
    }
    for (adamw.step = 1; adamw.step <= 3; adamw.step++)
        check_ok(f.ops->adamw(f.ops, &adamw, 0.5, COUNT, p, g, &first, &second, &f.e), &f.e);
    close_to("adamw", p, expected, COUNT, 1e-6);
    check_ok(f.ops->sum_squares(f.ops, g, COUNT, &sum, &f.e), &f.e);
    assert_true(fabs(sum - squares) < 1e-12 * squares);
    check_ok(f.ops->scale(f.ops, g, COUNT, -2, &f.e), &f.e);
    check_ok(f.ops->sum_squares(f.ops, g, COUNT, &sum, &f.e), &f.e);
    assert_true(fabs(sum - 4 * squares) < 1e-12 * squares);
    fixture_close(&f);
    free(expected);
    free(v);
    free(m);
    free(g);
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantise_values),  cmocka_unit_test(quantise_extremes),
        cmocka_unit_test(quantise_parts),   cmocka_unit_test(frozen_products),
        cmocka_unit_test(dropout_by_token), cmocka_unit_test(norm),
        cmocka_unit_test(cross_entropy),    cmocka_unit_test(head),
        cmocka_unit_test(optimizer),
    };
    return cmocka_run_group_tests_name("ops", tests, NULL, NULL);
}
