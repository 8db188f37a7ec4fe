// SPDX-License-Identifier: Apache-2.0
// Cuts text into pretokens by the regular expression of tokenizer.json, with PCRE2's JIT.
#include "data/split.h"

#include "base/memory.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define JIT_STACK_START (64 << 10)
#define JIT_STACK_LIMIT (8 << 20)

// Unicode's White_Space, as the inside of a class.
#define WHITE_SPACE                                                                                \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"             \
    "\\x{202f}\\x{205f}\\x{3000}"

struct split {
    pcre2_code *code;
};

struct split_state {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

// The pattern in PCRE2's dialect.
static int pattern_translate(const char *pattern, size_t bytes, char **out, size_t *out_bytes,
                             struct fl_error *e)
{
    char *text = memory_zeroed(bytes + 1, sizeof WHITE_SPACE + 4), *to = text;
    bool in_class = false;

    for (size_t i = 0; i < bytes; i++) {
        char c = pattern[i], next = i + 1 < bytes ? pattern[i + 1] : 0;
        const char *refused = NULL;

        if (c == '\\') {
            i++;
            if (next == 's')
                to = stpcpy(to, in_class ? WHITE_SPACE : "[" WHITE_SPACE "]");
            else if (next == 'S' && !in_class)
                to = stpcpy(to, "[^" WHITE_SPACE "]");
            else if ((next && strchr("pPdrnt", next)) || (next > ' ' && next < '0') ||
                     (next && strchr(":;<=>?@[\\]^_`{|}~ ", next))) {
                *to++ = c;
                *to++ = next;
            } else
                refused = "escape";
        } else if (in_class && c == '[')
            refused = "nested class";
        else if (in_class && c == '&' && next == '&')
            refused = "class intersection";
        else {
            if (c == '[' || c == ']')
                in_class = c == '[';
            *to++ = c;
        }
        if (refused) {
            free(text);
            return error_set(e, -ENOTSUP, "%s '%c%c' at %zu of the split pattern is not supported",
                             refused, c, next, i);
        }
    }
    *out = text;
    *out_bytes = (size_t)(to - text);
    return 0;
}

int split_create(const char *pattern, size_t bytes, struct split **out, struct fl_error *e)
{
    char *text = NULL;
    int code, rc;
    PCRE2_SIZE place;
    pcre2_code *compiled;

    *out = NULL;
    rc = pattern_translate(pattern, bytes, &text, &bytes, e);
    if (rc < 0)
        return rc;
    compiled = pcre2_compile((PCRE2_SPTR)text, bytes, PCRE2_UTF | PCRE2_UCP, &code, &place, NULL);
    free(text);
    if (!compiled) {
        char reason[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
        return error_set(e, -EINVAL, "the split pattern does not compile: %s", reason);
    }
    pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE); // without it PCRE2 interprets, only slower
    *out = memory_zeroed(1, sizeof **out);
    (*out)->code = compiled;
    return 0;
}

void split_destroy(struct split *s)
{
    if (!s)
        return;
    pcre2_code_free(s->code);
    free(s);
}

struct split_state *split_state_create(void)
{
    struct split_state *state = memory_zeroed(1, sizeof *state);

    state->match = pcre2_match_data_create(1, NULL);
    state->context = pcre2_match_context_create(NULL);
    state->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_LIMIT, NULL);
    if (state->context)
        pcre2_set_match_limit(state->context, UINT32_MAX); // a long run of spaces counts every one
    if (state->context && state->stack)
        pcre2_jit_stack_assign(state->context, NULL, state->stack);
    return state;
}

void split_state_destroy(struct split_state *state)
{
    if (!state)
        return;
    pcre2_match_data_free(state->match);
    pcre2_match_context_free(state->context);
    pcre2_jit_stack_free(state->stack);
    free(state);
}

int split_next(const struct split *s, struct split_state *state, const char *text, size_t bytes,
               size_t from, size_t *start, size_t *end, struct fl_error *e)
{
    int rc = pcre2_match(s->code, (PCRE2_SPTR)text, bytes, from,
                         PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, state->match, state->context);

    if (rc >= 0) {
        const PCRE2_SIZE *place = pcre2_get_ovector_pointer(state->match);
        *start = place[0];
        *end = place[1];
        return 1;
    }
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    char reason[128];
    pcre2_get_error_message(rc, (PCRE2_UCHAR *)reason, sizeof reason);
    return error_set(e, -EINVAL, "byte %zu: the split pattern gave up: %s; shorten the text", from,
                     reason);
}
