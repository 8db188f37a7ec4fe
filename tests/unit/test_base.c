// SPDX-License-Identifier: Apache-2.0
// base/: errors, files, names, float formats, generator.
#include "unit/check.h"

#include "base/error.h"
#include "base/file.h"
#include "base/floats.h"
#include "base/nearest.h"
#include "base/philox.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void error_is_one_line(void **state)
{
    struct fl_error e;
    (void)state;
    assert_int_equal(error_set(&e, -22, "a\nb%c", 7), -22);
    assert_string_equal(e.text, "a b ");
    assert_int_equal(error_prefix(&e, "job.yaml:%d", 3), -22);
    assert_string_equal(e.text, "job.yaml:3: a b ");
    assert_int_equal(error_set(NULL, -5, "x"), -5);
}

static void file_round_trip(void **state)
{
    char folder[] = "/tmp/fl-base-XXXXXX", path[64], *text;
    size_t bytes;
    struct fl_error e;
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/f", folder);
    check_ok(file_write(path, "one", 3, &e), &e);
    check_ok(file_write(path, "two!", 4, &e), &e);
    check_ok(file_read(path, 100, &text, &bytes, &e), &e);
    assert_int_equal(bytes, 4);
    assert_string_equal(text, "two!");
    free(text);
    check_error(file_read(path, 3, &text, &bytes, &e), &e, "at most 3");
    check_error(file_read(folder, 3, &text, &bytes, &e), &e, "not a regular file");
    check_error(file_read("", 3, &text, &bytes, &e), &e,
                "'': cannot open: No such file or directory; check the path");
    struct file_writer *w;
    check_ok(file_writer_open(path, &w, &e), &e);
    check_ok(file_writer_append(w, "half", 4, &e), &e);
    file_writer_abort(w);
    check_ok(file_read(path, 100, &text, &bytes, &e), &e);
    assert_string_equal(text, "two!");
    free(text);
    unlink(path);
    assert_int_equal(rmdir(folder), 0); // nothing half-written is left
    check_error(folder_writable("/proc/fl/none", &e), &e, "/proc/fl");
}

static void nearest_names(void **state)
{
    const char *const names[] = {"lora_rank", "lora_alpha", "lr", "min_lr", "dataset"};
    (void)state;
    assert_string_equal(nearest_name("lora_rnak", names, 5), "lora_rank");
    assert_string_equal(nearest_name("data_set", names, 5), "dataset");
    assert_string_equal(nearest_name("minlr", names, 5), "min_lr");
    assert_null(nearest_name("frobnicate", names, 5));
    assert_null(nearest_name("", names, 5));
}

// Every code survives the round trip, and every value between two neighbours goes to the nearer,
// ties to the even code.
static void small_floats_exhaustive(const float *values, uint8_t (*convert)(float), int finite)
{
    for (int b = 0; b < 256; b++)
        if (isfinite(values[b]))
            assert_int_equal(convert(values[b]), b);
    for (int b = 0; b + 1 < finite; b++) {
        float low = values[b], high = values[b + 1], middle = (low + high) / 2;
        assert_true(high > low);
        assert_int_equal(convert(middle), b & 1 ? b + 1 : b);
        assert_int_equal(convert(nextafterf(middle, 0)), b);
        assert_int_equal(convert(nextafterf(middle, INFINITY)), b + 1);
        assert_int_equal(convert(-nextafterf(middle, INFINITY)), 128 + b + 1);
    }
    assert_int_equal(convert(INFINITY), finite - 1);
    assert_int_equal(convert(-1e30f), 128 + finite - 1);
    assert_true(isnan(values[convert(NAN)]));
}

static void small_floats(void **state)
{
    (void)state;
    assert_true(e4m3_values[0x7e] == E4M3_MAX && e5m2_values[0x7b] == E5M2_MAX);
    assert_true(e4m3_values[1] == 0x1p-9f && e5m2_values[1] == 0x1p-16f);
    small_floats_exhaustive(e4m3_values, e4m3_from_float, 127);
    small_floats_exhaustive(e5m2_values, e5m2_from_float, 124);
    // A prime stride meets every exponent with many mantissas; ties come from the codes' middles.
    for (uint64_t u = 0; u < 1ull << 32; u += 65521) {
        float x = float_from_bits((uint32_t)u), y = e4m3_round(x);
        assert_true(isnan(x) ? isnan(y) : y == e4m3_values[e4m3_from_float(x)]);
    }
    for (int b = 0; b < 0x7e; b++) {
        float middle = (e4m3_values[b] + e4m3_values[b + 1]) / 2;
        assert_true(e4m3_round(-middle) == -e4m3_values[b & 1 ? b + 1 : b]);
        assert_true(e4m3_round(nextafterf(middle, 0)) == e4m3_values[b]);
    }
}

static void half_and_bf16(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float x = half_to_float((uint16_t)h), b = bf16_to_float((uint16_t)h);
        if (!isnan(x))
            assert_int_equal(half_from_float(x), h);
        if (!isnan(b))
            assert_int_equal(bf16_from_float(b), h);
    }
    assert_int_equal(half_from_float(65519.0f), 0x7bff);
    assert_int_equal(half_from_float(65520.0f), 0x7c00);
    assert_int_equal(half_from_float(0x1p-25f), 0);
    assert_int_equal(half_from_float(nextafterf(0x1p-25f, 1)), 1);
    assert_true(isnan(bf16_round(NAN)) && isnan(half_to_float(half_from_float(NAN))));
    assert_true(bf16_round(1.00390625f) == 1.0f && bf16_round(1.01171875f) == 1.015625f);
}

// Known answers of the Random123 distribution (kat_vectors, philox4x32 10).
static void philox_known_answers(void **state)
{
    uint32_t out[4];
    (void)state;
    philox4x32((uint32_t[]){0, 0, 0, 0}, (uint32_t[]){0, 0}, out);
    assert_true(out[0] == 0x6627e8d5 && out[1] == 0xe169c58d && out[2] == 0xbc57ac4c &&
                out[3] == 0x9b00dbd8);
    philox4x32((uint32_t[]){0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
               (uint32_t[]){0xa4093822, 0x299f31d0}, out);
    assert_true(out[0] == 0xd16cfe09 && out[1] == 0x94fdcceb && out[2] == 0x5001e420 &&
                out[3] == 0x24126ea1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_is_one_line), cmocka_unit_test(file_round_trip),
        cmocka_unit_test(nearest_names),     cmocka_unit_test(small_floats),
        cmocka_unit_test(half_and_bf16),     cmocka_unit_test(philox_known_answers),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
