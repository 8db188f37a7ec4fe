// SPDX-License-Identifier: Apache-2.0
// Byte-pair encoding: of all neighbours in a pretoken that have a merge rule, the pair of lowest
// rank (leftmost of equals) becomes one token, until none is left.
#ifndef FL_DATA_BPE_H
#define FL_DATA_BPE_H

#include "data/token_list.h"

#include <stddef.h>
#include <stdint.h>

struct bpe;       // the rules; shared by threads once loaded
struct bpe_state; // one thread's scratch memory and cache of recent pretokens (4 MiB)

// bytes: [256] the token of each byte.
struct bpe *bpe_create(const int32_t bytes[256], size_t rules);
void bpe_destroy(struct bpe *b); // NULL-safe

// left right -> id; a pair given twice keeps the later rule.
void bpe_add(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id);

struct bpe_state *bpe_state_create(void);
void bpe_state_destroy(struct bpe_state *state); // NULL-safe

// Appends the tokens of one pretoken of at most INT32_MAX bytes, in O(bytes log bytes).
void bpe_encode(const struct bpe *b, struct bpe_state *state, const char *text, size_t bytes,
                struct token_list *out);

#endif
