// SPDX-License-Identifier: Apache-2.0
// A job.yaml with some keys changed.
#include "job/job_write.h"

#include "base/memory.h"
#include "job/flags.h"
#include "job/yaml.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUOTED "\"\\" // characters that a double-quoted scalar escapes

static const void *at(const struct spec *spec, const struct flag *flag)
{
    return (const char *)spec + flag->offset;
}

// The word of a choice by its number.
static void choice_print(FILE *out, const char *choices, int index)
{
    const char *word = choices;

    while (index-- > 0)
        word = strchr(word, ' ') + 1;
    fprintf(out, "%.*s", (int)strcspn(word, " "), word);
}

static void word_print(FILE *out, const char *word)
{
    putc('"', out);
    for (; *word; word++) {
        if (strchr(QUOTED, *word))
            putc('\\', out);
        putc(*word, out);
    }
    putc('"', out);
}

static void targets_print(FILE *out, unsigned targets)
{
    static const struct {
        unsigned target;
        const char *name;
    } names[] = {{LORA_QKV, "linear_qkv"}, {LORA_Q, "q_proj"},         {LORA_K, "k_proj"},
                 {LORA_V, "v_proj"},       {LORA_PROJ, "linear_proj"}, {LORA_FC1, "linear_fc1"},
                 {LORA_FC2, "linear_fc2"}};
    const char *between = "";

    if (targets == LORA_ALL_LINEAR) {
        fputs("all-linear", out);
        return;
    }
    putc('[', out);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (targets & names[i].target) {
            fprintf(out, "%s%s", between, names[i].name);
            between = ", ";
        }
    putc(']', out);
}

static void value_print(FILE *out, const struct spec *spec, const struct flag *flag)
{
    const void *value = at(spec, flag);

    switch (flag->type) {
    case FLAG_BOOL:
        fputs(*(const bool *)value ? "true" : "false", out);
        break;
    case FLAG_INT:
        fprintf(out, "%d", *(const int *)value);
        break;
    case FLAG_INT64:
        fprintf(out, "%lld", (long long)*(const int64_t *)value);
        break;
    case FLAG_UINT64:
        fprintf(out, "%llu", (unsigned long long)*(const uint64_t *)value);
        break;
    case FLAG_REAL:
        fprintf(out, "%.17g", *(const double *)value);
        break;
    case FLAG_CHOICE:
        choice_print(out, flag->choices, *(const int *)value);
        break;
    case FLAG_WORD:
        word_print(out, *(char *const *)value);
        break;
    case FLAG_LIST: {
        char *const *words = *(char **const *)value;
        size_t count = *(const size_t *)((const char *)spec + flag->count_offset);
        putc('[', out);
        for (size_t i = 0; i < count; i++) {
            fputs(i ? ", " : "", out);
            word_print(out, words[i]);
        }
        putc(']', out);
        break;
    }
    case FLAG_TARGETS:
        targets_print(out, *(const unsigned *)value);
        break;
    }
}

// The value as it would be written; free().
static char *value_text(const struct spec *spec, const struct flag *flag)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);

    value_print(out, spec, flag);
    fclose(out);
    return text;
}

static bool value_given(const struct spec *spec, const struct flag *flag)
{
    if (flag->type == FLAG_LIST)
        return *(const size_t *)((const char *)spec + flag->count_offset) > 0;
    return flag->type != FLAG_WORD || *(char *const *)at(spec, flag);
}

static bool value_equal(const struct spec *a, const struct spec *b, const struct flag *flag)
{
    char *x, *y;
    bool equal;

    if (value_given(a, flag) != value_given(b, flag))
        return false;
    if (!value_given(a, flag))
        return true;
    x = value_text(a, flag);
    y = value_text(b, flag);
    equal = !strcmp(x, y);
    free(x);
    free(y);
    return equal;
}

// Keys that are not at their presets, and those that changed to them.
static void all_write(const struct spec *spec, const struct spec *changed, FILE *out)
{
    struct spec presets = {0};
    size_t count;
    const struct flag *table = flags_table(&count);

    flags_preset(&presets);
    for (size_t i = 0; i < count; i++) {
        if (table[i].offset == FLAG_NOWHERE || !value_given(changed, &table[i]) ||
            (value_equal(changed, &presets, &table[i]) && value_equal(changed, spec, &table[i])))
            continue;
        fprintf(out, "%s: ", table[i].name);
        value_print(out, changed, &table[i]);
        putc('\n', out);
    }
    flags_release(&presets);
}

// The comment of a line, with the blanks before it; values of the keys that change hold no '#'.
static const char *comment_of(const char *line, size_t bytes)
{
    const char *hash = memchr(line, '#', bytes);

    while (hash && hash > line && (hash[-1] == ' ' || hash[-1] == '\t'))
        hash--;
    return hash;
}

// A line of the file, or what takes its place.
static void line_write(const struct spec *spec, const struct spec *changed,
                       const struct yaml_entry *entry, const char *line, size_t bytes,
                       bool *written, FILE *out)
{
    size_t count;
    const struct flag *table = flags_table(&count), *flag = entry ? flag_find(entry->key) : NULL;
    const char *comment = comment_of(line, bytes);

    if (!flag || flag->offset == FLAG_NOWHERE || value_equal(spec, changed, flag)) {
        fwrite(line, 1, bytes, out);
        putc('\n', out);
        return;
    }
    written[flag - table] = true;
    fprintf(out, "%s: ", entry->key);
    value_print(out, changed, flag);
    if (comment)
        fwrite(comment, 1, bytes - (size_t)(comment - line), out);
    putc('\n', out);
}

static const struct yaml_entry *entry_at(const struct yaml_map *map, int line)
{
    for (size_t i = 0; i < map->count; i++)
        if (map->entries[i].line == line)
            return &map->entries[i];
    return NULL;
}

static void lines_write(const struct spec *spec, const struct spec *changed,
                        const struct yaml_map *map, const char *text, FILE *out)
{
    size_t count;
    const struct flag *table = flags_table(&count);
    bool *written = memory_zeroed(count, sizeof *written);

    for (int line = 1; *text; line++) {
        size_t bytes = strcspn(text, "\n");
        line_write(spec, changed, entry_at(map, line), text, bytes, written, out);
        text += bytes + (text[bytes] == '\n');
    }
    for (size_t i = 0; i < count; i++) {
        if (written[i] || table[i].offset == FLAG_NOWHERE || value_equal(spec, changed, &table[i]))
            continue;
        fprintf(out, "%s: ", table[i].name);
        value_print(out, changed, &table[i]);
        putc('\n', out);
    }
    free(written);
}

int job_write(const struct spec *spec, const struct spec *changed, const char *text,
              const char *name, char **out, struct fl_error *e)
{
    struct yaml_map *map = NULL;
    size_t bytes;
    FILE *file;
    int rc = 0;

    *out = NULL;
    if (text)
        rc = yaml_map_parse(text, strlen(text), name, &map, e);
    if (rc < 0)
        return rc;
    file = open_memstream(out, &bytes);
    if (!file)
        rc = error_set(e, -errno, "%s: no memory to write it", name);
    else if (text)
        lines_write(spec, changed, map, text, file);
    else
        all_write(spec, changed, file);
    if (file)
        fclose(file);
    yaml_map_destroy(map);
    return rc;
}
