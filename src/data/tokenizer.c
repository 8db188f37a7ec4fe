// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back.
#include "data/tokenizer.h"

#include "data/nfc.h"
#include "data/tokenizer_parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct encoder {
    const struct tokenizer *tokenizer;
    struct split_state *split;
    struct bpe_state *bpe;
    char *alphabet; // a pretoken in the byte alphabet
    size_t alphabet_capacity;
    bool normal; // the text is in form C already
};

int32_t tokenizer_size(const struct tokenizer *t)
{
    int32_t model = vocab_size(t->vocab), added = vocab_size(t->added_texts);
    return model > added ? model : added;
}

int32_t tokenizer_added(const struct tokenizer *t, const char *text)
{
    return vocab_find(t->added_texts, text, strlen(text));
}

struct encoder *encoder_create(const struct tokenizer *t)
{
    struct encoder *encoder = memory_zeroed(1, sizeof *encoder);

    encoder->tokenizer = t;
    encoder->split = split_state_create();
    encoder->bpe = bpe_state_create();
    return encoder;
}

void encoder_destroy(struct encoder *encoder)
{
    if (!encoder)
        return;
    split_state_destroy(encoder->split);
    bpe_state_destroy(encoder->bpe);
    free(encoder->alphabet);
    free(encoder);
}

// The token that is the whole pretoken, or -1.
static int32_t whole_token(struct encoder *encoder, const char *text, size_t bytes)
{
    size_t used = 0;

    if (encoder->alphabet_capacity < 2 * bytes) {
        encoder->alphabet_capacity = 2 * bytes;
        encoder->alphabet = memory_resize(encoder->alphabet, 2 * bytes, 1);
    }
    for (size_t i = 0; i < bytes; i++)
        used += byte_character((uint8_t)text[i], encoder->alphabet + used);
    return vocab_find(encoder->tokenizer->vocab, encoder->alphabet, used);
}

static void pretoken_append(struct encoder *encoder, const char *text, size_t bytes,
                            struct token_list *out)
{
    const struct tokenizer *t = encoder->tokenizer;
    int32_t id = t->ignore_merges && bytes ? whole_token(encoder, text, bytes) : -1;

    if (id < 0) {
        bpe_encode(t->bpe, encoder->bpe, text, bytes, out);
        return;
    }
    *token_list_reserve(out, 1) = id;
    out->count++;
}

// Text between added tokens. Matches of the pattern and what lies between them are pretokens.
static int plain_append(struct encoder *encoder, const char *text, size_t bytes,
                        struct token_list *out, struct fl_error *e)
{
    size_t from = 0, start, end;
    int rc = 0;

    while (from < bytes && (rc = split_next(encoder->tokenizer->split, encoder->split, text, bytes,
                                            from, &start, &end, e)) > 0) {
        pretoken_append(encoder, text + from, start - from, out);
        pretoken_append(encoder, text + start, end - start, out);
        from = end;
    }
    if (rc == 0)
        pretoken_append(encoder, text + from, bytes - from, out);
    return rc < 0 ? rc : 0;
}

// What becomes of the text between the tokens of a set.
typedef int piece_append(struct encoder *encoder, const char *text, size_t bytes,
                         struct token_list *out, struct fl_error *e);

static int set_append(struct encoder *encoder, const struct added *set, piece_append *piece,
                      const char *text, size_t bytes, struct token_list *out, struct fl_error *e)
{
    size_t from = 0, start, end;
    int32_t id;
    int rc;

    while (added_next(set, text, bytes, from, &start, &end, &id)) {
        rc = piece(encoder, text + from, start - from, out, e);
        if (rc < 0)
            return rc;
        *token_list_reserve(out, 1) = id;
        out->count++;
        from = end;
    }
    return piece(encoder, text + from, bytes - from, out, e);
}

// A piece of the text as given: into form C, then the tokens that are looked for there.
static int raw_piece_append(struct encoder *encoder, const char *text, size_t bytes,
                            struct token_list *out, struct fl_error *e)
{
    const struct tokenizer *t = encoder->tokenizer;
    char *form_c = NULL;
    int64_t n = (int64_t)bytes;
    int rc;

    if (!encoder->normal && t->nfc) {
        n = nfc_normalize(text, bytes, &form_c);
        if (n < 0)
            return error_set(e, (int)n, "text of %zu bytes: cannot be normalised: %s", bytes,
                             strerror((int)-n));
        text = form_c;
    }
    rc = set_append(encoder, t->normalized, plain_append, text, (size_t)n, out, e);
    free(form_c);
    return rc;
}

int encoder_append(struct encoder *encoder, const char *text, size_t bytes, struct token_list *out,
                   struct fl_error *e)
{
    size_t good, before = out->count;
    int rc;

    if (bytes == 0)
        return 0;
    if (bytes > INT32_MAX / 4) // places within a pretoken are int32_t, and form C may be longer
        return error_set(e, -EFBIG, "text of %zu bytes: at most %d; split it", bytes,
                         INT32_MAX / 4);
    good = utf8_scan(text, bytes, &encoder->normal);
    if (good < bytes)
        return error_set(e, -EILSEQ, "text is not UTF-8 at byte %zu (0x%02x): convert it", good,
                         (unsigned)(uint8_t)text[good]);
    rc = set_append(encoder, encoder->tokenizer->raw, raw_piece_append, text, bytes, out, e);
    if (rc < 0)
        out->count = before;
    return rc;
}

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count, char **text,
                     size_t *bytes, struct fl_error *e)
{
    size_t used = 0, capacity = 0, n;
    char *to = memory_zeroed(1, 1);

    *text = NULL;
    for (size_t i = 0; i < count; i++) {
        const char *token = vocab_text(t->added_texts, ids[i], &n);
        bool added = token != NULL;

        if (!added)
            token = vocab_text(t->vocab, ids[i], &n);
        if (!token) {
            free(to);
            return error_set(e, -EINVAL, "token %d at %zu: not in a vocabulary of %d", ids[i], i,
                             tokenizer_size(t));
        }
        if (capacity < used + n + 1) {
            capacity = 2 * capacity + n + 1;
            to = memory_resize(to, capacity, 1);
        }
        if (!added) {
            ptrdiff_t plain = byte_string(token, n, (uint8_t *)to + used);
            if (plain >= 0) {
                used += (size_t)plain;
                continue;
            }
        }
        memcpy(to + used, token, n);
        used += n;
    }
    to[used] = 0;
    *text = to;
    *bytes = used;
    return 0;
}
