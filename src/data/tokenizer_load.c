// SPDX-License-Identifier: Apache-2.0
// tokenizer.json: read, checked to be of the kind that is supported, and taken apart.
#include "data/tokenizer.h"

#include "base/file.h"
#include "base/memory.h"
#include "data/nfc.h"
#include "data/tokenizer_parts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#define FILE_LIMIT (256u << 20) // bytes; the largest known vocabularies take 40 MB

// The member's string, or "" where it is missing or of another type.
static const char *string_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static int refuse(struct fl_error *e, const char *what, const char *kind)
{
    return error_set(e, -ENOTSUP,
                     "%s '%s' is not supported: only byte-level BPE of the Qwen2/Qwen3 kind is",
                     what, kind);
}

// Options of tokenizer.json that are off in the kind that is supported.
static int options_off(const json_t *object, const char *where, const char *const *names,
                       struct fl_error *e)
{
    for (; *names; names++) {
        const json_t *value = json_object_get(object, *names);
        bool off = !value || json_is_null(value) || json_is_false(value) ||
                   (json_is_string(value) && !*json_string_value(value)) ||
                   (json_is_number(value) && json_number_value(value) == 0);
        if (!off)
            return refuse(e, where, *names);
    }
    return 0;
}

static int normalizer_load(struct tokenizer *t, const json_t *root, struct fl_error *e)
{
    const json_t *normalizer = json_object_get(root, "normalizer");

    if (!normalizer || json_is_null(normalizer))
        return 0;
    if (strcmp(string_of(normalizer, "type"), "NFC") != 0)
        return refuse(e, "normalizer", string_of(normalizer, "type"));
    t->nfc = true;
    return 0;
}

static int split_load(struct tokenizer *t, const json_t *split, struct fl_error *e)
{
    const json_t *regex = json_object_get(json_object_get(split, "pattern"), "Regex");

    if (strcmp(string_of(split, "type"), "Split") != 0)
        return refuse(e, "pre_tokenizer", string_of(split, "type"));
    if (strcmp(string_of(split, "behavior"), "Isolated") != 0)
        return refuse(e, "pre_tokenizer Split of behavior", string_of(split, "behavior"));
    if (json_is_true(json_object_get(split, "invert")))
        return refuse(e, "pre_tokenizer Split with", "invert");
    if (!json_is_string(regex))
        return error_set(e, -EINVAL, "pre_tokenizer Split has no pattern.Regex");
    return split_create(json_string_value(regex), json_string_length(regex), &t->split, e);
}

static int pre_tokenizer_load(struct tokenizer *t, const json_t *root, struct fl_error *e)
{
    const json_t *pre = json_object_get(root, "pre_tokenizer");
    const json_t *list = json_object_get(pre, "pretokenizers"), *level = json_array_get(list, 1);
    int rc;

    if (strcmp(string_of(pre, "type"), "Sequence") != 0)
        return refuse(e, "pre_tokenizer", string_of(pre, "type"));
    if (json_array_size(list) != 2)
        return error_set(e, -ENOTSUP,
                         "pre_tokenizer is a sequence of %zu: only [Split, ByteLevel] is supported",
                         json_array_size(list));
    if (strcmp(string_of(level, "type"), "ByteLevel") != 0)
        return refuse(e, "pre_tokenizer", string_of(level, "type"));
    rc = options_off(level, "pre_tokenizer ByteLevel with",
                     (const char *const[]){"add_prefix_space", NULL}, e);
    if (rc == 0 && !json_is_false(json_object_get(level, "use_regex")))
        rc = refuse(e, "pre_tokenizer ByteLevel with", "use_regex"); // true where it is missing
    return rc < 0 ? rc : split_load(t, json_array_get(list, 0), e);
}

// ByteLevel only moves offsets; others add tokens around the text.
static int post_processor_check(const json_t *root, struct fl_error *e)
{
    const json_t *post = json_object_get(root, "post_processor");

    if (!post || json_is_null(post) || strcmp(string_of(post, "type"), "ByteLevel") == 0)
        return 0;
    return refuse(e, "post_processor", string_of(post, "type"));
}

static int vocab_load(struct tokenizer *t, const json_t *model, struct fl_error *e)
{
    json_t *vocab = json_object_get(model, "vocab"), *id;
    const char *text;
    size_t bytes;

    if (!json_is_object(vocab))
        return error_set(e, -EINVAL, "model.vocab is missing or no object");
    t->vocab = vocab_create(json_object_size(vocab));
    json_object_keylen_foreach(vocab, text, bytes, id)
    {
        if (!json_is_integer(id) || vocab_add(t->vocab, text, bytes, json_integer_value(id)) < 0)
            return error_set(e, -EINVAL, "model.vocab['%s']: not an id of its own between 0 and %d",
                             text, VOCAB_ID_LIMIT - 1);
    }
    return 0;
}

// The two strings of a merge: ["a", "b"], or "a b" as older files write it.
static bool merge_parts(const json_t *merge, const char *part[2], size_t bytes[2])
{
    if (json_is_string(merge)) {
        const char *text = json_string_value(merge), *space = strchr(text, ' ');

        if (!space || strchr(space + 1, ' '))
            return false;
        part[0] = text;
        bytes[0] = (size_t)(space - text);
        part[1] = space + 1;
        bytes[1] = json_string_length(merge) - bytes[0] - 1;
        return true;
    }
    for (size_t i = 0; i < 2; i++) {
        const json_t *string = json_array_get(merge, i);
        part[i] = json_string_value(string);
        bytes[i] = json_string_length(string);
    }
    return json_array_size(merge) == 2 && part[0] && part[1];
}

static int merge_load(struct tokenizer *t, const json_t *merge, size_t rank, struct fl_error *e)
{
    const char *part[2];
    size_t bytes[2];
    int32_t ids[2], id;
    char *both;

    if (!merge_parts(merge, part, bytes))
        return error_set(e, -EINVAL, "model.merges[%zu]: neither [\"a\", \"b\"] nor \"a b\"", rank);
    for (int i = 0; i < 2; i++) {
        ids[i] = vocab_find(t->vocab, part[i], bytes[i]);
        if (ids[i] < 0)
            return error_set(e, -EINVAL, "model.merges[%zu]: '%.*s' is not in model.vocab", rank,
                             (int)bytes[i], part[i]);
    }
    both = memory_zeroed(bytes[0] + bytes[1] + 1, 1);
    memcpy(both, part[0], bytes[0]);
    memcpy(both + bytes[0], part[1], bytes[1]);
    id = vocab_find(t->vocab, both, bytes[0] + bytes[1]);
    if (id < 0)
        error_set(e, -EINVAL, "model.merges[%zu]: '%s' is not in model.vocab", rank, both);
    else
        bpe_add(t->bpe, ids[0], ids[1], (uint32_t)rank, id);
    free(both);
    return id < 0 ? -EINVAL : 0;
}

static int model_load(struct tokenizer *t, const json_t *root, struct fl_error *e)
{
    const json_t *model = json_object_get(root, "model"), *merges, *merge;
    int32_t bytes[256];
    size_t rank;
    int rc;

    if (strcmp(string_of(model, "type"), "BPE") != 0)
        return refuse(e, "model", string_of(model, "type"));
    rc = options_off(model, "model BPE with",
                     (const char *const[]){"dropout", "continuing_subword_prefix",
                                           "end_of_word_suffix", "byte_fallback", NULL},
                     e);
    if (rc == 0)
        rc = vocab_load(t, model, e);
    if (rc < 0)
        return rc;
    for (int byte = 0; byte < 256; byte++) {
        char utf8[2];
        bytes[byte] = vocab_find(t->vocab, utf8, byte_character((uint8_t)byte, utf8));
        if (bytes[byte] < 0)
            return error_set(e, -ENOTSUP,
                             "model.vocab has no token for byte 0x%02x: not byte-level",
                             (unsigned)byte);
    }
    merges = json_object_get(model, "merges");
    if (!json_is_array(merges))
        return error_set(e, -EINVAL, "model.merges is missing or no list");
    t->bpe = bpe_create(bytes, json_array_size(merges));
    json_array_foreach(merges, rank, merge)
    {
        rc = merge_load(t, merge, rank, e);
        if (rc < 0)
            return rc;
    }
    t->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    return 0;
}

static int added_load(struct tokenizer *t, const json_t *token, size_t i, struct fl_error *e)
{
    const json_t *content = json_object_get(token, "content"), *id = json_object_get(token, "id");
    const char *text = json_string_value(content);
    size_t bytes = json_string_length(content), taken;
    char where[64], *form_c = NULL;
    int64_t number, n = 0;
    int32_t known;
    int rc;

    if (!bytes || !json_is_integer(id))
        return error_set(e, -EINVAL, "added_tokens[%zu]: needs a content and an integer id", i);
    snprintf(where, sizeof where, "added_tokens[%zu] with", i);
    rc = options_off(token, where, (const char *const[]){"single_word", "lstrip", "rstrip", NULL},
                     e);
    if (rc < 0)
        return rc;
    number = json_integer_value(id);
    known = vocab_find(t->vocab, text, bytes);
    if ((known >= 0 ? known != number : vocab_text(t->vocab, number, &taken) != NULL) ||
        vocab_add(t->added_texts, text, bytes, number) < 0)
        return error_set(e, -EINVAL, "added_tokens[%zu]: '%s' does not have an id of its own", i,
                         text);
    if (!json_is_true(json_object_get(token, "normalized"))) {
        added_insert(t->raw, text, bytes, (int32_t)number);
        return 0;
    }
    if (t->nfc && (n = nfc_normalize(text, bytes, &form_c)) < 0)
        return error_set(e, (int)n, "added_tokens[%zu]: '%s' cannot be normalised", i, text);
    added_insert(t->normalized, form_c ? form_c : text, form_c ? (size_t)n : bytes,
                 (int32_t)number);
    free(form_c);
    return 0;
}

static int added_tokens_load(struct tokenizer *t, const json_t *root, struct fl_error *e)
{
    const json_t *tokens = json_object_get(root, "added_tokens"), *token;
    size_t i;

    t->added_texts = vocab_create(json_array_size(tokens));
    t->raw = added_create();
    t->normalized = added_create();
    json_array_foreach(tokens, i, token)
    {
        int rc = added_load(t, token, i, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int json_load_text(const char *text, size_t bytes, json_t **root, struct fl_error *e)
{
    json_error_t reason;

    *root = json_loadb(text, bytes, JSON_ALLOW_NUL, &reason);
    if (!*root)
        return error_set(e, -EINVAL, "line %d, column %d: %s: not the JSON of a tokenizer",
                         reason.line, reason.column, reason.text);
    return 0;
}

int tokenizer_parse(const char *text, size_t bytes, const char *name, struct tokenizer **out,
                    struct fl_error *e)
{
    struct tokenizer *t = memory_zeroed(1, sizeof *t);
    json_t *root = NULL;
    int rc;

    *out = NULL;
    if ((rc = json_load_text(text, bytes, &root, e)) < 0 ||
        (rc = normalizer_load(t, root, e)) < 0 || (rc = pre_tokenizer_load(t, root, e)) < 0 ||
        (rc = post_processor_check(root, e)) < 0 || (rc = model_load(t, root, e)) < 0 ||
        (rc = added_tokens_load(t, root, e)) < 0) {
        error_prefix(e, "%s", name);
        tokenizer_destroy(t);
    } else {
        *out = t;
    }
    json_decref(root);
    return rc;
}

int tokenizer_load(const char *path, struct tokenizer **out, struct fl_error *e)
{
    char *text;
    size_t bytes;
    int rc;

    *out = NULL;
    rc = file_read(path, FILE_LIMIT, &text, &bytes, e);
    if (rc < 0)
        return rc;
    rc = tokenizer_parse(text, bytes, path, out, e);
    free(text);
    return rc;
}

void tokenizer_destroy(struct tokenizer *t)
{
    if (!t)
        return;
    vocab_destroy(t->vocab);
    vocab_destroy(t->added_texts);
    added_destroy(t->raw);
    added_destroy(t->normalized);
    split_destroy(t->split);
    bpe_destroy(t->bpe);
    free(t);
}
