// SPDX-License-Identifier: Apache-2.0
// Texts and the ids that Hugging Face's tokenizers library gave them.
#ifndef FL_TESTS_UNIT_TOKENIZER_GOLDEN_H
#define FL_TESTS_UNIT_TOKENIZER_GOLDEN_H

#include "unit/tokenizer_fixture.h"

#include <jansson.h>

#define GOLDEN(name) FL_SOURCE_DIR "/tests/data/golden/" name

static inline json_t *json_file(const char *path)
{
    json_error_t reason;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &reason);
    if (!root)
        fail_msg("%s: %s", path, reason.text);
    return root;
}

static inline void check_cases(const struct tokenizer *t, const json_t *cases)
{
    struct encoder *encoder = encoder_create(t);
    struct token_list tokens = {0};
    struct fl_error e;
    json_t *one, *id;
    size_t i, k;

    assert_true(json_array_size(cases) >= 10);
    json_array_foreach(cases, i, one)
    {
        const json_t *text = json_object_get(one, "text"), *ids = json_object_get(one, "ids");

        tokens.count = 0;
        check_ok(
            encoder_append(encoder, json_string_value(text), json_string_length(text), &tokens, &e),
            &e);
        assert_int_equal(tokens.count, json_array_size(ids));
        json_array_foreach(ids, k, id) assert_int_equal(tokens.ids[k], json_integer_value(id));
    }
    free(tokens.ids);
    encoder_destroy(encoder);
}

#endif
