// SPDX-License-Identifier: Apache-2.0
// A made checkpoint on disk.
#include "weights/synth_checkpoint.h"

#include "base/file.h"
#include "base/floats.h"
#include "base/memory.h"
#include "job/source.h"
#include "weights/model_tensors.h"
#include "weights/safetensors_writer.h"
#include "weights/synth.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONFIG_LIMIT    (4u << 20)  // bytes
#define TOKENIZER_LIMIT (64u << 20) // bytes
#define PIECE_BYTES     (16u << 20) // made at once, about

// A tensor of the files: a projection's codes, its scales, or another tensor.
struct entry {
    struct tensor tensor; // its name is the entry's
    struct synth synth;
    bool scales;
    size_t shard;
};

struct writer {
    const struct model *model;
    const char *folder;
    uint64_t seed, shard_bytes;
    struct entry *entries;
    size_t count, capacity, shards;
    uint64_t in_shard, bytes;
};

static size_t blocks(size_t n)
{
    return (n + FP8_BLOCK - 1) / FP8_BLOCK;
}

static void entry_add(struct writer *w, char *name, enum tensor_type type, int dims, size_t rows,
                      size_t cols, struct synth synth, bool scales)
{
    struct entry entry = {
        .tensor = {.name = name, .type = type, .dims = dims}, .synth = synth, .scales = scales};
    uint64_t bytes = (uint64_t)rows * cols * (uint64_t)tensor_type_bytes(type);

    entry.tensor.shape[0] = (int64_t)(dims == 1 ? cols : rows);
    entry.tensor.shape[1] = dims == 1 ? 0 : (int64_t)cols;
    if (w->in_shard && w->in_shard + bytes > w->shard_bytes) {
        w->shards++;
        w->in_shard = 0;
    }
    w->in_shard += bytes;
    w->bytes += bytes;
    entry.shard = w->shards;
    if (w->count == w->capacity) {
        w->capacity = w->capacity ? 2 * w->capacity : 1024;
        w->entries = memory_resize(w->entries, w->capacity, sizeof *w->entries);
    }
    w->entries[w->count++] = entry;
}

static int tensor_plan(void *context, const struct model_tensor *t)
{
    struct writer *w = context;
    size_t rows = (size_t)t->rows, cols = (size_t)t->cols;
    struct synth synth = synth_open(w->seed, t->name, rows, cols);
    bool projection = tensor_is_projection(t->use);

    entry_add(w, memory_string(t->name), projection ? TENSOR_F8_E4M3 : TENSOR_BF16, t->dims, rows,
              cols, synth, false);
    if (projection)
        entry_add(w, memory_format("%s_scale_inv", t->name), TENSOR_BF16, 2, blocks(rows),
                  blocks(cols), synth, true);
    return 0;
}

// The codes, scales (as bf16) or values of an entry, some rows at a time.
static int entry_write(const struct entry *entry, struct safetensors_writer *file,
                       struct fl_error *e)
{
    const struct synth *s = &entry->synth;
    size_t step = PIECE_BYTES / FP8_BLOCK / s->cols * FP8_BLOCK, grid;
    uint8_t *codes;
    uint16_t *values;
    float *scales;
    int rc = 0;

    step = step ? step : FP8_BLOCK;
    step = step < s->rows ? step : s->rows;
    grid = blocks(step) * blocks(s->cols);
    codes = memory_zeroed(step * s->cols, 1);
    values = memory_zeroed(step * s->cols, sizeof *values);
    scales = memory_zeroed(grid, sizeof *scales);
    for (size_t row = 0; row < s->rows && rc == 0; row += step) {
        size_t rows = s->rows - row < step ? s->rows - row : step;
        grid = blocks(rows) * blocks(s->cols);
        if (entry->tensor.type == TENSOR_F8_E4M3 || entry->scales)
            synth_codes(s, row, rows, codes, scales);
        else
            synth_bf16(s, row, rows, values);
        for (size_t i = 0; entry->scales && i < grid; i++)
            values[i] = bf16_from_float(scales[i]);
        if (entry->scales)
            rc = safetensors_writer_append(file, values, grid * sizeof *values, e);
        else if (entry->tensor.type == TENSOR_F8_E4M3)
            rc = safetensors_writer_append(file, codes, rows * s->cols, e);
        else
            rc = safetensors_writer_append(file, values, rows * s->cols * sizeof *values, e);
    }
    free(scales);
    free(values);
    free(codes);
    return rc;
}

static char *shard_name(const struct writer *w, size_t shard)
{
    return memory_format("model-%05zu-of-%05zu.safetensors", shard + 1, w->shards);
}

// Wider elements first, which keeps every tensor aligned.
static int shard_write(const struct writer *w, size_t shard, struct fl_error *e)
{
    static const enum tensor_type order[] = {TENSOR_BF16, TENSOR_F8_E4M3};
    char *name = shard_name(w, shard), *path = memory_format("%s/%s", w->folder, name);
    const struct entry **entries = memory_zeroed(w->count, sizeof *entries);
    struct tensor *tensors = memory_zeroed(w->count, sizeof *tensors);
    struct safetensors_writer *file = NULL;
    size_t count = 0;
    int rc;

    for (size_t o = 0; o < sizeof order / sizeof *order; o++)
        for (size_t i = 0; i < w->count; i++)
            if (w->entries[i].shard == shard && w->entries[i].tensor.type == order[o]) {
                entries[count] = &w->entries[i];
                tensors[count++] = w->entries[i].tensor;
            }
    rc = safetensors_writer_open(path, tensors, count, &file, e);
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = entry_write(entries[i], file, e);
    if (rc == 0)
        rc = safetensors_writer_commit(file, e);
    else
        safetensors_writer_abort(file);
    free(tensors);
    free(entries);
    free(path);
    free(name);
    return rc;
}

static int json_write(const struct writer *w, const char *name, json_t *root, struct fl_error *e)
{
    char *path = memory_format("%s/%s", w->folder, name);
    char *text = json_dumps(root, JSON_INDENT(2));
    int rc = file_write(path, text, strlen(text), e);

    free(text);
    free(path);
    return rc;
}

static int index_write(const struct writer *w, struct fl_error *e)
{
    json_t *map = json_object(), *root;
    int rc;

    for (size_t i = 0; i < w->count; i++) {
        char *name = shard_name(w, w->entries[i].shard);
        json_object_set_new(map, w->entries[i].tensor.name, json_string(name));
        free(name);
    }
    root =
        json_pack("{s{sI} so}", "metadata", "total_size", (json_int_t)w->bytes, "weight_map", map);
    rc = json_write(w, "model.safetensors.index.json", root, e);
    json_decref(root);
    return rc;
}

// The source's config.json, which says FP8 whatever it said.
static int config_write(const struct writer *w, const struct source *source, struct fl_error *e)
{
    char *text = NULL;
    size_t bytes;
    json_t *root;
    int rc = file_read(source->config, CONFIG_LIMIT, &text, &bytes, e);

    if (rc < 0)
        return rc;
    root = json_loadb(text, bytes, 0, NULL);
    if (!json_object_get(root, "quantization_config"))
        json_object_set_new(root, "quantization_config",
                            json_pack("{ss ss ss s[ii]}", "quant_method", "fp8", "fmt", "e4m3",
                                      "activation_scheme", "dynamic", "weight_block_size",
                                      FP8_BLOCK, FP8_BLOCK));
    rc = json_write(w, "config.json", root, e);
    json_decref(root);
    free(text);
    return rc;
}

static int tokenizer_copy(const struct writer *w, const struct source *source, struct fl_error *e)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json"};
    int rc = 0;

    for (size_t i = 0; i < sizeof names / sizeof *names && rc == 0; i++) {
        char *from = memory_format("%s/%s", source->folder, names[i]), *text = NULL;
        char *to = memory_format("%s/%s", w->folder, names[i]);
        size_t bytes;
        if (access(from, F_OK) == 0 &&
            (rc = file_read(from, TOKENIZER_LIMIT, &text, &bytes, e)) == 0)
            rc = file_write(to, text, bytes, e);
        free(text);
        free(to);
        free(from);
    }
    return rc;
}

static int folder_open(const char *folder, bool *made, struct fl_error *e)
{
    DIR *dir = opendir(folder);
    int rc = 0;

    *made = !dir && errno == ENOENT;
    for (const struct dirent *d; dir && (d = readdir(dir));)
        if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
            rc = error_set(e, -EEXIST, "%s: not empty: give a new folder", folder);
    if (dir)
        closedir(dir);
    return rc < 0 ? rc : folder_writable(folder, e);
}

// The folder held nothing before.
static void folder_empty(const char *folder, bool made)
{
    DIR *dir = opendir(folder);

    for (const struct dirent *d; dir && (d = readdir(dir));)
        unlinkat(dirfd(dir), d->d_name, 0);
    if (dir)
        closedir(dir);
    if (made)
        rmdir(folder);
}

int synth_checkpoint_write(const char *text, uint64_t seed, const char *folder,
                           uint64_t shard_bytes, struct synth_written *written, struct fl_error *e)
{
    struct model model;
    struct source source = {0};
    struct writer w = {.model = &model, .folder = folder, .seed = seed, .shard_bytes = shard_bytes};
    bool made = false;
    int rc = source_parse(text, &source, e);

    if (rc == 0)
        rc = model_load(text, &model, e);
    if (rc == 0)
        rc = folder_open(folder, &made, e);
    if (rc < 0)
        goto out;
    model_tensors_walk(&model, 0, model.experts, tensor_plan, &w);
    w.shards++;
    rc = config_write(&w, &source, e);
    if (rc == 0)
        rc = tokenizer_copy(&w, &source, e);
    for (size_t shard = 0; shard < w.shards && rc == 0; shard++)
        rc = shard_write(&w, shard, e);
    if (rc == 0)
        rc = index_write(&w, e);
    if (rc < 0)
        folder_empty(folder, made);
    *written = (struct synth_written){.bytes = w.bytes, .shards = w.shards};
out:
    for (size_t i = 0; i < w.count; i++)
        free((char *)w.entries[i].tensor.name);
    free(w.entries);
    source_clear(&source);
    return rc;
}
