// SPDX-License-Identifier: Apache-2.0
// The tokenizer against Hugging Face's ids, its own inverse, and broken files.
#include "unit/tokenizer_golden.h"

#include "base/philox.h"
#include "data/nfc.h"

#include <errno.h>

#include <utf8proc.h>

static void golden_tiny(void **state)
{
    struct tokenizer *t = tiny_tokenizer();
    json_t *cases = json_file(GOLDEN("tokenizer_golden.json"));

    (void)state;
    check_cases(t, cases);
    assert_int_equal(tokenizer_size(t), 4096);
    assert_int_equal(tokenizer_added(t, "<|im_end|>"), 4095);
    assert_int_equal(tokenizer_added(t, "def"), -1);
    json_decref(cases);
    tokenizer_destroy(t);
}

static uint32_t random_next(uint32_t *counter)
{
    uint32_t out[4];
    philox4x32((uint32_t[]){(*counter)++, 0, 0, 0}, (uint32_t[]){20251210, 0}, out);
    return out[0];
}

// Code points of many kinds: letters, marks, spaces, controls, jamo, syllables, anything.
static int32_t random_character(uint32_t *counter)
{
    static const struct {
        int32_t first, count;
    } kinds[] = {{' ', 95},       {'a', 26},       {' ', 1},         {0, 0x20},
                 {0xa0, 0x260},   {0x300, 0x70},   {0x370, 0x200},   {0x1100, 0x100},
                 {0xac00, 11172}, {0x2000, 0x70},  {0x3040, 0xc0},   {0x4e00, 0x500},
                 {0xf900, 0x200}, {0x1e00, 0x200}, {0x1d100, 0x100}, {0x1f300, 0x300},
                 {1, 0x10ffff}};
    uint32_t kind = random_next(counter) % (sizeof kinds / sizeof *kinds);
    int32_t c = kinds[kind].first + (int32_t)(random_next(counter) % (uint32_t)kinds[kind].count);
    return c >= 0xd800 && c < 0xe000 ? 'x' : c;
}

static size_t random_text(char *text, size_t characters, uint32_t *counter)
{
    size_t used = 0;
    for (size_t i = 0; i < characters; i++)
        used += (size_t)utf8proc_encode_char(random_character(counter),
                                             (utf8proc_uint8_t *)text + used);
    return used;
}

// Decoding gives the form C of the text, whatever it is.
static void inverse(void **state)
{
    struct tokenizer *t = tiny_tokenizer();
    struct encoder *encoder = encoder_create(t);
    struct token_list tokens = {0};
    struct fl_error e;
    uint32_t counter = 0;

    (void)state;
    for (int round = 0; round < 3000; round++) {
        char text[400], *normal, *decoded;
        size_t bytes = random_text(text, random_next(&counter) % 100, &counter), decoded_bytes;
        int64_t normal_bytes = nfc_normalize(text, bytes, &normal);

        assert_true(normal_bytes >= 0);
        tokens.count = 0;
        check_ok(encoder_append(encoder, text, bytes, &tokens, &e), &e);
        check_ok(tokenizer_decode(t, tokens.ids, tokens.count, &decoded, &decoded_bytes, &e), &e);
        assert_int_equal(decoded_bytes, normal_bytes);
        assert_memory_equal(decoded, normal, decoded_bytes);
        free(decoded);
        free(normal);
    }
    check_error(tokenizer_decode(t, (int32_t[]){5, 4096}, 2, (char *[]){NULL}, (size_t[]){0}, &e),
                &e, "token 4096 at 1");
    free(tokens.ids);
    encoder_destroy(encoder);
    tokenizer_destroy(t);
}

// The scan calls a character settled only if normalisation leaves it alone and no composition has
// it behind another character.
static void settled_characters(void **state)
{
    static bool settled[0x110000];
    bool normal;

    (void)state;
    for (int32_t c = 0; c < 0x110000; c++) {
        utf8proc_uint8_t text[4];
        char *form_c;
        size_t bytes = (size_t)utf8proc_encode_char(c, text);

        if (c >= 0xd800 && c < 0xe000)
            continue;
        assert_int_equal(utf8_scan((char *)text, bytes, &normal), bytes);
        settled[c] = normal;
        if (!normal)
            continue;
        assert_int_equal(utf8proc_get_property(c)->combining_class, 0);
        assert_int_equal(nfc_normalize((char *)text, bytes, &form_c), bytes);
        assert_memory_equal(form_c, text, bytes);
        free(form_c);
    }
    for (int32_t c = 0; c < 0x110000; c++) {
        int32_t parts[32];
        int boundary = 0;
        utf8proc_ssize_t n = utf8proc_decompose_char(c, parts, 32, UTF8PROC_DECOMPOSE, &boundary);
        for (utf8proc_ssize_t i = 1; i < n; i++)
            assert_false(settled[parts[i]]);
    }
    assert_true(settled['a'] && settled[0x4e2d] && settled[0xd55c] && !settled[0x301]);
}

static void check_utf8(struct encoder *encoder, const char *text, size_t bytes, const char *words)
{
    struct token_list tokens = {0};
    struct fl_error e;
    check_error(encoder_append(encoder, text, bytes, &tokens, &e), &e, words);
    assert_int_equal(e.code, -EILSEQ);
    assert_int_equal(tokens.count, 0);
    free(tokens.ids);
}

static void invalid_utf8(void **state)
{
    struct tokenizer *t = tiny_tokenizer();
    struct encoder *encoder = encoder_create(t);

    (void)state;
    check_utf8(encoder, "caf\xe9", 4, "text is not UTF-8 at byte 3 (0xe9)");
    check_utf8(encoder, "0123456789\xc0\x80", 12, "at byte 10 (0xc0)");
    check_utf8(encoder, "\xed\xa0\x80", 3, "at byte 0 (0xed)");
    check_utf8(encoder, "a\xf5\x80\x80\x80", 5, "at byte 1 (0xf5)");
    check_utf8(encoder, "\xf0\x9f\x9a", 3, "at byte 0 (0xf0)");
    check_utf8(encoder, "<|im_end|>\x80", 11, "at byte 10 (0x80)");
    encoder_destroy(encoder);
    tokenizer_destroy(t);
}

static size_t encode_count(struct encoder *encoder, const char *text, size_t bytes,
                           struct token_list *tokens)
{
    struct fl_error e;
    tokens->count = 0;
    check_ok(encoder_append(encoder, text, bytes, tokens, &e), &e);
    return tokens->count;
}

static void nul_bytes(void **state)
{
    struct tokenizer *t = tiny_tokenizer();
    struct encoder *encoder = encoder_create(t);
    struct token_list tokens = {0};
    char *text;
    size_t bytes;
    struct fl_error e;

    (void)state;
    encode_count(encoder, "a\0b\0", 4, &tokens);
    check_ok(tokenizer_decode(t, tokens.ids, tokens.count, &text, &bytes, &e), &e);
    assert_int_equal(bytes, 4);
    assert_memory_equal(text, "a\0b\0", 4);
    free(text);
    free(tokens.ids);
    encoder_destroy(encoder);
    tokenizer_destroy(t);
}

// Pretokens of half a megabyte, and more spaces than PCRE2's default limits would bear.
static void huge_inputs(void **state)
{
    const size_t bytes = 1 << 19, spaces = 12 << 20;
    struct tokenizer *t = tiny_tokenizer();
    struct encoder *encoder = encoder_create(t);
    struct token_list tokens = {0};
    char *text = malloc(spaces);

    (void)state;
    memset(text, 'a', bytes);
    assert_int_equal(encode_count(encoder, text, bytes, &tokens), bytes / 2);
    for (size_t i = 0; i < tokens.count; i++)
        assert_int_equal(tokens.ids[i], 2312); // "aa", as in the golden file
    memset(text, '\t', spaces);
    text[spaces - 1] = 'a';
    assert_int_equal(encode_count(encoder, text, spaces, &tokens), spaces);
    for (size_t i = 0; i < bytes; i += 2)
        memcpy(text + i, "\xcc\x81", 2); // a run of accents
    assert_int_equal(encode_count(encoder, text, bytes, &tokens), bytes);
    free(text);
    free(tokens.ids);
    encoder_destroy(encoder);
    tokenizer_destroy(t);
}

// A long pretoken, which the heap merges, gives the tokens of its parts, which the scan merges,
// when the parts end where no rule reaches across.
static void long_pretokens(void **state)
{
    struct tokenizer *t = tiny_tokenizer();
    struct encoder *encoder = encoder_create(t);
    struct token_list whole = {0}, part = {0};
    char word[48], text[48 * 40];
    uint32_t counter = 1 << 20;

    (void)state;
    for (int round = 0; round < 200; round++) {
        size_t used = 0, expected = 0;
        struct token_list joined = {0};

        for (int i = 0; i < 20; i++) {
            size_t n = 1 + random_next(&counter) % 40;
            for (size_t k = 0; k < n; k++)
                word[k] = (char)("etaoinsr"[random_next(&counter) % 8]);
            memcpy(word + n, "\xe1\xa0\xa0", 3); // a Mongolian letter: no merge rule touches it
            n += 3;
            memcpy(text + used, word, n);
            used += n;
            encode_count(encoder, word, n, &part);
            memcpy(token_list_reserve(&joined, part.count), part.ids,
                   part.count * sizeof *part.ids);
            joined.count += part.count;
        }
        expected = joined.count;
        assert_int_equal(encode_count(encoder, text, used, &whole), expected);
        assert_memory_equal(whole.ids, joined.ids, expected * sizeof *whole.ids);
        free(joined.ids);
    }
    free(whole.ids);
    free(part.ids);
    encoder_destroy(encoder);
    tokenizer_destroy(t);
}

// The tiny tokenizer with few of its merges, for a test to change before it is loaded.
static json_t *small_json(void)
{
    static json_t *small; // the first caller's, kept for the others

    if (!small) {
        json_t *merges;
        small = json_file(TINY_TOKENIZER);
        merges = json_object_get(json_object_get(small, "model"), "merges");
        while (json_array_size(merges) > 40)
            json_array_remove(merges, json_array_size(merges) - 1);
    }
    return json_deep_copy(small);
}

static int json_tokenizer(json_t *root, struct tokenizer **t, struct fl_error *e)
{
    char *text = json_dumps(root, 0), *path = temporary_file(text, strlen(text));
    int rc = tokenizer_load(path, t, e);

    if (rc < 0 && strncmp(e->text, path, strlen(path)) != 0)
        fail_msg("'%s' does not start with the file's name", e->text);
    temporary_remove(path);
    free(text);
    json_decref(root);
    return rc;
}

// The value at a path of keys and indexes such as "model.merges.3" becomes the given JSON; no JSON
// removes it.
static json_t *json_edited(const char *path, const char *value)
{
    json_t *root = small_json(), *at = root;
    char *words = strdup(path), *rest = words, *word, *next = strsep(&rest, ".");

    while ((word = next, next = strsep(&rest, ".")))
        at = json_is_array(at) ? json_array_get(at, strtoul(word, NULL, 10))
                               : json_object_get(at, word);
    assert_non_null(at);
    if (json_is_array(at))
        json_array_set_new(at, strtoul(word, NULL, 10), json_loads(value, JSON_DECODE_ANY, NULL));
    else if (value)
        json_object_set_new(at, word, json_loads(value, JSON_DECODE_ANY, NULL));
    else
        json_object_del(at, word);
    free(words);
    return root;
}

static void refused_kinds(void **state)
{
    static const struct {
        const char *path, *value, *words;
    } cases[] = {
        {"normalizer", "{\"type\": \"NFKC\"}", "normalizer 'NFKC' is not supported"},
        {"pre_tokenizer", "{\"type\": \"Whitespace\"}", "pre_tokenizer 'Whitespace'"},
        {"pre_tokenizer", "null", "pre_tokenizer ''"},
        {"pre_tokenizer.pretokenizers", "[]", "sequence of 0"},
        {"pre_tokenizer.pretokenizers.0", "{\"type\": \"Digits\"}", "pre_tokenizer 'Digits'"},
        {"pre_tokenizer.pretokenizers.1", "{\"type\": \"Metaspace\"}", "pre_tokenizer 'Metaspace'"},
        {"pre_tokenizer.pretokenizers.1.add_prefix_space", "true", "'add_prefix_space'"},
        {"pre_tokenizer.pretokenizers.1.use_regex", "true", "'use_regex'"},
        {"pre_tokenizer.pretokenizers.1.use_regex", NULL, "'use_regex'"},
        {"pre_tokenizer.pretokenizers.0.behavior", "\"Removed\"", "'Removed'"},
        {"pre_tokenizer.pretokenizers.0.invert", "true", "'invert'"},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"String\": \" \"}", "no pattern.Regex"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"a(\"", "does not compile"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"\\\\w+\"", "escape '\\w' at 1"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"[a\\\\S]\"", "escape '\\S'"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"[a[b]]\"", "nested class"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"[a&&b]\"", "class intersection"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"a\\\\\"", "escape"},
        {"post_processor", "{\"type\": \"TemplateProcessing\"}", "post_processor 'Template"},
        {"model.type", "\"Unigram\"", "model 'Unigram' is not supported"},
        {"model.type", NULL, "model ''"},
        {"model.dropout", "0.1", "'dropout'"},
        {"model.end_of_word_suffix", "\"</w>\"", "'end_of_word_suffix'"},
        {"model.continuing_subword_prefix", "\"##\"", "'continuing_subword_prefix'"},
        {"model.byte_fallback", "true", "'byte_fallback'"},
        {"model.vocab", "[]", "model.vocab is missing or no object"},
        {"model.vocab.in", "\"x\"", "model.vocab['in']: not an id of its own"},
        {"model.vocab.in", "-1", "model.vocab['in']"},
        {"model.vocab.in", "99999999999", "model.vocab['in']"},
        {"model.vocab.in", "3", "not an id of its own"},
        {"model.vocab.a", NULL, "no token for byte 0x61"},
        {"model.merges", "{}", "model.merges is missing"},
        {"model.merges.5", "\"abc\"", "model.merges[5]: neither"},
        {"model.merges.5", "\"a b c\"", "model.merges[5]: neither"},
        {"model.merges.5", "[\"a\", 7]", "model.merges[5]: neither"},
        {"model.merges.5", "[\"a\", \"b\", \"c\"]", "model.merges[5]: neither"},
        {"model.merges.5", "[\"qqqq\", \"b\"]", "model.merges[5]: 'qqqq' is not in model.vocab"},
        {"model.merges.5", "[\"~\", \"?\"]", "model.merges[5]: '~?' is not in model.vocab"},
        {"added_tokens.0.content", "\"\"", "added_tokens[0]: needs a content"},
        {"added_tokens.0.id", "null", "added_tokens[0]: needs a content"},
        {"added_tokens.1.id", "4095", "added_tokens[2]: '<|im_end|>' does not have an id of"},
        {"added_tokens.1.id", "7", "added_tokens[1]: '<|im_start|>' does not have an id of"},
        {"added_tokens.1.id", "-7", "added_tokens[1]"},
        {"added_tokens.1.content", "\"in\"", "added_tokens[1]: 'in' does not have an id of"},
        {"added_tokens.1.lstrip", "true", "added_tokens[1] with 'lstrip' is not supported"},
        {"added_tokens.1.rstrip", "true", "'rstrip'"},
        {"added_tokens.1.single_word", "true", "'single_word'"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tokenizer *t;
        struct fl_error e;
        check_error(json_tokenizer(json_edited(cases[i].path, cases[i].value), &t, &e), &e,
                    cases[i].words);
        assert_null(t);
    }
}

static void broken_files(void **state)
{
    struct tokenizer *t;
    struct fl_error e;
    char *path;

    (void)state;
    check_error(tokenizer_load("/nonexistent/tokenizer.json", &t, &e), &e,
                "/nonexistent/tokenizer.json: cannot open");
    path = temporary_file("{\n\"model\": tru\n}", 17);
    check_error(tokenizer_load(path, &t, &e), &e, "line 2, column ");
    temporary_remove(path);
    path = temporary_file("[]", 2);
    check_error(tokenizer_load(path, &t, &e), &e, "pre_tokenizer ''");
    temporary_remove(path);
    path = temporary_file("", 0);
    check_error(tokenizer_load(path, &t, &e), &e, "line 1");
    temporary_remove(path);
}

static void check_ids(json_t *root, const char *text, const int32_t *ids, size_t count)
{
    struct tokenizer *t;
    struct encoder *encoder;
    struct token_list tokens = {0};
    struct fl_error e;

    check_ok(json_tokenizer(root, &t, &e), &e);
    encoder = encoder_create(t);
    assert_int_equal(encode_count(encoder, text, strlen(text), &tokens), count);
    assert_memory_equal(tokens.ids, ids, count * sizeof *ids);
    free(tokens.ids);
    encoder_destroy(encoder);
    tokenizer_destroy(t);
}

static int32_t vocab_id(const char *token)
{
    json_t *root = small_json();
    int32_t id = (int32_t)json_integer_value(
        json_object_get(json_object_get(json_object_get(root, "model"), "vocab"), token));
    json_decref(root);
    return id;
}

// Merges written as "a b"; a whole pretoken without merges; added tokens with a common beginning,
// tokens that are looked for in form C only.
static void variants(void **state)
{
    const int32_t in = vocab_id("in"), i = vocab_id("i"), n = vocab_id("n"), a = vocab_id("a");
    const int32_t return_id = vocab_id("return");
    json_t *root, *added;

    (void)state;
    check_ids(json_edited("model.merges", "[\"i n\"]"), "in", &in, 1);
    check_ids(json_edited("model.merges", "[\"a t\"]"), "in", (int32_t[]){i, n}, 2);
    root = json_edited("model.ignore_merges", "true");
    json_object_set_new(json_object_get(root, "model"), "merges", json_array());
    check_ids(root, "return", &return_id, 1);

    root = small_json();
    added = json_object_get(root, "added_tokens");
    json_array_append_new(added, json_pack("{s:i, s:s, s:b}", "id", 5000, "content", "<|im_end|>in",
                                           "normalized", 0));
    json_array_append_new(added, json_pack("{s:i, s:s, s:b}", "id", 5001, "content",
                                           "\xc3\xa9\xc3\xa9", "normalized", 1));
    check_ids(json_incref(root), "a<|im_end|>in<|im_end|>a", (int32_t[]){a, 5000, 4095, a}, 4);
    check_ids(json_incref(root),
              "ae\xcc\x81\xc3\xa9"
              "a",
              (int32_t[]){a, 5001, a}, 3);
    json_array_append_new(
        added, json_pack("{s:i, s:s, s:b}", "id", 5002, "content", "e\xcc\x81", "normalized", 0));
    check_ids(root, "ae\xcc\x81", (int32_t[]){a, 5002}, 2);
}

// U+180E is no white space in Unicode since 6.3, though PCRE2's \s takes it; U+2003 is. A rule that
// joins a space and the first byte of either shows whether they were one pretoken.
static void white_space(void **state)
{
    json_t *root = json_edited("pre_tokenizer.pretokenizers.0.pattern.Regex", "\"\\\\s+|\\\\S+\"");
    json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab");
    struct tokenizer *t;
    struct encoder *encoder;
    struct token_list tokens = {0};
    struct fl_error e;

    (void)state;
    json_object_set_new(vocab, "\xc4\xa0\xc3\xa1", json_integer(6000));
    json_object_set_new(vocab, "\xc4\xa0\xc3\xa2", json_integer(6001));
    json_object_set_new(
        model, "merges",
        json_pack("[[s, s], [s, s]]", "\xc4\xa0", "\xc3\xa1", "\xc4\xa0", "\xc3\xa2"));
    check_ok(json_tokenizer(root, &t, &e), &e);
    encoder = encoder_create(t);
    assert_int_equal(encode_count(encoder, " \xe1\xa0\x8e", 4, &tokens), 4);
    assert_int_equal(encode_count(encoder, " \xe2\x80\x83", 4, &tokens), 3);
    assert_int_equal(tokens.ids[0], 6001);
    free(tokens.ids);
    encoder_destroy(encoder);
    tokenizer_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_tiny),        cmocka_unit_test(inverse),
        cmocka_unit_test(settled_characters), cmocka_unit_test(invalid_utf8),
        cmocka_unit_test(nul_bytes),          cmocka_unit_test(huge_inputs),
        cmocka_unit_test(long_pretokens),     cmocka_unit_test(refused_kinds),
        cmocka_unit_test(broken_files),       cmocka_unit_test(variants),
        cmocka_unit_test(white_space),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
