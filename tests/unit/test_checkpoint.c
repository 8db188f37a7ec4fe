// SPDX-License-Identifier: Apache-2.0
// weights/checkpoint: index and shards, one file, and every refusal by its message.
#include "unit/check.h"

#include "base/file.h"
#include "base/memory.h"
#include "unit/fixture.h"
#include "weights/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define TINY  FL_SOURCE_DIR "/tests/data/tiny-qwen3-moe-fp8"
#define INDEX "model.safetensors.index.json"

static const struct model small = {
    .layers = 1,
    .hidden = 16,
    .heads = 2,
    .kv_heads = 1,
    .head_dim = 8,
    .experts = 2,
    .top_k = 1,
    .expert_width = 8,
    .vocab = 10,
};

static void index_write(const char *folder, const char *text)
{
    char *path = memory_format("%s/" INDEX, folder);
    struct fl_error e;

    check_ok(file_write(path, text, strlen(text), &e), &e);
    free(path);
}

static void tiny_shards(void **state)
{
    struct checkpoint *c;
    const struct safetensors *file;
    const struct tensor *t;
    struct fl_error e;
    (void)state;

    check_ok(checkpoint_open(TINY, &c, &e), &e);
    check_ok(checkpoint_find(c, "lm_head.weight", &file, &t, &e), &e);
    assert_non_null(strstr(safetensors_path(file), "model-00001-of-00002.safetensors"));
    assert_int_equal(t->shape[0], 4096);
    check_ok(checkpoint_find(c, "model.norm.weight", &file, &t, &e), &e);
    assert_non_null(strstr(safetensors_path(file), "model-00002-of-00002.safetensors"));
    assert_true(checkpoint_has(c, "model.layers.3.mlp.experts.15.up_proj.weight"));
    assert_false(checkpoint_has(c, "model.layers.3.mlp.experts.16.up_proj.weight"));
    check_error(checkpoint_find(c, "model.layers.4.mlp.gate.weight", &file, &t, &e), &e,
                INDEX ": tensor 'model.layers.4.mlp.gate.weight' is missing");
    checkpoint_close(c);
    checkpoint_close(NULL);
}

static void single_file(void **state)
{
    struct fixture *f = fixture_create(&small, TENSOR_BF16, TENSOR_F32, TENSOR_BF16, 1);
    char *folder = folder_make();
    struct checkpoint *c;
    const struct safetensors *file;
    const struct tensor *t;
    struct fl_error e;
    (void)state;

    fixture_write(f, folder, 1);
    check_ok(checkpoint_open(folder, &c, &e), &e);
    check_ok(checkpoint_find(c, "model.norm.weight", &file, &t, &e), &e);
    assert_int_equal(t->bytes, 32);
    assert_true(checkpoint_has(c, "lm_head.weight"));
    assert_false(checkpoint_has(c, "lm_head.bias"));
    check_error(checkpoint_find(c, "lm_head.bias", &file, &t, &e), &e,
                "/model.safetensors: tensor 'lm_head.bias' is missing");
    checkpoint_close(c);
    folder_remove(folder);
    fixture_destroy(f);
}

// Shards that are not asked for need not be there.
static void missing_shards(void **state)
{
    struct fixture *f = fixture_create(&small, TENSOR_F8_E4M3, TENSOR_F32, TENSOR_BF16, 2);
    char *folder = folder_make();
    char *second = memory_format("%s/model-00002-of-00002.safetensors", folder);
    struct checkpoint *c;
    const struct safetensors *file;
    const struct tensor *t;
    struct fl_error e;
    (void)state;

    fixture_write(f, folder, 2);
    assert_int_equal(remove(second), 0);
    check_ok(checkpoint_open(folder, &c, &e), &e);
    check_ok(checkpoint_find(c, "model.embed_tokens.weight", &file, &t, &e), &e);
    check_error(checkpoint_find(c, "lm_head.weight", &file, &t, &e), &e,
                "model-00002-of-00002.safetensors: no such file, but " INDEX " names it");
    checkpoint_close(c);

    assert_int_equal(mkdir(second, 0700), 0);
    check_ok(checkpoint_open(folder, &c, &e), &e);
    check_error(checkpoint_find(c, "lm_head.weight", &file, &t, &e), &e, "not a regular file");
    checkpoint_close(c);

    index_write(folder, "{\"weight_map\": {\"x\": \"model-00001-of-00002.safetensors\"}}");
    check_ok(checkpoint_open(folder, &c, &e), &e);
    check_error(checkpoint_find(c, "x", &file, &t, &e), &e,
                "model-00001-of-00002.safetensors: tensor 'x' is not in it, but " INDEX);
    checkpoint_close(c);
    free(second);
    folder_remove(folder);
    fixture_destroy(f);
}

static void refusals(void **state)
{
    static const struct {
        const char *index, *words;
    } cases[] = {
        {"{", INDEX ":1: not valid JSON"},
        {"[]", INDEX ": no weight_map in it"},
        {"{\"weight_map\": []}", INDEX ": no weight_map in it"},
        {"{\"weight_map\": {\"x\": 1}}", "tensor 'x': shard '' is no plain file name"},
        {"{\"weight_map\": {\"x\": \"\"}}", "tensor 'x': shard '' is no plain file name"},
        {"{\"weight_map\": {\"x\": \"..\"}}", "tensor 'x': shard '..' is no plain file name"},
        {"{\"weight_map\": {\"x\": \"../y.safetensors\"}}",
         "tensor 'x': shard '../y.safetensors' is no plain file name"},
        {"{\"weight_map\": {\"a\": \"y\", \"x\": \"/etc/passwd\"}}",
         "tensor 'x': shard '/etc/passwd' is no plain file name"},
        {"{\"weight_map\": {\"x\": \"a\", \"x\": \"b\"}}", "duplicate"},
    };
    struct checkpoint *c;
    char *folder = folder_make();
    struct fl_error e;
    (void)state;

    check_error(checkpoint_open(folder, &c, &e), &e,
                "holds neither " INDEX " nor model.safetensors: 'model' must be a folder");
    assert_null(c);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        index_write(folder, cases[i].index);
        check_error(checkpoint_open(folder, &c, &e), &e, cases[i].words);
        assert_non_null(strstr(e.text, folder));
    }
    folder_remove(folder);
    check_error(checkpoint_open("/nonexistent", &c, &e), &e,
                "/nonexistent: cannot open the model's folder");
}

static void unreadable(void **state)
{
    char *folder = folder_make(), *path = memory_format("%s/" INDEX, folder);
    const bool root = geteuid() == 0;
    struct checkpoint *c;
    struct fl_error e;
    (void)state;

    index_write(folder, "{}");
    assert_int_equal(chmod(path, 0), 0);
    assert_int_equal(chmod(folder, 0755), 0);
    if (root) // which may read everything
        assert_int_equal(seteuid(65534), 0);
    check_error(checkpoint_open(folder, &c, &e), &e, INDEX ": cannot open: Permission denied");
    if (root)
        assert_int_equal(seteuid(0), 0);
    free(path);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_shards),    cmocka_unit_test(single_file),
        cmocka_unit_test(missing_shards), cmocka_unit_test(refusals),
        cmocka_unit_test(unreadable),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
