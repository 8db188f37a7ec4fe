// SPDX-License-Identifier: Apache-2.0
// The chat templates of Qwen's instruction models.
#include "data/template.h"

#include "base/memory.h"
#include "data/json_text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct template
{
    struct encoder *encoder;
    enum template_kind kind;
    char *text; // rendered and not yet tokenised
    size_t bytes, capacity;
};

const char *role_name(enum role role)
{
    static const char *const names[ROLES] = {"system", "user", "assistant", "tool"};
    return names[role];
}

enum template_kind template_kind_of(const char *text)
{
    return text && strstr(text, "<think>") ? TEMPLATE_QWEN3 : TEMPLATE_CODER;
}

int template_create(const struct tokenizer *tokenizer, enum template_kind kind,
                    struct template **out, struct fl_error *e)
{
    static const char *const needed[] = {"<|im_start|>", "<|im_end|>"};

    *out = NULL;
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (tokenizer_added(tokenizer, needed[i]) < 0)
            return error_set(e, -EINVAL,
                             "tokenizer.json has no added token %s, which the chat template needs: "
                             "use an instruction-tuned Qwen model's",
                             needed[i]);
    *out = memory_zeroed(1, sizeof **out);
    (*out)->encoder = encoder_create(tokenizer);
    (*out)->kind = kind;
    return 0;
}

void template_destroy(struct template *t)
{
    if (!t)
        return;
    encoder_destroy(t->encoder);
    free(t->text);
    free(t);
}

static void render(struct template *t, const char *text, size_t bytes)
{
    if (t->capacity - t->bytes < bytes) {
        t->capacity = 2 * t->capacity + bytes;
        t->text = memory_resize(t->text, t->capacity, 1);
    }
    if (bytes)
        memcpy(t->text + t->bytes, text, bytes);
    t->bytes += bytes;
}

static void render_string(struct template *t, const char *text)
{
    render(t, text, strlen(text));
}

// Tokenises what has been rendered since the last time.
static int flush(struct template *t, bool loss, struct sample_list *out, struct fl_error *e)
{
    size_t before = out->tokens.count;
    int rc = encoder_append(t->encoder, t->text, t->bytes, &out->tokens, e);

    t->bytes = 0;
    if (rc < 0)
        return rc;
    if (out->loss_capacity < out->tokens.count) {
        out->loss_capacity = out->tokens.capacity;
        out->loss = memory_resize(out->loss, out->loss_capacity, 1);
    }
    if (out->tokens.count > before)
        memset(out->loss + before, loss, out->tokens.count - before);
    return 0;
}

// A part of a message's text.
struct span {
    const char *at;
    size_t bytes;
};

static struct span newlines_skip(struct span s)
{
    while (s.bytes && *s.at == '\n') {
        s.at++;
        s.bytes--;
    }
    return s;
}

static struct span newlines_cut(struct span s)
{
    while (s.bytes && s.at[s.bytes - 1] == '\n')
        s.bytes--;
    return s;
}

static const char *find(struct span s, const char *word)
{
    return s.bytes ? memmem(s.at, s.bytes, word, strlen(word)) : NULL;
}

// What is behind the last word in s, or all.
static struct span behind(struct span s, const char *word)
{
    for (const char *at; (at = find(s, word));) {
        at += strlen(word);
        s = (struct span){at, s.bytes - (size_t)(at - s.at)};
    }
    return s;
}

// An answer's reasoning and the rest: given apart, or as a think block within the content.
static void answer_split(const struct message *m, struct span *reasoning, struct span *content)
{
    const char *end;

    *content = (struct span){m->content, m->bytes};
    *reasoning = (struct span){m->reasoning ? m->reasoning : "", m->reasoning_bytes};
    end = m->reasoning ? NULL : find(*content, "</think>");
    if (!end)
        return;
    *reasoning = newlines_cut((struct span){m->content, (size_t)(end - m->content)});
    *reasoning = newlines_skip(behind(*reasoning, "<think>"));
    *content = newlines_skip(behind(*content, "</think>"));
}

static void render_json(struct template *t, const json_t *value)
{
    size_t bytes;
    char *text = json_text(value, &bytes);

    render(t, text, bytes);
    free(text);
}

static void render_tool_calls(struct template *t, const json_t *calls, bool content)
{
    const json_t *call;
    size_t i;

    json_array_foreach(calls, i, call)
    {
        const json_t *function = json_object_get(call, "function"), *arguments;

        call = function ? function : call;
        arguments = json_object_get(call, "arguments");
        render_string(t,
                      content || i ? "\n<tool_call>\n{\"name\": \"" : "<tool_call>\n{\"name\": \"");
        render_string(t, json_string_value(json_object_get(call, "name")));
        render_string(t, "\", \"arguments\": ");
        if (json_is_string(arguments))
            render(t, json_string_value(arguments), json_string_length(arguments));
        else
            render_json(t, arguments);
        render_string(t, "}\n</tool_call>");
    }
}

// An answer behind the last question keeps its reasoning; the last one has a think block always.
static void render_answer(struct template *t, const struct message *m, bool behind_question,
                          bool last)
{
    struct span reasoning, content;

    if (t->kind == TEMPLATE_CODER) {
        render(t, m->content, m->bytes);
        return;
    }
    answer_split(m, &reasoning, &content);
    if (behind_question && (last || reasoning.bytes)) {
        struct span inner = newlines_cut(newlines_skip(reasoning)), rest = newlines_skip(content);
        render_string(t, "<think>\n");
        render(t, inner.at, inner.bytes);
        render_string(t, "\n</think>\n\n");
        render(t, rest.at, rest.bytes);
    } else {
        render(t, content.at, content.bytes);
    }
    render_tool_calls(t, m->tool_calls, content.bytes != 0);
}

// The system message that lists the tools, which takes the place of the conversation's own.
static void render_tools(struct template *t, const struct conversation *c)
{
    const json_t *tool;
    size_t i;

    render_string(t, "<|im_start|>system\n");
    if (c->count && c->messages[0].role == ROLE_SYSTEM) {
        render(t, c->messages[0].content, c->messages[0].bytes);
        render_string(t, "\n\n");
    }
    render_string(t, "# Tools\n\nYou may call one or more functions to assist with the user query."
                     "\n\nYou are provided with function signatures within <tools></tools> XML "
                     "tags:\n<tools>");
    json_array_foreach(c->tools, i, tool)
    {
        render_string(t, "\n");
        render_json(t, tool);
    }
    render_string(t,
                  "\n</tools>\n\nFor each function call, return a json object with function name "
                  "and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
                  "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>"
                  "<|im_end|>\n");
}

// Responses that follow each other share a turn of the user's.
static void render_response(struct template *t, const struct conversation *c, size_t i)
{
    const struct message *m = &c->messages[i];

    if (i == 0 || m[-1].role != ROLE_TOOL)
        render_string(t, "<|im_start|>user");
    render_string(t, "\n<tool_response>\n");
    render(t, m->content, m->bytes);
    render_string(t, "\n</tool_response>");
    if (i + 1 == c->count || m[1].role != ROLE_TOOL)
        render_string(t, "<|im_end|>\n");
}

static bool wrapped_response(const struct message *m)
{
    static const char begin[] = "<tool_response>", end[] = "</tool_response>";
    const size_t first = sizeof begin - 1, last = sizeof end - 1;

    return m->bytes >= last && !memcmp(m->content, begin, first) &&
           !memcmp(m->content + m->bytes - last, end, last);
}

// Index of the last message that the user wrote and no tool; the last message without one.
static size_t question_find(const struct conversation *c)
{
    for (size_t i = c->count; i-- > 0;)
        if (c->messages[i].role == ROLE_USER && !wrapped_response(&c->messages[i]))
            return i;
    return c->count - 1;
}

static int coder_check(const struct conversation *c, struct fl_error *e)
{
    bool tools = c->tools && json_array_size(c->tools);

    for (size_t i = 0; i < c->count; i++)
        tools |= c->messages[i].role == ROLE_TOOL || c->messages[i].tool_calls;
    if (!tools)
        return 0;
    return error_set(
        e, -ENOTSUP,
        "tools: this version has no text for them in this model's template: write them "
        "into the messages' contents as the model shall see them");
}

// Message i, from <|im_start|> to its end; what counts in the loss is flushed apart.
static int message_append(struct template *t, const struct conversation *c, size_t i,
                          size_t question, struct sample_list *out, struct fl_error *e)
{
    const struct message *m = &c->messages[i];
    bool loss = m->loss && m->role == ROLE_ASSISTANT;
    int rc = 0;

    if (m->role == ROLE_TOOL) {
        render_response(t, c, i);
        return 0;
    }
    render_string(t, "<|im_start|>");
    render_string(t, role_name(m->role));
    render_string(t, "\n");
    if (loss)
        rc = flush(t, false, out, e);
    if (m->role == ROLE_ASSISTANT)
        render_answer(t, m, i > question, i + 1 == c->count);
    else
        render(t, m->content, m->bytes);
    render_string(t, "<|im_end|>\n");
    if (loss && rc == 0)
        rc = flush(t, true, out, e);
    return rc;
}

int template_append(struct template *t, const struct conversation *c, struct sample_list *out,
                    struct fl_error *e)
{
    size_t before = out->tokens.count, first = 0, question = question_find(c);
    int rc = t->kind == TEMPLATE_CODER ? coder_check(c, e) : 0;

    t->bytes = 0;
    if (rc == 0 && json_array_size(c->tools)) {
        render_tools(t, c);
        first = c->count && c->messages[0].role == ROLE_SYSTEM;
    }
    for (size_t i = first; i < c->count && rc == 0; i++)
        rc = message_append(t, c, i, question, out, e);
    if (rc == 0)
        rc = flush(t, false, out, e);
    if (rc < 0)
        out->tokens.count = before;
    return rc;
}
