// SPDX-License-Identifier: Apache-2.0
// A job from YAML or from the old trainer's words, both through the flag table.
#include "job/spec.h"

#include "base/file.h"
#include "base/memory.h"
#include "job/flags.h"
#include "job/yaml.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

// A job being read: which rows were given, and where (line or word, from 1; 0: not given).
#define BF16_BETA2_MOST 0.99

struct reading {
    struct spec *spec;
    int *given;
};

static struct reading reading_begin(const char *source)
{
    size_t rows;
    struct reading reading;

    flags_table(&rows);
    reading.spec = memory_zeroed(1, sizeof *reading.spec);
    reading.spec->source = memory_string(source);
    reading.given = memory_zeroed(rows, sizeof *reading.given);
    flags_preset(reading.spec);
    return reading;
}

static int *reading_given(const struct reading *reading, const struct flag *flag)
{
    size_t rows;

    return &reading->given[flag - flags_table(&rows)];
}

static void note_add(struct spec *spec, const char *name, const char *note)
{
    spec->notes = memory_resize(spec->notes, spec->note_count + 1, sizeof *spec->notes);
    spec->notes[spec->note_count++] = memory_format("%s: %s", name, note);
}

static void notes_fill(const struct reading *reading)
{
    size_t rows;
    const struct flag *table = flags_table(&rows);

    for (size_t i = 0; i < rows; i++)
        if (reading->given[i] && table[i].note)
            note_add(reading->spec, table[i].name, table[i].note);
    if (reading->spec->exp_avg_sq == STORAGE_BF16 && reading->spec->adam_beta2 > BF16_BETA2_MOST)
        note_add(
            reading->spec, "exp_avg_sq_dtype",
            "bf16 rounds away steps below a 256th, so at this adam_beta2 the moment hardly falls: "
            "use 0.99 or less, or fp32");
}

// What concerns more than one flag.
static int spec_check(const struct reading *reading, struct fl_error *e)
{
    struct spec *spec = reading->spec;
    const char *source = spec->source;

    if (!spec->model)
        return error_set(e, -EINVAL, "%s: model is missing: give a folder in Hugging Face layout",
                         source);
    if (!spec->dataset_count)
        return error_set(e, -EINVAL, "%s: dataset is missing: give a JSON or JSONL file", source);
    if (!*reading_given(reading, flag_find("eval_interval")))
        spec->eval_interval = spec->save_interval;
    if (spec->min_lr > spec->lr)
        return error_set(e, -EINVAL, "%s: min_lr %g is above lr %g: lower it", source, spec->min_lr,
                         spec->lr);
    if (spec->val_dataset_count && spec->split_dataset_ratio > 0)
        return error_set(e, -EINVAL, "%s: split_dataset_ratio beside val_dataset: give one of them",
                         source);
    if (spec_evaluates(spec) && !spec->eval_interval)
        return error_set(e, -EINVAL, "%s: %s is never evaluated: set eval_interval above 0", source,
                         spec->val_dataset_count ? "val_dataset"
                                                 : "what split_dataset_ratio keeps");
    if (spec->numerics == NUMERICS_EXACT && spec->backend == BACKEND_CUDA)
        return error_set(e, -EINVAL, "%s: numerics exact needs the CPU: set backend cpu", source);
    if ((int64_t)spec->micro_batch_size * spec->max_length > INT32_MAX)
        return error_set(e, -EINVAL,
                         "%s: micro_batch_size %d x max_length %d is above %d tokens: lower one",
                         source, spec->micro_batch_size, spec->max_length, INT32_MAX);
    return 0;
}

// Hands the job over, or frees it.
static int reading_end(struct reading *reading, int rc, struct spec **out, struct fl_error *e)
{
    if (!rc)
        rc = spec_check(reading, e);
    if (!rc)
        notes_fill(reading);
    if (rc)
        spec_destroy(reading->spec);
    else
        *out = reading->spec;
    free(reading->given);
    return rc;
}

static int entry_read(struct reading *reading, const struct yaml_entry *entry, const char *name,
                      struct fl_error *e)
{
    const struct flag *flag = flag_find(entry->key);
    const char *nearest;
    int *given;

    if (!flag) {
        nearest = flag_nearest(entry->key);
        if (nearest)
            return error_set(e, -EINVAL, "%s:%d: unknown key '%.80s', did you mean '%s'?", name,
                             entry->line, entry->key, nearest);
        return error_set(e, -EINVAL,
                         "%s:%d: unknown key '%.80s': `fp8-lora plan --help-flags` lists all", name,
                         entry->line, entry->key);
    }
    given = reading_given(reading, flag);
    if (*given)
        return error_set(e, -EINVAL, "%s:%d: '%.80s' is already set on line %d", name, entry->line,
                         entry->key, *given);
    *given = entry->line;
    if (flag_set(reading->spec, flag, entry->count, (const char *const *)entry->values, e))
        return error_prefix(e, "%s:%d: %s", name, entry->line, flag->name);
    return 0;
}

int spec_parse_yaml(const char *text, size_t bytes, const char *name, struct spec **out,
                    struct fl_error *e)
{
    struct yaml_map *map;
    struct reading reading;
    int rc;

    *out = NULL;
    rc = yaml_map_parse(text, bytes, name, &map, e);
    if (rc)
        return rc;
    reading = reading_begin(name);
    for (size_t i = 0; i < map->count && !rc; i++)
        rc = entry_read(&reading, &map->entries[i], name, e);
    yaml_map_destroy(map);
    return reading_end(&reading, rc, out, e);
}

// NAME=VALUE as a shell takes it before a command.
static bool word_is_environment(const char *word)
{
    const char *c = word;

    if (!isalpha((unsigned char)*c) && *c != '_')
        return false;
    while (isalnum((unsigned char)*c) || *c == '_')
        c++;
    return *c == '=';
}

static int environment_read(struct spec *spec, const char *word, struct fl_error *e)
{
    static const struct {
        const char *name, *note;
    } known[] = {
        {"NPROC_PER_NODE", "the number of ranks is that of srun's tasks"},
        {"CUDA_VISIBLE_DEVICES", "Slurm gives every rank its GPU"},
        {"PYTORCH_CUDA_ALLOC_CONF", "memory comes from an arena of this program's own"},
        {"PYTORCH_ALLOC_CONF", "memory comes from an arena of this program's own"},
    };
    size_t length = strcspn(word, "=");
    const char *value = word + length + 1, *note = "is not passed on: export it before srun";
    char *name = strndup(word, length);

    if (!name)
        return error_set(e, -ENOMEM, "no memory to read '%.80s'", word);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, name))
            note = known[i].note;
    note_add(spec, name, note);
    if (!strcmp(name, "NPROC_PER_NODE")) {
        char *end;
        errno = 0;
        long ranks = strtol(value, &end, 10);
        if (!isdigit((unsigned char)*value) || *end || errno || ranks < 1 || ranks > 65536) {
            free(name);
            return error_set(e, -EINVAL, "NPROC_PER_NODE: '%.80s' is not in [1, 65536]", value);
        }
        spec->nproc_per_node = (int)ranks;
    }
    free(name);
    return 0;
}

static bool word_is_flag(const char *word)
{
    return word[0] == '-' && word[1] == '-' && word[2];
}

static int flag_unknown(const char *word, size_t length, struct fl_error *e)
{
    char name[80];
    const char *nearest;

    if (length >= sizeof name)
        length = sizeof name - 1;
    memcpy(name, word, length);
    name[length] = 0;
    nearest = flag_nearest(name);
    if (nearest)
        return error_set(e, -EINVAL, "unknown flag '%s', did you mean '--%s'?", name, nearest);
    return error_set(e, -EINVAL, "unknown flag '%s': `fp8-lora plan --help-flags` lists all", name);
}

// How many words behind a flag are its values.
static size_t values_count(const struct flag *flag, int argc, char *const *argv)
{
    bool many = flag->type == FLAG_LIST || flag->type == FLAG_TARGETS;
    size_t count = 0;

    while ((int)count < argc && (many || !count) && !word_is_flag(argv[count]))
        count++;
    return count;
}

// Reads argv[*at], a flag, with its values, and moves *at past them.
static int flag_read(struct reading *reading, int argc, char *const *argv, int *at,
                     struct fl_error *e)
{
    const char *word = argv[(*at)++], *equals = strchr(word, '='), *lone = "true";
    size_t length = equals ? (size_t)(equals - word) : strlen(word), count = 1;
    char *name = strndup(word, length);
    const struct flag *flag = name ? flag_find(name) : NULL;
    const char *const *values = &lone;

    free(name);
    if (!flag)
        return flag_unknown(word, length, e);
    *reading_given(reading, flag) = *at;
    if (equals) {
        lone = equals + 1;
    } else {
        count = values_count(flag, argc - *at, argv + *at);
        if (count || flag->type != FLAG_BOOL)
            values = (const char *const *)argv + *at;
        *at += (int)count;
        count += !count && flag->type == FLAG_BOOL;
    }
    if (flag_set(reading->spec, flag, count, values, e))
        return error_prefix(e, "--%s", flag->name);
    return 0;
}

int spec_parse_flags(int argc, char *const *argv, struct spec **out, struct fl_error *e)
{
    struct reading reading = reading_begin("command line");
    int at = 0, rc = 0;

    *out = NULL;
    while (at < argc && !rc && word_is_environment(argv[at]))
        rc = environment_read(reading.spec, argv[at++], e);
    if (at < argc && !strcmp(argv[at], "sft"))
        at++;
    while (at < argc && !rc)
        rc = word_is_flag(argv[at])
                 ? flag_read(&reading, argc, argv, &at, e)
                 : error_set(e, -EINVAL,
                             "unexpected word '%.80s': give `sft` and then --flag value pairs, or "
                             "one job file",
                             argv[at]);
    return reading_end(&reading, rc, out, e);
}

int spec_load(int argc, char *const *argv, struct spec **out, struct fl_error *e)
{
    char *text;
    size_t bytes;
    int rc;

    *out = NULL;
    if (argc != 1 || word_is_flag(argv[0]))
        return spec_parse_flags(argc, argv, out, e);
    rc = file_read(argv[0], YAML_BYTES_MAX, &text, &bytes, e);
    if (rc)
        return rc;
    rc = spec_parse_yaml(text, bytes, argv[0], out, e);
    free(text);
    return rc;
}

void spec_destroy(struct spec *spec)
{
    if (!spec)
        return;
    flags_release(spec);
    for (size_t i = 0; i < spec->note_count; i++)
        free(spec->notes[i]);
    free(spec->notes);
    free(spec->source);
    free(spec);
}
