// SPDX-License-Identifier: Apache-2.0
// Names, values, presets and help, all driven by the rows of the flag table.
#include "job/flags.h"

#include "base/memory.h"
#include "base/nearest.h"

#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define SHOWN "%.80s" // of a user's value in a message

// Index of word[length] among words separated by spaces, or -1.
static int words_find(const char *words, const char *word, size_t length)
{
    int index = 0;

    for (const char *w = words; w && *w; index++) {
        size_t n = strcspn(w, " ");
        if (n == length && !memcmp(w, word, n))
            return index;
        w += n + strspn(w + n, " ");
    }
    return -1;
}

static const char *name_skip_dashes(const char *name)
{
    return name + strspn(name, "-");
}

const struct flag *flag_find(const char *name)
{
    char plain[64];
    size_t count, n;
    const struct flag *rows = flags_table(&count);

    name = name_skip_dashes(name);
    n = strlen(name);
    if (n >= sizeof plain)
        return NULL;
    for (size_t i = 0; i <= n; i++)
        plain[i] = name[i] == '-' ? '_' : name[i];
    for (size_t i = 0; i < count; i++) {
        if (!strcmp(rows[i].name, plain))
            return &rows[i];
        for (const char *const *alias = rows[i].aliases; *alias; alias++)
            if (!strcmp(*alias, plain))
                return &rows[i];
    }
    return NULL;
}

const char *flag_nearest(const char *name)
{
    size_t count, known = 0;
    const struct flag *rows = flags_table(&count);
    const char **names = memory_zeroed((1 + FLAG_ALIASES) * count, sizeof *names);
    const char *nearest;

    for (size_t i = 0; i < count; i++) {
        names[known++] = rows[i].name;
        for (const char *const *alias = rows[i].aliases; *alias; alias++)
            names[known++] = *alias;
    }
    nearest = nearest_name(name_skip_dashes(name), names, known);
    free(names);
    return nearest;
}

static int range_check(const char *range, double value, const char *text, struct fl_error *e)
{
    char *end;
    double low = strtod(range + 1, &end), high = strtod(end + 1, &end);
    bool above = *range == '[' ? value >= low : value > low;
    bool below = *end == ']' ? value <= high : value < high;

    return above && below ? 0 : error_set(e, -ERANGE, "'" SHOWN "' is not in %s", text, range);
}

static int real_parse(const char *text, double *value, struct fl_error *e)
{
    locale_t plain;
    char *end;
    int error;

    if (!*text || text[strspn(text, "0123456789+-.eE")])
        return error_set(e, -EINVAL, "'" SHOWN "' is not a number", text);
    plain = newlocale(LC_ALL_MASK, "C", NULL);
    if (!plain)
        return error_set(e, -errno, "no memory to read '" SHOWN "'", text);
    errno = 0;
    *value = strtod_l(text, &end, plain);
    error = errno;
    freelocale(plain);
    if (*end)
        return error_set(e, -EINVAL, "'" SHOWN "' is not a number", text);
    if (error == ERANGE)
        return error_set(e, -ERANGE, "'" SHOWN "' does not fit in a double", text);
    return 0;
}

static int whole_parse(const char *text, int64_t low, int64_t high, int64_t *value,
                       struct fl_error *e)
{
    const char *digits = text + (*text == '-');
    char *end;

    if (!*digits || digits[strspn(digits, "0123456789")])
        return error_set(e, -EINVAL, "'" SHOWN "' is not a whole number", text);
    errno = 0;
    *value = strtoll(text, &end, 10);
    if (errno || *value < low || *value > high)
        return error_set(e, -ERANGE, "'" SHOWN "' is out of range", text);
    return 0;
}

static int unsigned_parse(const char *text, uint64_t *value, struct fl_error *e)
{
    if (!*text || text[strspn(text, "0123456789")])
        return error_set(e, -EINVAL, "'" SHOWN "' is not a whole number of 0 or more", text);
    errno = 0;
    *value = strtoull(text, NULL, 10);
    if (errno)
        return error_set(e, -ERANGE, "'" SHOWN "' is too large", text);
    return 0;
}

static int bool_parse(const char *text, bool *value, struct fl_error *e)
{
    *value = !strcasecmp(text, "true") || !strcmp(text, "1");
    if (*value || !strcasecmp(text, "false") || !strcmp(text, "0"))
        return 0;
    return error_set(e, -EINVAL, "'" SHOWN "' is neither true nor false", text);
}

static int choice_parse(const char *choices, const char *text, int *index, struct fl_error *e)
{
    *index = words_find(choices, text, strlen(text));
    if (*index < 0)
        return error_set(e, -EINVAL, "'" SHOWN "' is not one of: %s", text, choices);
    return 0;
}

// In the order of the row's choices.
static const unsigned target_bits[] = {
    LORA_ALL_LINEAR, LORA_QKV, LORA_PROJ, LORA_FC1, LORA_FC2, LORA_Q,
    LORA_K,          LORA_V,   LORA_PROJ, LORA_FC1, LORA_FC2,
};

static int targets_parse(const struct flag *flag, size_t count, const char *const *values,
                         unsigned *targets, struct fl_error *e)
{
    *targets = 0;
    for (size_t i = 0; i < count; i++) {
        int index, rc;
        if (words_find("router gate linear_router output_layer lm_head", values[i],
                       strlen(values[i])) >= 0)
            return error_set(e, -EINVAL, "router and output layer get no adapter: leave '%s' out",
                             values[i]);
        rc = choice_parse(flag->choices, values[i], &index, e);
        if (rc)
            return rc;
        *targets |= target_bits[index];
    }
    if ((*targets & LORA_QKV) && (*targets & (LORA_Q | LORA_K | LORA_V)))
        return error_set(e, -EINVAL,
                         "linear_qkv shares one A between q, k and v: give either it or q_proj, "
                         "k_proj and v_proj");
    return 0;
}

static void list_free(char **list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(list[i]);
    free(list);
}

static void list_set(char ***list, size_t *list_count, size_t count, const char *const *values)
{
    list_free(*list, *list_count);
    *list = memory_zeroed(count, sizeof **list);
    *list_count = count;
    for (size_t i = 0; i < count; i++)
        (*list)[i] = memory_string(values[i]);
}

static int number_check(const struct flag *flag, double value, const char *text, struct fl_error *e)
{
    int index;

    if (flag->range)
        return range_check(flag->range, value, text, e);
    return flag->choices ? choice_parse(flag->choices, text, &index, e) : 0;
}

// What this build refuses although the old trainer knows it.
static int only_check(const struct flag *flag, const char *text, struct fl_error *e)
{
    bool on;

    if (!flag->only)
        return 0;
    if (flag->type == FLAG_BOOL && bool_parse(text, &on, e) == 0)
        text = on ? "true" : "false";
    if (words_find(flag->only, text, strlen(text)) >= 0)
        return 0;
    return error_set(e, -ENOTSUP, "'" SHOWN "' is not supported: use %s", text, flag->only);
}

static int scalar_set(void *at, const struct flag *flag, const char *text, struct fl_error *e)
{
    int64_t whole = 0;
    int rc = 0;

    switch (flag->type) {
    case FLAG_BOOL:
        rc = bool_parse(text, at, e);
        break;
    case FLAG_INT:
        rc = whole_parse(text, INT32_MIN, INT32_MAX, &whole, e);
        if (!rc)
            rc = number_check(flag, (double)whole, text, e);
        if (!rc)
            *(int *)at = (int)whole;
        break;
    case FLAG_INT64:
        rc = whole_parse(text, INT64_MIN, INT64_MAX, at, e);
        if (!rc)
            rc = number_check(flag, (double)*(int64_t *)at, text, e);
        break;
    case FLAG_UINT64:
        rc = unsigned_parse(text, at, e);
        break;
    case FLAG_REAL:
        rc = real_parse(text, at, e);
        if (!rc)
            rc = number_check(flag, *(double *)at, text, e);
        break;
    case FLAG_CHOICE:
        rc = choice_parse(flag->choices, text, at, e);
        break;
    case FLAG_WORD:
        free(*(char **)at);
        *(char **)at = memory_string(text);
        break;
    case FLAG_LIST:
    case FLAG_TARGETS:
        break;
    }
    return rc ? rc : only_check(flag, text, e);
}

int flag_set(struct spec *spec, const struct flag *flag, size_t count, const char *const *values,
             struct fl_error *e)
{
    union {
        bool b;
        int i;
        int64_t i64;
        uint64_t u64;
        double d;
        char *word;
    } nowhere = {.word = NULL};
    void *at = flag->offset == FLAG_NOWHERE ? (void *)&nowhere : (char *)spec + flag->offset;
    int rc;

    if (count == 0)
        return error_set(e, -EINVAL, "has no value");
    for (size_t i = 0; i < count; i++)
        if (!*values[i])
            return error_set(e, -EINVAL, "has an empty value");
    if (flag->type == FLAG_TARGETS)
        return targets_parse(flag, count, values, at, e);
    if (flag->type == FLAG_LIST) {
        list_set(at, (size_t *)((char *)spec + flag->count_offset), count, values);
        return 0;
    }
    if (count > 1)
        return error_set(e, -EINVAL, "takes one value, not %zu", count);
    rc = scalar_set(at, flag, *values, e);
    if (flag->type == FLAG_WORD && at == &nowhere)
        free(nowhere.word);
    return rc;
}

void flags_preset(struct spec *spec)
{
    size_t count;
    const struct flag *rows = flags_table(&count);

    for (size_t i = 0; i < count; i++)
        if (rows[i].preset && rows[i].offset != FLAG_NOWHERE)
            flag_set(spec, &rows[i], 1, &rows[i].preset, NULL);
}

void flags_release(struct spec *spec)
{
    size_t count;
    const struct flag *rows = flags_table(&count);

    for (size_t i = 0; i < count; i++) {
        void *at;
        if (rows[i].offset == FLAG_NOWHERE)
            continue;
        at = (char *)spec + rows[i].offset;
        if (rows[i].type == FLAG_WORD)
            free(*(char **)at);
        if (rows[i].type == FLAG_LIST)
            list_free(*(char ***)at, *(size_t *)((char *)spec + rows[i].count_offset));
    }
}

static const char *type_name(enum flag_type type)
{
    static const char *const names[] = {
        [FLAG_BOOL] = "true|false", [FLAG_INT] = "N",      [FLAG_INT64] = "N",
        [FLAG_UINT64] = "N",        [FLAG_REAL] = "X",     [FLAG_CHOICE] = "CHOICE",
        [FLAG_WORD] = "TEXT",       [FLAG_LIST] = "FILE…", [FLAG_TARGETS] = "MODULE…",
    };
    return names[type];
}

void flags_print(FILE *out)
{
    size_t count;
    const struct flag *rows = flags_table(&count);

    for (size_t i = 0; i < count; i++) {
        const struct flag *f = &rows[i];
        fprintf(out, "--%s %s\n", f->name, type_name(f->type));
        fprintf(out, "    %s", f->help);
        if (f->preset)
            fprintf(out, " (default %s)", f->preset);
        fputc('\n', out);
        for (const char *const *alias = f->aliases; *alias; alias++)
            fprintf(out, "    also: --%s\n", *alias);
        if (f->only)
            fprintf(out, "    values: %s\n", f->only);
        else if (f->choices || f->range)
            fprintf(out, "    values: %s\n", f->choices ? f->choices : f->range);
        if (f->note)
            fprintf(out, "    note: %s\n", f->note);
    }
}
