// SPDX-License-Identifier: Apache-2.0
// The chat templates of Qwen's instruction models, as token ids with a loss mask.
//
// Every message becomes "<|im_start|>ROLE\nCONTENT<|im_end|>\n"; no system message is added. The
// loss covers the content of assistant messages and their "<|im_end|>\n".
//
// Qwen3's template adds what the one of Qwen3-Coder's models has no text for here: the reasoning of
// answers behind the last question in a think block (an empty one where the last answer has none),
// which counts in the loss; the tools of the conversation; tool calls; tools' responses.
//
// The rendered string is Hugging Face's. It is tokenised in parts that end where the loss starts or
// ends, so that an answer's first token is never joined with the newline before it: at inference
// the prompt ends there too. As there, the text of a special token within a message becomes that
// token: data from strangers can close its own turn.
#ifndef FL_DATA_TEMPLATE_H
#define FL_DATA_TEMPLATE_H

#include "data/tokenizer.h"

#include <jansson.h>
#include <stdbool.h>

enum template_kind { TEMPLATE_CODER, TEMPLATE_QWEN3 };

enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL, ROLES };

// "system", "user", "assistant", "tool".
const char *role_name(enum role role);

struct message {
    enum role role;
    const char *content; // UTF-8, borrowed, may hold NUL bytes
    size_t bytes;
    bool loss;             // counts in assistant messages only
    const char *reasoning; // NULL: none given beside the content
    size_t reasoning_bytes;
    const json_t *tool_calls; // list of {"name", "arguments"} or {"function": those}, or NULL
};

struct conversation {
    struct message *messages;
    size_t count;
    const json_t *tools; // list, or NULL
};

// Samples' tokens one after another. Starts as {0}; its owner frees tokens.ids and loss.
struct sample_list {
    struct token_list tokens;
    uint8_t *loss; // [tokens.count] 1: predicting this token counts
    size_t loss_capacity;
};

struct template; // one thread's; borrows the tokenizer

// The kind that a model's own template is of: Qwen3's knows think blocks. text: of
// tokenizer_config.json or chat_template.jinja; NULL: the model has none.
enum template_kind template_kind_of(const char *text);

// Fails when the tokenizer lacks <|im_start|> or <|im_end|>.
int template_create(const struct tokenizer *tokenizer, enum template_kind kind,
                    struct template **out, struct fl_error *e);
void template_destroy(struct template *t); // NULL-safe

// Appends one sample. On error out is as it was. Tools, tool calls and tool messages are -ENOTSUP
// with TEMPLATE_CODER.
int template_append(struct template *t, const struct conversation *conversation,
                    struct sample_list *out, struct fl_error *e);

#endif
