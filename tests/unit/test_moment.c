// SPDX-License-Identifier: Apache-2.0
// ops/moment: what each storage type keeps of a value; AdamW over every pair of types beside one in
// double whose moments are rounded in the same way.
#include "unit/check.h"

#include "base/memory.h"
#include "ops/moment.h"
#include "unit/ops_fixture.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#define TYPES 4

static const struct model none = {.hidden = 128, .vocab = 1}; // AdamW asks for no shape

static const enum storage types[TYPES] = {STORAGE_FP32, STORAGE_FP16, STORAGE_BF16, STORAGE_FP8};

static struct moment moment_make(enum storage type, bool root, size_t count)
{
    struct moment m = {.type = type, .root = root};

    m.values = memory_zeroed(moment_values_bytes(type, count), 1);
    m.scales = memory_zeroed(moment_scales_bytes(type, count) + 1, 1);
    return m;
}

static void moment_clear(struct moment *m)
{
    free(m->values);
    free(m->scales);
}

// Half a unit in the last place of what is stored, relative and, for the smallest values of a block
// with this largest one, absolute. Squares of roots err twice as much.
static double bound(const struct moment *m, double x, double amax)
{
    static const double relative[] = {0, 0x1p-11, 0x1p-8, 0x1p-4};
    static const double absolute[] = {0, 0x1p-25 / 65504, 0, 0x1p-10 / 448};
    double epsilon = relative[m->type] * (1 + 1e-5), root;

    if (m->type != STORAGE_FP8 || !m->root)
        return epsilon * fabs(x) + absolute[m->type] * amax + 1e-6 * fabs(x) * (m->type != 0);
    // The smallest code stands for what would be 0.
    root = (epsilon * sqrt(x) + 2 * absolute[m->type] * sqrt(amax)) * (1 + 1e-5);
    return 2 * sqrt(x) * root + root * root + 1e-6 * x;
}

// Blocks of one size of value, and blocks that span 30 orders of magnitude; the last one is short.
static void keeps_values(void **state)
{
    enum { COUNT = 10 * MOMENT_BLOCK + 37 };
    real *x = random_reals(3, COUNT, 1), *y = memory_zeroed(COUNT, sizeof *y);
    (void)state;

    for (size_t i = 0; i < COUNT; i++) {
        size_t block = i / MOMENT_BLOCK;
        x[i] *= (real)pow(10, block < 5 ? -3 * (double)block : -(double)(i * 7 % 30));
        if (i % 50 == 9 || block == 4)
            x[i] = 0;
    }
    for (int t = 0; t < TYPES; t++)
        for (int root = 0; root < 2; root++) {
            struct moment m = moment_make(types[t], root, COUNT);
            for (size_t b = 0; b * MOMENT_BLOCK < COUNT; b++) {
                size_t first = b * MOMENT_BLOCK;
                size_t n = COUNT - first < MOMENT_BLOCK ? COUNT - first : MOMENT_BLOCK;
                double amax = 0;
                for (size_t i = first; i < first + n; i++) {
                    x[i] = root ? (real)fabs((double)x[i]) : x[i];
                    amax = fmax(amax, fabs((double)x[i]));
                }
                moment_load(&m, b, n, y + first);
                for (size_t i = first; i < first + n; i++)
                    assert_true(y[i] == 0); // as zeroed
                moment_store(&m, b, n, x + first);
                moment_load(&m, b, n, y + first);
                for (size_t i = first; i < first + n; i++) {
                    double error = fabs((double)y[i] - (double)x[i]);
                    if (error > bound(&m, (double)x[i], amax))
                        fail_msg("type %d root %d: %g became %g, largest %g", t, root, (double)x[i],
                                 (double)y[i], amax);
                    assert_true(x[i] != 0 || y[i] == 0);
                    // Nothing divides by a second moment that was flushed to 0.
                    assert_true(types[t] != STORAGE_FP8 || !root || x[i] == 0 ||
                                (double)x[i] < 1e-30 * amax || y[i] > 0);
                }
            }
            moment_clear(&m);
        }
    free(y);
    free(x);
}

// Rounds count values as the moment stores them.
static void rounded(struct moment *m, size_t count, double *x)
{
    real block[MOMENT_BLOCK];

    for (size_t first = 0; first < count; first += MOMENT_BLOCK) {
        size_t n = count - first < MOMENT_BLOCK ? count - first : MOMENT_BLOCK;
        for (size_t i = 0; i < n; i++)
            block[i] = (real)x[first + i];
        moment_store(m, first / MOMENT_BLOCK, n, block);
        moment_load(m, first / MOMENT_BLOCK, n, block);
        for (size_t i = 0; i < n; i++)
            x[first + i] = (double)block[i];
    }
}

// Twelve steps. The rare value that rounds the other way, because fp32 and double differ, may err
// by a step of its storage: so the error is of the whole array.
static void adamw_pair(enum storage first_type, enum storage second_type)
{
    enum { COUNT = 3 * MOMENT_BLOCK + 5, STEPS = 12 };
    struct fixture f;
    struct adamw adamw = {
        .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    real *p = random_reals(14, COUNT, 1), *g = NULL;
    struct moment first = moment_make(first_type, false, COUNT);
    struct moment second = moment_make(second_type, true, COUNT);
    struct moment first_too = moment_make(first_type, false, COUNT);
    struct moment second_too = moment_make(second_type, true, COUNT);
    double *expected = memory_zeroed(COUNT, sizeof *expected), *m, *v, errors = 0, moved = 0;

    m = memory_zeroed(COUNT, sizeof *m);
    v = memory_zeroed(COUNT, sizeof *v);
    fixture_open(&f, &none, NUMERICS_EXACT);
    for (int i = 0; i < COUNT; i++)
        expected[i] = (double)p[i];
    for (adamw.step = 1; adamw.step <= STEPS; adamw.step++) {
        double t = (double)adamw.step;
        free(g);
        g = random_reals(100 + (uint32_t)adamw.step, COUNT, 1e-3);
        check_ok(f.ops->adamw(f.ops, &adamw, 0.5, COUNT, p, g, &first, &second, &f.e), &f.e);
        for (int i = 0; i < COUNT; i++) {
            double gradient = 0.5 * (double)g[i];
            m[i] = 0.9 * m[i] + 0.1 * gradient;
            v[i] = 0.95 * v[i] + 0.05 * gradient * gradient;
            expected[i] -= 0.01 * 0.1 * expected[i];
            expected[i] -=
                0.01 * (m[i] / (1 - pow(0.9, t))) / (sqrt(v[i] / (1 - pow(0.95, t))) + 1e-8);
        }
        rounded(&first_too, COUNT, m);
        rounded(&second_too, COUNT, v);
    }
    for (int i = 0; i < COUNT; i++) {
        errors += pow((double)p[i] - expected[i], 2);
        moved += pow(0.01 * STEPS, 2);
    }
    if (!(sqrt(errors / moved) <
          (first_type == STORAGE_FP32 && second_type == STORAGE_FP32 ? 1e-5 : 2e-3)))
        fail_msg("types %d and %d: error %g", first_type, second_type, sqrt(errors / moved));
    fixture_close(&f);
    moment_clear(&first);
    moment_clear(&second);
    moment_clear(&first_too);
    moment_clear(&second_too);
    free(v);
    free(m);
    free(expected);
    free(g);
    free(p);
}

static void adamw_of_every_pair(void **state)
{
    (void)state;
    for (int a = 0; a < TYPES; a++)
        for (int b = 0; b < TYPES; b++)
            adamw_pair(types[a], types[b]);
}

// An expert that gets one gradient in one element and then none: its moments fall below what a
// scale can be inverted of. Nothing may become infinite or no number, and the moments end at 0.
static void moments_that_fade(void **state)
{
    enum { STEPS = 3000 };
    struct fixture f;
    (void)state;

    fixture_open(&f, &none, NUMERICS_EXACT);
    for (int a = 0; a < TYPES; a++)
        for (int b = 0; b < TYPES; b++) {
            struct adamw adamw = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
            struct moment first = moment_make(types[a], false, MOMENT_BLOCK);
            struct moment second = moment_make(types[b], true, MOMENT_BLOCK);
            real p[MOMENT_BLOCK] = {0}, g[MOMENT_BLOCK] = {0}, m[MOMENT_BLOCK];
            g[5] = (real)1e-3;
            for (adamw.step = 1; adamw.step <= STEPS; adamw.step++) {
                check_ok(f.ops->adamw(f.ops, &adamw, 1, MOMENT_BLOCK, p, g, &first, &second, &f.e),
                         &f.e);
                g[5] = 0;
                for (int i = 0; i < MOMENT_BLOCK; i++)
                    if (!isfinite((double)p[i]) || (i != 5 && p[i] != 0))
                        fail_msg("types %d and %d: parameter %d is %g after step %d", a, b, i,
                                 (double)p[i], (int)adamw.step);
            }
            moment_load(&first, 0, MOMENT_BLOCK, m);
            for (int i = 0; i < MOMENT_BLOCK; i++)
                assert_true(isfinite((double)m[i]));
            moment_clear(&first);
            moment_clear(&second);
        }
    fixture_close(&f);
}

static void sizes(void **state)
{
    (void)state;
    assert_int_equal(moment_values_bytes(STORAGE_FP32, 300), 300 * sizeof(real));
    assert_int_equal(moment_values_bytes(STORAGE_BF16, 300), 600);
    assert_int_equal(moment_values_bytes(STORAGE_FP16, 300), 600);
    assert_int_equal(moment_values_bytes(STORAGE_FP8, 300), 300);
    assert_int_equal(moment_scales_bytes(STORAGE_FP8, 300), 12);
    assert_int_equal(moment_scales_bytes(STORAGE_FP16, 256), 8);
    assert_int_equal(moment_scales_bytes(STORAGE_BF16, 300) + moment_scales_bytes(STORAGE_FP32, 9),
                     0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),
        cmocka_unit_test(keeps_values),
        cmocka_unit_test(adamw_of_every_pair),
        cmocka_unit_test(moments_that_fade),
    };

    return cmocka_run_group_tests_name("moment", tests, NULL, NULL);
}
