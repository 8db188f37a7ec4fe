// SPDX-License-Identifier: Apache-2.0
// The chat template of Qwen's instruction models.
#include "data/template.h"

#include "base/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct template
{
    struct encoder *encoder;
    char *text; // rendered and not yet tokenised
    size_t bytes, capacity;
};

const char *role_name(enum role role)
{
    static const char *const names[ROLES] = {"system", "user", "assistant"};
    return names[role];
}

int template_create(const struct tokenizer *tokenizer, struct template **out, struct fl_error *e)
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

int template_append(struct template *t, const struct message *messages, size_t count,
                    struct sample_list *out, struct fl_error *e)
{
    size_t before = out->tokens.count;
    int rc = 0;

    t->bytes = 0;
    for (size_t i = 0; i < count && rc == 0; i++) {
        const struct message *m = &messages[i];
        bool loss = m->loss && m->role == ROLE_ASSISTANT;

        render_string(t, "<|im_start|>");
        render_string(t, role_name(m->role));
        render_string(t, "\n");
        if (loss)
            rc = flush(t, false, out, e);
        render(t, m->content, m->bytes);
        render_string(t, "<|im_end|>\n");
        if (loss && rc == 0)
            rc = flush(t, true, out, e);
    }
    if (rc == 0)
        rc = flush(t, false, out, e);
    if (rc < 0)
        out->tokens.count = before;
    return rc;
}
