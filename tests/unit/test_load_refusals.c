// SPDX-License-Identifier: Apache-2.0
// weights/load: every damaged or unfitting checkpoint by its message.
#include "unit/check.h"

#include "base/file.h"
#include "base/memory.h"
#include "unit/fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define TINY FL_SOURCE_DIR "/tests/data/tiny-qwen3-moe-fp8"

#define Q_PROJ "model.layers.1.self_attn.q_proj.weight"
#define GATE3  "model.layers.1.mlp.experts.3.gate_proj.weight"

static void check_words(const struct fl_error *e, const char *words)
{
    if (!strstr(e->text, words))
        fail_msg("'%s' does not hold '%s'", e->text, words);
}

static void expect(struct fixture *f, const char *words, const char *more)
{
    char *folder = folder_make();

    fixture_write(f, folder, 2);
    for (int threads = 1; threads <= 3; threads += 2) {
        struct loaded l;
        struct fl_error e;
        check_error(fixture_load(&l, folder, &f->model, 2, 1, threads, &e), &e, words);
        check_words(&e, more);
        check_words(&e, "-of-00002.safetensors: tensor '");
        fixture_unload(&l);
    }
    folder_remove(folder);
    fixture_destroy(f);
}

static struct fixture *fp8_fixture(void)
{
    return fixture_create(&odd_model, TENSOR_F8_E4M3, TENSOR_F32, TENSOR_BF16, 60);
}

static void bad_shapes_and_types(void **state)
{
    struct fixture *f = fp8_fixture();
    (void)state;

    fixture_reshape(f, Q_PROJ, TENSOR_F8_E4M3, 2, 96, 191);
    expect(f, "tensor '" Q_PROJ "': shape [96, 191], config.json asks for [96, 192]", "");
    f = fp8_fixture();
    fixture_reshape(f, Q_PROJ, TENSOR_F8_E4M3, 1, 1, 96 * 192);
    expect(f, "shape [18432], config.json asks for [96, 192]", Q_PROJ);
    f = fp8_fixture();
    fixture_reshape(f, GATE3 "_scale_inv", TENSOR_F32, 2, 1, 2);
    expect(f, "shape [1, 2], config.json asks for [2, 2]", "'" GATE3 "_scale_inv'");
    f = fp8_fixture();
    fixture_reshape(f, "model.norm.weight", TENSOR_BF16, 1, 1, 191);
    expect(f, "shape [191], config.json asks for [192]", "'model.norm.weight'");
    f = fp8_fixture();
    fixture_reshape(f, "model.embed_tokens.weight", TENSOR_BF16, 2, 96, 192);
    expect(f, "shape [96, 192], config.json asks for [97, 192]", "'model.embed_tokens.weight'");
    f = fp8_fixture();
    fixture_reshape(f, Q_PROJ, TENSOR_I8, 2, 96, 192);
    expect(f, "dtype I8, expected F8_E4M3, BF16, F16 or F32", Q_PROJ);
    f = fp8_fixture();
    fixture_reshape(f, Q_PROJ, TENSOR_F8_E5M2, 2, 96, 192);
    expect(f, "dtype F8_E5M2, expected F8_E4M3, BF16, F16 or F32", Q_PROJ);
    f = fp8_fixture();
    fixture_reshape(f, GATE3 "_scale_inv", TENSOR_F8_E8M0, 2, 2, 2);
    expect(f, "dtype F8_E8M0, expected BF16, F16 or F32", "'" GATE3 "_scale_inv'");
    f = fp8_fixture();
    fixture_reshape(f, "model.layers.0.mlp.gate.weight", TENSOR_F64, 2, 4, 192);
    expect(f, "dtype F64, expected BF16, F16 or F32", "mlp.gate.weight");
    f = fp8_fixture();
    fixture_reshape(f, "lm_head.weight", TENSOR_F8_E4M3, 2, 97, 192);
    expect(f, "dtype F8_E4M3, expected BF16, F16 or F32", "lm_head.weight");
    f = fp8_fixture();
    f->model.fp8 = false;
    expect(f, "config.json has no quantization_config", "model.layers.0.self_attn.q_proj.weight");
}

static void missing_tensors(void **state)
{
    static const char *const names[] = {Q_PROJ, GATE3 "_scale_inv", "lm_head.weight",
                                        "model.layers.0.input_layernorm.weight"};
    (void)state;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct fixture *f = fp8_fixture();
        char *folder = folder_make(), *words = memory_format("tensor '%s' is missing", names[i]);
        struct loaded l;
        struct fl_error e;
        fixture_remove(f, names[i]);
        fixture_write(f, folder, 2);
        check_error(fixture_load(&l, folder, &f->model, 2, 1, 1, &e), &e, words);
        check_words(&e, "model.safetensors.index.json");
        fixture_unload(&l);
        folder_remove(folder);
        fixture_destroy(f);
        free(words);
    }
}

static void bad_scales(void **state)
{
    static const struct {
        double value;
        const char *words;
    } cases[] = {
        {NAN, "nan of block [1, 0] is not finite and positive"},
        {INFINITY, "scale inf of block [1, 0] is not finite and positive"},
        {0, "scale 0 of block [1, 0] is not finite and positive"},
        {-1e-4, "scale -0.0001 of block [1, 0] is not finite and positive"},
    };
    struct fixture *f;
    struct fixture_tensor *t;
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        f = fp8_fixture();
        fixture_set(fixture_find(f, GATE3 "_scale_inv"), 2, cases[i].value);
        expect(f, cases[i].words, "'" GATE3 "_scale_inv'");
    }
    f = fp8_fixture(); // one code of the block is not zero
    fixture_set(fixture_find(f, GATE3 "_scale_inv"), 2, 0);
    t = fixture_find(f, GATE3);
    for (size_t r = 128; r < 192; r++)
        memset(t->data + r * 192, 0, 128);
    t->data[191 * 192 + 127] = 1;
    expect(f, cases[2].words, "'" GATE3 "_scale_inv'");
}

static void bad_values(void **state)
{
    struct fixture *f = fp8_fixture();
    (void)state;

    fixture_find(f, Q_PROJ)->data[95 * 192 + 191] = 0xff;
    expect(f, "'" Q_PROJ "': value [95, 191] is not finite", "damaged");
    f = fp8_fixture();
    fixture_find(f, Q_PROJ)->data[0] = 0x7f;
    fixture_find(f, GATE3)->data[0] = 0x7f; // later: the first one is reported
    expect(f, "'" Q_PROJ "': value [0, 0] is not finite", "damaged");
    f = fp8_fixture();
    fixture_set(fixture_find(f, "model.layers.1.mlp.gate.weight"), 3 * 192 + 9, INFINITY);
    expect(f, "value [3, 9] is not finite", "mlp.gate.weight");
    f = fp8_fixture();
    fixture_set(fixture_find(f, "lm_head.weight"), 96 * 192 + 1, NAN);
    expect(f, "value [96, 1] is not finite", "lm_head.weight");
    f = fixture_create(&odd_model, TENSOR_F16, TENSOR_F32, TENSOR_F32, 61);
    fixture_set(fixture_find(f, GATE3), 150 * 192 + 2, INFINITY);
    expect(f, "'" GATE3 "': value [150, 2] is not finite", "damaged");
    f = fixture_create(&odd_model, TENSOR_F16, TENSOR_F32, TENSOR_F32, 62);
    fixture_set(fixture_find(f, "model.embed_tokens.weight"), 7, NAN);
    expect(f, "value [0, 7] is not finite", "model.embed_tokens.weight");
}

// The tiny checkpoint with a shard cut short, and in a folder that is not there.
static void tiny_damaged(void **state)
{
    static const char *const shard = "model-00002-of-00002.safetensors";
    char *folder = folder_make(), *path = memory_format("%s/%s", folder, shard), *data;
    struct model model;
    struct fl_error e;
    struct loaded l;
    size_t bytes;
    (void)state;

    check_ok(model_load(TINY, &model, &e), &e);
    folder_copy(TINY, folder);
    check_ok(fixture_load(&l, folder, &model, 1, 0, 1, &e), &e);
    fixture_unload(&l);
    check_ok(file_read(path, 1u << 30, &data, &bytes, &e), &e);
    check_ok(file_write(path, data, bytes - 1, &e), &e);
    check_error(fixture_load(&l, folder, &model, 1, 0, 1, &e), &e, shard);
    check_words(&e, "ends 1 bytes behind the end of the file");
    fixture_unload(&l);
    check_ok(file_write(path, data, 1000, &e), &e);
    check_error(fixture_load(&l, folder, &model, 1, 0, 1, &e), &e,
                "reaches beyond the file (1000 bytes)");
    fixture_unload(&l);
    assert_int_equal(remove(path), 0);
    check_error(fixture_load(&l, folder, &model, 1, 0, 1, &e), &e, "no such file, but");
    fixture_unload(&l);
    free(data);
    free(path);
    folder_remove(folder);
    check_error(fixture_load(&l, "/nonexistent/model", &model, 1, 0, 1, &e), &e,
                "/nonexistent/model");
    fixture_unload(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_shapes_and_types), cmocka_unit_test(missing_tensors),
        cmocka_unit_test(bad_scales),           cmocka_unit_test(bad_values),
        cmocka_unit_test(tiny_damaged),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
