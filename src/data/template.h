// SPDX-License-Identifier: Apache-2.0
// The chat template of Qwen's instruction models, as token ids with a loss mask.
//
// Every message becomes "<|im_start|>ROLE\nCONTENT<|im_end|>\n"; no system message is added. The
// loss covers the content of assistant messages and their "<|im_end|>\n".
//
// The rendered string is Hugging Face's. It is tokenised in parts that end where the loss starts or
// ends, so that an answer's first token is never joined with the newline before it: at inference
// the prompt ends there too. As there, the text of a special token within a message becomes that
// token: data from strangers can close its own turn.
#ifndef FL_DATA_TEMPLATE_H
#define FL_DATA_TEMPLATE_H

#include "data/tokenizer.h"

#include <stdbool.h>

enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLES };

// "system", "user", "assistant".
const char *role_name(enum role role);

struct message {
    enum role role;
    const char *content; // UTF-8, borrowed, may hold NUL bytes
    size_t bytes;
    bool loss; // counts in assistant messages only
};

// Samples' tokens one after another. Starts as {0}; its owner frees tokens.ids and loss.
struct sample_list {
    struct token_list tokens;
    uint8_t *loss; // [tokens.count] 1: predicting this token counts
    size_t loss_capacity;
};

struct template; // one thread's; borrows the tokenizer

// Fails when the tokenizer lacks <|im_start|> or <|im_end|>.
int template_create(const struct tokenizer *tokenizer, struct template **out, struct fl_error *e);
void template_destroy(struct template *t); // NULL-safe

// Appends one sample. On error out is as it was.
int template_append(struct template *t, const struct message *messages, size_t count,
                    struct sample_list *out, struct fl_error *e);

#endif
