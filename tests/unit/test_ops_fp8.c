// SPDX-License-Identifier: Apache-2.0
// The reference backend in fp8 numerics, product by product: what is rounded to bf16, what to e4m3,
// and what stays in fp32.
#include "unit/ops_fixture.h"

enum { ROWS = 5, HIDDEN = 160, WIDTH = 144 };

static const struct model shape = {.hidden = HIDDEN,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .head_dim = HIDDEN,
                                   .experts = 1,
                                   .top_k = 1,
                                   .expert_width = WIDTH,
                                   .vocab = 8,
                                   .rms_eps = 1e-6};

static const struct lora none = {0};

static struct fp8_matrix matrix(int rows, int cols, int parts)
{
    struct fp8_matrix w = {.count = 1, .rows = rows, .cols = cols, .parts = parts};
    size_t count = (size_t)rows * (size_t)cols, scales;

    for (int p = 0; p < parts; p++) {
        w.part_rows[p] = rows / parts;
        w.scale_rows += (rows / parts + FP8_BLOCK - 1) / FP8_BLOCK;
    }
    w.scale_cols = (cols + FP8_BLOCK - 1) / FP8_BLOCK;
    w.data = memory_zeroed(count, 1);
    scales = (size_t)w.scale_rows * (size_t)w.scale_cols;
    w.scale = memory_zeroed(scales, sizeof *w.scale);
    for (size_t i = 0; i < count; i++)
        w.data[i] = e4m3_from_float((float)((int)(i * 7919 % 801) - 400));
    for (size_t i = 0; i < scales; i++)
        w.scale[i] = 5e-4f + 1e-4f * (float)i;
    return w;
}

static void matrix_free(struct fp8_matrix *w)
{
    free(w->data);
    free(w->scale);
}

static void bf16(real *x, size_t count)
{
    round_rows(true, x, count);
}

// Blocks of the gradient restart with every part of the output, as those of the weights do.
static void dense_gradient_is_quantised(void **state)
{
    struct fp8_matrix w = matrix(3 * WIDTH, HIDDEN, 3);
    struct fixture f;
    real *dy = random_reals(1, ROWS * 3 * WIDTH, 1), *dx = random_reals(2, ROWS * HIDDEN, 1);
    real *dyq = random_reals(3, ROWS * 3 * WIDTH, 1), *expected = random_reals(4, ROWS * HIDDEN, 1);
    real *tile = memory_zeroed(base_tile_size(&w), sizeof *tile);
    (void)state;
    fixture_open(&f, &shape, NUMERICS_FP8);
    bf16(dy, ROWS * 3 * WIDTH);
    quantise_rows(true, dy, ROWS, 3 * WIDTH, w.part_rows, 3, dyq);
    base_backward(&w, 0, dyq, ROWS, expected, tile);
    bf16(expected, ROWS * HIDDEN);
    check_ok(f.ops->linear_backward(f.ops, &w, &none, NULL, NULL, dy, ROWS, dx, &f.e), &f.e);
    assert_memory_equal(dx, expected, ROWS * HIDDEN * sizeof *dx);
    fixture_close(&f);
    matrix_free(&w);
    free(tile);
    free(expected);
    free(dyq);
    free(dx);
    free(dy);
}

// With a great gate SwiGLU is gate * up, so the gradients are dact * up and dact * gate.
static void experts_gradient_is_quantised(void **state)
{
    struct fp8_matrix w = matrix(2 * WIDTH, HIDDEN, 2);
    struct group group = {.experts = 1, .rows = ROWS, .counts = (const int64_t[]){ROWS}};
    uint64_t keys[ROWS] = {0};
    struct fixture f;
    real *dact = random_reals(1, ROWS * WIDTH, 1), *dx = random_reals(2, ROWS * HIDDEN, 1);
    real *gate_up = random_reals(3, ROWS * 2 * WIDTH, 1), *d = random_reals(4, ROWS * 2 * WIDTH, 1);
    real *dq = random_reals(5, ROWS * 2 * WIDTH, 1), *expected = random_reals(6, ROWS * HIDDEN, 1);
    real *tile = memory_zeroed(base_tile_size(&w), sizeof *tile);
    (void)state;
    group.keys = keys;
    fixture_open(&f, &shape, NUMERICS_FP8);
    bf16(dact, ROWS * WIDTH);
    bf16(gate_up, ROWS * 2 * WIDTH);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < WIDTH; c++) {
            real *row = gate_up + r * 2 * WIDTH, a = dact[r * WIDTH + c];
            row[c] = 120;
            d[r * 2 * WIDTH + c] = a * row[WIDTH + c];
            d[r * 2 * WIDTH + WIDTH + c] = a * row[c];
        }
    bf16(d, ROWS * 2 * WIDTH);
    quantise_rows(true, d, ROWS, 2 * WIDTH, w.part_rows, 2, dq);
    base_backward(&w, 0, dq, ROWS, expected, tile);
    bf16(expected, ROWS * HIDDEN);
    check_ok(f.ops->fc1_backward(f.ops, &w, &none, &group, NULL, gate_up, dact, dx, &f.e), &f.e);
    assert_memory_equal(dx, expected, ROWS * HIDDEN * sizeof *dx);
    fixture_close(&f);
    matrix_free(&w);
    free(tile);
    free(expected);
    free(dq);
    free(d);
    free(gate_up);
    free(dx);
    free(dact);
}

// gate_up and act are stored in bf16, actq is made of the activation before it was rounded.
static void activation_is_quantised_once(void **state)
{
    struct fp8_matrix w = matrix(2 * WIDTH, HIDDEN, 2);
    struct group group = {.experts = 1, .rows = ROWS, .counts = (const int64_t[]){ROWS}};
    uint64_t keys[ROWS] = {0};
    struct fixture f, exact;
    real *x = random_reals(1, ROWS * HIDDEN, 1), *gate_up = random_reals(2, ROWS * 2 * WIDTH, 1);
    real *act = random_reals(3, ROWS * WIDTH, 1), *actq = random_reals(4, ROWS * WIDTH, 1);
    real *plain = random_reals(5, ROWS * WIDTH, 1), *other = random_reals(6, ROWS * WIDTH, 1);
    int width = WIDTH;
    (void)state;
    group.keys = keys;
    fixture_open(&f, &shape, NUMERICS_FP8);
    fixture_open(&exact, &shape, NUMERICS_EXACT);
    check_ok(exact.ops->fc1_forward(exact.ops, &w, &none, &group, x, gate_up, plain, other, &f.e),
             &f.e);
    check_ok(f.ops->fc1_forward(f.ops, &w, &none, &group, x, gate_up, act, actq, &f.e), &f.e);
    quantise_rows(true, plain, ROWS, WIDTH, &width, 1, other);
    assert_memory_equal(actq, other, ROWS * WIDTH * sizeof *actq);
    bf16(plain, ROWS * WIDTH);
    assert_memory_equal(act, plain, ROWS * WIDTH * sizeof *act);
    fixture_close(&exact);
    fixture_close(&f);
    matrix_free(&w);
    free(other);
    free(plain);
    free(actq);
    free(act);
    free(gate_up);
    free(x);
}

// The residual is rounded once; the norm is quantised from its fp32 values.
static void norm_is_quantised_once(void **state)
{
    struct fixture f, exact;
    float gain[HIDDEN];
    real *x = random_reals(1, ROWS * HIDDEN, 1), *delta = random_reals(2, ROWS * HIDDEN, 1);
    real *sum = random_reals(3, ROWS * HIDDEN, 1), *y = random_reals(4, ROWS * HIDDEN, 1);
    real *yq = random_reals(5, ROWS * HIDDEN, 1), *plain = random_reals(6, ROWS * HIDDEN, 1);
    real *expected = random_reals(7, ROWS * HIDDEN, 1);
    int hidden = HIDDEN;
    (void)state;
    for (int c = 0; c < HIDDEN; c++)
        gain[c] = 1 + 0.001f * (float)c;
    fixture_open(&f, &shape, NUMERICS_FP8);
    fixture_open(&exact, &shape, NUMERICS_EXACT);
    check_ok(f.ops->norm_forward(f.ops, x, delta, gain, ROWS, HIDDEN, sum, y, yq, &f.e), &f.e);
    for (int i = 0; i < ROWS * HIDDEN; i++)
        assert_true(sum[i] == (real)bf16_round((float)(x[i] + delta[i])));
    check_ok(
        exact.ops->norm_forward(exact.ops, sum, NULL, gain, ROWS, HIDDEN, NULL, plain, NULL, &f.e),
        &f.e);
    quantise_rows(true, plain, ROWS, HIDDEN, &hidden, 1, expected);
    assert_memory_equal(yq, expected, ROWS * HIDDEN * sizeof *yq);
    bf16(plain, ROWS * HIDDEN);
    assert_memory_equal(y, plain, ROWS * HIDDEN * sizeof *y);
    fixture_close(&exact);
    fixture_close(&f);
    free(expected);
    free(plain);
    free(yq);
    free(y);
    free(sum);
    free(delta);
    free(x);
}

// Every operand is 1 and a bit that bf16 does not hold; S and dS get theirs from a second term.
static void lora_operands_are_bf16(void **state)
{
    const real more = 1 + 0x1p-10f, little = 0x1p-10f;
    const real x[2] = {more, little}, a[2] = {more, more}, b[2] = {more, more};
    const real dy[2] = {more, little};
    real da[2] = {0}, db[2] = {0}, dx[2] = {0}, y[2] = {0};
    struct lora lora = {.count = 1,
                        .rank = 1,
                        .scale = 1,
                        .part = {{.a = a, .b = b, .da = da, .db = db, .rows = 2}}};
    real *scratch = memory_zeroed(lora_scratch_size(&lora, 2), sizeof *scratch);
    (void)state;
    lora_forward(true, &lora, 0, NULL, x, 1, 2, y, 2, scratch);
    assert_true(y[0] == 1 && y[1] == 1);
    lora_backward(true, &lora, 0, NULL, NULL, x, dy, 1, 2, 2, dx, scratch);
    assert_true(dx[0] == 1 && dx[1] == 1);
    assert_true(da[0] == 1 && da[1] == little);
    assert_true(db[0] == 1 && db[1] == little);
    lora_forward(false, &lora, 0, NULL, x, 1, 2, y, 2, scratch);
    assert_true(y[0] > 2 && y[1] > 2);
    free(scratch);
}

// Probabilities are rounded before the product with the values, their sum is not; then the output.
static void attention_output_is_bf16(void **state)
{
    enum { TOKENS = 3 };
    struct fixture f;
    struct model model = shape;
    real *qk, *qkv, *out, lse[TOKENS];
    const int32_t starts[] = {0, TOKENS};
    (void)state;
    model.head_dim = 8;
    fixture_open(&f, &model, NUMERICS_FP8);
    qk = random_reals(1, TOKENS * 16, 1);
    qkv = random_reals(2, TOKENS * 24, 1);
    out = random_reals(3, TOKENS * 8, 1);
    bf16(qk, TOKENS * 16);
    bf16(qkv, TOKENS * 24);
    check_ok(f.ops->attention_forward(f.ops, qk, qkv, starts, 1, out, lse, &f.e), &f.e);
    for (int t = 0; t < TOKENS; t++) { // probabilities before they are divided by their sum
        double p[TOKENS], top = -1e9, sum = 0;
        for (int k = 0; k <= t; k++) {
            p[k] = 0;
            for (int c = 0; c < 8; c++)
                p[k] += (double)qk[t * 16 + c] * (double)qk[k * 16 + 8 + c] / sqrt(8);
            top = fmax(top, p[k]);
        }
        for (int k = 0; k <= t; k++)
            sum += p[k] = exp(p[k] - top);
        for (int c = 0; c < 8; c++) {
            double o = 0;
            for (int k = 0; k <= t; k++)
                o += (double)bf16_round((float)p[k]) * (double)qkv[k * 24 + 16 + c];
            assert_true(out[t * 8 + c] == (real)bf16_round((float)(o / sum)));
        }
    }
    free(out);
    free(qkv);
    free(qk);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_gradient_is_quantised),
        cmocka_unit_test(experts_gradient_is_quantised),
        cmocka_unit_test(activation_is_quantised_once),
        cmocka_unit_test(norm_is_quantised_once),
        cmocka_unit_test(lora_operands_are_bf16),
        cmocka_unit_test(attention_output_is_bf16),
    };
    return cmocka_run_group_tests_name("ops in fp8 numerics", tests, NULL, NULL);
}
