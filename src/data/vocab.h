// SPDX-License-Identifier: Apache-2.0
// The strings of a vocabulary and their ids, and the printable alphabet that byte-level
// tokenizers write bytes in.
#ifndef FL_DATA_VOCAB_H
#define FL_DATA_VOCAB_H

#include <stddef.h>
#include <stdint.h>

#define VOCAB_ID_LIMIT (1 << 24) // ids are below this

struct vocab;

struct vocab *vocab_create(size_t expected_tokens);
void vocab_destroy(struct vocab *v); // NULL-safe

// Copies text. -ERANGE: id is not in 0..VOCAB_ID_LIMIT-1; -EEXIST: id or text has been added
// before.
int vocab_add(struct vocab *v, const char *text, size_t bytes, int64_t id);

// The id of text, or -1.
int32_t vocab_find(const struct vocab *v, const char *text, size_t bytes);

// The string of id, borrowed and not NUL-terminated; NULL where no string has this id.
const char *vocab_text(const struct vocab *v, int64_t id, size_t *bytes);

// Largest id + 1.
int32_t vocab_size(const struct vocab *v);

// GPT-2's alphabet: a byte that Latin-1 prints is its own character, the other 68 are U+0100...
// Writes the character's UTF-8 (at most 2 bytes) and returns its length.
size_t byte_character(uint8_t byte, char utf8[2]);

// Bytes that a string of that alphabet stands for: writes at most `bytes` of them to out and
// returns how many, or -1 where a character is not of the alphabet.
ptrdiff_t byte_string(const char *text, size_t bytes, uint8_t *out);

#endif
