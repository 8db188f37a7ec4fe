// SPDX-License-Identifier: Apache-2.0
// Text to token ids as Hugging Face's tokenizers library does it for byte-level BPE of the Qwen2
// and Qwen3 kind: added tokens, form C, the file's own split pattern, byte-pair merges by rank.
#ifndef FL_DATA_TOKENIZER_H
#define FL_DATA_TOKENIZER_H

#include "base/error.h"
#include "data/token_list.h"

#include <stddef.h>
#include <stdint.h>

struct tokenizer; // one loaded tokenizer.json; read-only, shared by threads
struct encoder;   // one thread's caches and scratch; borrows its tokenizer

// Reads a tokenizer.json. A tokenizer of another kind is refused by the name of what differs
// (-ENOTSUP), a broken file with its place (-EINVAL). Its truncation and padding are not applied.
int tokenizer_load(const char *path, struct tokenizer **out, struct fl_error *e);

// The same of text in memory; name is the file's name for messages.
int tokenizer_parse(const char *text, size_t bytes, const char *name, struct tokenizer **out,
                    struct fl_error *e);
void tokenizer_destroy(struct tokenizer *t); // NULL-safe

// Largest id + 1.
int32_t tokenizer_size(const struct tokenizer *t);

// The id of the added token (special or not) with this text, or -1.
int32_t tokenizer_added(const struct tokenizer *t, const char *text);

struct encoder *encoder_create(const struct tokenizer *t);
void encoder_destroy(struct encoder *encoder); // NULL-safe

// Appends the ids of text to out, without tokens of a post-processor. Text may hold NUL bytes. Text
// that is not UTF-8 is an error naming the first bad byte (-EILSEQ), as a replacement would train
// on what nobody wrote; on any error out->count is as it was.
int encoder_append(struct encoder *encoder, const char *text, size_t bytes, struct token_list *out,
                   struct fl_error *e);

// The bytes that ids stand for, in form C and perhaps cut inside a character; NUL behind them;
// free(). Added tokens give their text. An id without a token is an error.
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count, char **text,
                     size_t *bytes, struct fl_error *e);

#endif
