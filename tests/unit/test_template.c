// SPDX-License-Identifier: Apache-2.0
// The chat template: its text, its loss mask, what special tokens in data become.
#include "unit/tokenizer_fixture.h"

#include "base/file.h"
#include "data/formats.h"
#include "data/json_text.h"
#include "data/template.h"

#include <errno.h>

#define IM_START 4094
#define IM_END   4095

struct fixture {
    struct tokenizer *tokenizer;
    struct template *template;
    struct encoder *encoder;
    struct sample_list out;
};

static int fixture_setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct fl_error e;

    f->tokenizer = tiny_tokenizer();
    check_ok(template_create(f->tokenizer, TEMPLATE_CODER, &f->template, &e), &e);
    f->encoder = encoder_create(f->tokenizer);
    *state = f;
    return 0;
}

static int fixture_teardown(void **state)
{
    struct fixture *f = *state;

    free(f->out.tokens.ids);
    free(f->out.loss);
    encoder_destroy(f->encoder);
    template_destroy(f->template);
    tokenizer_destroy(f->tokenizer);
    free(f);
    return 0;
}

static struct message say(enum role role, const char *content)
{
    return (struct message){
        .role = role, .content = content, .bytes = strlen(content), .loss = true};
}

// The tokens of text, all of which must follow in the output from *at, with this loss.
static void check_span(struct fixture *f, size_t *at, const char *text, bool loss)
{
    struct token_list tokens = {0};
    struct fl_error e;

    check_ok(encoder_append(f->encoder, text, strlen(text), &tokens, &e), &e);
    assert_true(*at + tokens.count <= f->out.tokens.count);
    assert_memory_equal(f->out.tokens.ids + *at, tokens.ids, tokens.count * sizeof *tokens.ids);
    for (size_t i = 0; i < tokens.count; i++)
        assert_int_equal(f->out.loss[*at + i], loss);
    *at += tokens.count;
    free(tokens.ids);
}

static void append(struct fixture *f, const struct message *messages, size_t count)
{
    struct fl_error e;
    const struct conversation c = {.messages = (struct message *)messages, .count = count};

    f->out.tokens.count = 0;
    check_ok(template_append(f->template, &c, &f->out, &e), &e);
}

static void one_turn(void **state)
{
    struct fixture *f = *state;
    size_t at = 0;

    append(f, (struct message[]){say(ROLE_USER, "def add(a, b):"), say(ROLE_ASSISTANT, "return a")},
           2);
    check_span(f, &at, "<|im_start|>user\ndef add(a, b):<|im_end|>\n<|im_start|>assistant\n",
               false);
    check_span(f, &at, "return a<|im_end|>\n", true);
    assert_int_equal(at, f->out.tokens.count);
    assert_int_equal(f->out.tokens.ids[0], IM_START);
    assert_int_equal(f->out.tokens.ids[at - 2], IM_END);
}

// Every answer counts, except one whose loss is off; a question after the last answer does not.
static void several_turns(void **state)
{
    struct fixture *f = *state;
    struct message messages[] = {say(ROLE_SYSTEM, "Be brief."), say(ROLE_USER, "one"),
                                 say(ROLE_ASSISTANT, "1"),      say(ROLE_USER, "two"),
                                 say(ROLE_ASSISTANT, "2"),      say(ROLE_USER, "three"),
                                 say(ROLE_ASSISTANT, "3"),      say(ROLE_USER, "four")};
    size_t at = 0;

    messages[4].loss = false;
    append(f, messages, 8);
    check_span(f, &at,
               "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\none<|im_end|>\n"
               "<|im_start|>assistant\n",
               false);
    check_span(f, &at, "1<|im_end|>\n", true);
    check_span(f, &at,
               "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"
               "<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n",
               false);
    check_span(f, &at, "3<|im_end|>\n", true);
    check_span(f, &at, "<|im_start|>user\nfour<|im_end|>\n", false);
    assert_int_equal(at, f->out.tokens.count);
}

// An answer's own newlines are not joined with the one after "assistant".
static void answer_starts_with_newline(void **state)
{
    struct fixture *f = *state;
    size_t at = 0;

    append(f, (struct message[]){say(ROLE_USER, "x"), say(ROLE_ASSISTANT, "\n\nx")}, 2);
    check_span(f, &at, "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n", false);
    check_span(f, &at, "\n\nx<|im_end|>\n", true);
    assert_int_equal(at, f->out.tokens.count);
}

static void special_tokens_in_content(void **state)
{
    struct fixture *f = *state;
    size_t ends = 0;

    append(f, (struct message[]){say(ROLE_USER, "a<|im_end|>b"), say(ROLE_ASSISTANT, "")}, 2);
    for (size_t i = 0; i < f->out.tokens.count; i++)
        ends += f->out.tokens.ids[i] == IM_END;
    assert_int_equal(ends, 3);
    assert_int_equal(f->out.loss[f->out.tokens.count - 2], 1); // an empty answer still ends
    assert_int_equal(f->out.loss[f->out.tokens.count - 3], 0);
}

static void bad_text_leaves_nothing(void **state)
{
    struct fixture *f = *state;
    struct message messages[] = {say(ROLE_USER, "x"), say(ROLE_ASSISTANT, "y"),
                                 say(ROLE_USER, "z\xff")};
    struct fl_error e;

    f->out.tokens.count = 0;
    check_error(
        template_append(f->template, &(struct conversation){messages, 3, NULL}, &f->out, &e), &e,
        "not UTF-8");
    assert_int_equal(f->out.tokens.count, 0);
}

#define CHATS FL_SOURCE_DIR "/tests/data/golden/qwen3_chat_golden.json"

// Text of all tokens, and of those that count.
static char *text_of(struct fixture *f, bool counted)
{
    struct token_list some = {0};
    struct fl_error e;
    char *text;
    size_t bytes;

    for (size_t i = 0; i < f->out.tokens.count; i++)
        if (!counted || f->out.loss[i])
            *token_list_reserve(&some, 1) = f->out.tokens.ids[i], some.count++;
    check_ok(tokenizer_decode(f->tokenizer, some.ids, some.count, &text, &bytes, &e), &e);
    free(some.ids);
    return text;
}

// As Qwen3's own template renders them; what counts is every answer's turn behind its header.
static void qwen3_golden(void **state)
{
    struct fixture *f = *state;
    struct message_list list = {0};
    struct template *template;
    struct fl_error e;
    json_t *cases = json_load_file(CHATS, 0, NULL), *c;
    size_t i, answers = 0;

    assert_non_null(cases);
    check_ok(template_create(f->tokenizer, TEMPLATE_QWEN3, &template, &e), &e);
    json_array_foreach(cases, i, c)
    {
        struct conversation chat;
        char *text, *counted, *at, *expected = calloc(1, 65536);
        f->out.tokens.count = 0;
        check_ok(format_messages(c, &list, &e), &e);
        chat = (struct conversation){list.messages, list.count, list.tools};
        check_ok(template_append(template, &chat, &f->out, &e), &e);
        text = text_of(f, false);
        counted = text_of(f, true);
        assert_string_equal(text, json_string_value(json_object_get(c, "rendered")));
        for (at = text; (at = strstr(at, "<|im_start|>assistant\n"));) {
            const char *end = strstr(at, "<|im_end|>\n") + strlen("<|im_end|>\n");
            at += strlen("<|im_start|>assistant\n");
            strncat(expected, at, (size_t)(end - at));
            answers++;
        }
        assert_string_equal(counted, expected);
        free(expected);
        free(counted);
        free(text);
    }
    assert_true(i == 20 && answers > 20);
    message_list_clear(&list);
    template_destroy(template);
    json_decref(cases);
}

// Numbers as Python's repr writes them.
static void json_numbers(void **state)
{
    static const char *const cases[][2] = {
        {"[0.1, 1.0, -0.0]", "[0.1, 1.0, -0.0]"},
        {"[1e15, 1e16, 1.5e300]", "[1000000000000000.0, 1e+16, 1.5e+300]"},
        {"[0.0001, 0.00001, 5e-324]", "[0.0001, 1e-05, 5e-324]"},
        {"[0.30000000000000004, 123456.789]", "[0.30000000000000004, 123456.789]"},
        {"[9007199254740993, -1]", "[9007199254740993, -1]"},
        {"{\"b\": {}, \"a\": [[], \"\\u00e9\\/\\u001f\"]}",
         "{\"b\": {}, \"a\": [[], \"\u00e9/\\u001F\"]}"},
    };
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *value = json_loads(cases[i][0], 0, NULL);
        size_t bytes;
        char *text = json_text(value, &bytes);
        assert_int_equal(bytes, strlen(cases[i][1]));
        assert_memory_equal(text, cases[i][1], bytes);
        free(text);
        json_decref(value);
    }
}

static void kinds(void **state)
{
    (void)state;
    assert_int_equal(template_kind_of(NULL), TEMPLATE_CODER);
    assert_int_equal(template_kind_of("{{ message.content }}"), TEMPLATE_CODER);
    assert_int_equal(template_kind_of("{{- '\n<think>\n' }}"), TEMPLATE_QWEN3);
}

static void tokenizer_without_turns(void **state)
{
    char *text, *path, *name;
    size_t bytes;
    struct tokenizer *t;
    struct template *template;
    struct fl_error e;

    (void)state;
    check_ok(file_read(TINY_TOKENIZER, 1 << 20, &text, &bytes, &e), &e);
    name = strstr(text, "<|im_end|>");
    assert_non_null(name);
    memcpy(name, "<|im_fin|>", 10);
    path = temporary_file(text, bytes);
    check_ok(tokenizer_load(path, &t, &e), &e);
    check_error(template_create(t, TEMPLATE_CODER, &template, &e), &e, "no added token <|im_end|>");
    assert_null(template);
    tokenizer_destroy(t);
    temporary_remove(path);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_turn),
        cmocka_unit_test(several_turns),
        cmocka_unit_test(answer_starts_with_newline),
        cmocka_unit_test(special_tokens_in_content),
        cmocka_unit_test(bad_text_leaves_nothing),
        cmocka_unit_test(tokenizer_without_turns),
        cmocka_unit_test(qwen3_golden),
        cmocka_unit_test(json_numbers),
        cmocka_unit_test(kinds),
    };
    return cmocka_run_group_tests_name("template", tests, fixture_setup, fixture_teardown);
}
