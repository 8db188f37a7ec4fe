// SPDX-License-Identifier: Apache-2.0
// Qwen3's own tokenizer, where its file is at hand, against Hugging Face's ids.
#include "unit/tokenizer_golden.h"

#include "base/file.h"

static struct tokenizer *tokenizer;

// SHA-256 of a file by coreutils, as 64 digits.
static void file_sha256(const char *path, char digits[65])
{
    char *command;
    FILE *pipe;

    assert_true(asprintf(&command, "sha256sum < '%s'", path) > 0);
    pipe = popen(command, "r");
    assert_non_null(pipe);
    assert_int_equal(fread(digits, 1, 64, pipe), 64);
    digits[64] = 0;
    pclose(pipe);
    free(command);
}

static void check_licence(struct encoder *encoder, const json_t *expected)
{
    char *path, *text, *ids_path, digits[65];
    struct token_list tokens = {0};
    struct fl_error e;
    size_t bytes;

    assert_true(asprintf(&path, "/usr/share/common-licenses/%s",
                         json_string_value(json_object_get(expected, "file"))) > 0);
    if (access(path, R_OK) < 0)
        fail_msg("%s: not there; install base-files", path);
    file_sha256(path, digits);
    assert_string_equal(digits, json_string_value(json_object_get(expected, "text_sha256")));
    check_ok(file_read(path, 1 << 20, &text, &bytes, &e), &e);
    check_ok(encoder_append(encoder, text, bytes, &tokens, &e), &e);
    assert_int_equal(tokens.count, json_integer_value(json_object_get(expected, "count")));
    ids_path = temporary_file((const char *)tokens.ids, tokens.count * sizeof *tokens.ids);
    file_sha256(ids_path, digits);
    assert_string_equal(digits, json_string_value(json_object_get(expected, "ids_sha256_u32le")));
    temporary_remove(ids_path);
    free(tokens.ids);
    free(text);
    free(path);
}

static void cases(void **state)
{
    json_t *golden = json_file(GOLDEN("qwen3_tokenizer_golden.json"));

    (void)state;
    check_cases(tokenizer, json_object_get(golden, "cases"));
    assert_int_equal(tokenizer_added(tokenizer, "<|im_start|>"), 151644);
    json_decref(golden);
}

static void licences(void **state)
{
    json_t *golden = json_file(GOLDEN("qwen3_tokenizer_golden.json")), *expected;
    struct encoder *encoder = encoder_create(tokenizer);
    size_t i;

    (void)state;
    assert_true(json_array_size(json_object_get(golden, "files")) == 2);
    json_array_foreach(json_object_get(golden, "files"), i, expected)
        check_licence(encoder, expected);
    encoder_destroy(encoder);
    json_decref(golden);
}

static int qwen3_setup(void **state)
{
    struct fl_error e;
    (void)state;
    check_ok(tokenizer_load(getenv("FL_QWEN3_TOKENIZER"), &tokenizer, &e), &e);
    return 0;
}

static int qwen3_teardown(void **state)
{
    (void)state;
    tokenizer_destroy(tokenizer);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cases), cmocka_unit_test(licences)};
    const char *path = getenv("FL_QWEN3_TOKENIZER");

    if (!path || !*path) {
        puts("1..0 # SKIP FL_QWEN3_TOKENIZER is not set: contrib/fetch-qwen3-tokenizer gets it");
        return 0;
    }
    return cmocka_run_group_tests_name("qwen3 tokenizer", tests, qwen3_setup, qwen3_teardown);
}
