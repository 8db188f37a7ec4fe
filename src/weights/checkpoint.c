// SPDX-License-Identifier: Apache-2.0
// A checkpoint folder in Hugging Face layout.
#include "weights/checkpoint.h"

#include "base/file.h"
#include "base/memory.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INDEX_NAME  "model.safetensors.index.json"
#define SINGLE_NAME "model.safetensors"
#define INDEX_LIMIT (256u << 20) // bytes

struct shard {
    char *name;
    struct safetensors *file; // NULL until first used
};

struct place {
    char *tensor;
    size_t shard;
};

struct checkpoint {
    char *folder;
    struct shard *shards; // sorted by name
    struct place *places; // of the index, sorted by tensor; none for a single file
    size_t shard_count, place_count;
    bool indexed;
};

static int compare_shards(const void *a, const void *b)
{
    return strcmp(((const struct shard *)a)->name, ((const struct shard *)b)->name);
}

static int compare_places(const void *a, const void *b)
{
    return strcmp(((const struct place *)a)->tensor, ((const struct place *)b)->tensor);
}

static int shard_open(struct checkpoint *c, struct shard *shard, struct fl_error *e)
{
    char *path;
    int rc;

    if (shard->file)
        return 0;
    path = memory_format("%s/%s", c->folder, shard->name);
    rc = safetensors_open(path, &shard->file, e);
    if (rc == -ENOENT)
        error_set(e, rc, "%s: no such file, but %s names it: copy or download this shard", path,
                  INDEX_NAME);
    free(path);
    return rc;
}

static bool plain_file_name(const char *name)
{
    return *name && strcmp(name, ".") && strcmp(name, "..") && !strchr(name, '/');
}

// The distinct shard names of the index, sorted.
static int shards_collect(struct checkpoint *c, const json_t *map, const char *path,
                          struct fl_error *e)
{
    const char *tensor;
    json_t *value;
    size_t distinct = 0;

    c->shards = memory_zeroed(json_object_size(map), sizeof *c->shards);
    json_object_foreach((json_t *)map, tensor, value)
    {
        const char *shard = json_string_value(value);
        if (!shard || !plain_file_name(shard))
            return error_set(e, -EINVAL, "%s: tensor '%s': shard '%s' is no plain file name", path,
                             tensor, shard ? shard : "");
        c->shards[c->shard_count++].name = memory_string(shard);
    }
    qsort(c->shards, c->shard_count, sizeof *c->shards, compare_shards);
    for (size_t n = 0; n < c->shard_count; n++) {
        if (distinct && !strcmp(c->shards[distinct - 1].name, c->shards[n].name))
            free(c->shards[n].name);
        else
            c->shards[distinct++] = c->shards[n];
    }
    c->shard_count = distinct;
    return 0;
}

static int index_parse(struct checkpoint *c, const char *text, size_t bytes, const char *path,
                       struct fl_error *e)
{
    json_error_t json_error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &json_error);
    json_t *map = json_object_get(root, "weight_map"), *value;
    const char *tensor;
    int rc;

    if (!root)
        return error_set(e, -EINVAL, "%s:%d: not valid JSON: %s; download the file again", path,
                         json_error.line, json_error.text);
    if (!json_is_object(map)) {
        rc = error_set(e, -EINVAL, "%s: no weight_map in it; download it again", path);
        goto out;
    }
    rc = shards_collect(c, map, path, e);
    if (rc < 0)
        goto out;
    c->places = memory_zeroed(json_object_size(map), sizeof *c->places);
    json_object_foreach(map, tensor, value)
    {
        struct shard key = {.name = (char *)json_string_value(value)};
        struct shard *shard =
            bsearch(&key, c->shards, c->shard_count, sizeof *c->shards, compare_shards);
        c->places[c->place_count].tensor = memory_string(tensor);
        c->places[c->place_count++].shard = (size_t)(shard - c->shards);
    }
    qsort(c->places, c->place_count, sizeof *c->places, compare_places);
out:
    json_decref(root);
    return rc;
}

static int single_open(struct checkpoint *c, struct fl_error *e)
{
    struct stat st;
    int rc;

    c->shards = memory_zeroed(1, sizeof *c->shards);
    c->shards[c->shard_count++].name = memory_string(SINGLE_NAME);
    rc = shard_open(c, &c->shards[0], e);
    if (rc != -ENOENT)
        return rc;
    if (stat(c->folder, &st) < 0)
        return error_set(e, -errno,
                         "%s: cannot open the model's folder: %s; check its path and permissions",
                         c->folder, strerror(errno));
    return error_set(e, rc,
                     "%s: holds neither " INDEX_NAME " nor " SINGLE_NAME
                     ": 'model' must be a folder in Hugging Face layout",
                     c->folder);
}

int checkpoint_open(const char *folder, struct checkpoint **out, struct fl_error *e)
{
    struct checkpoint *c = memory_zeroed(1, sizeof *c);
    char *path = memory_format("%s/%s", folder, INDEX_NAME), *text;
    size_t bytes;
    int rc;

    *out = NULL;
    c->folder = memory_string(folder);
    rc = file_read(path, INDEX_LIMIT, &text, &bytes, e);
    if (rc == 0) {
        c->indexed = true;
        rc = index_parse(c, text, bytes, path, e);
        free(text);
    } else if (rc == -ENOENT) {
        rc = single_open(c, e);
    }
    free(path);
    if (rc < 0)
        checkpoint_close(c);
    else
        *out = c;
    return rc;
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->shard_count; i++) {
        safetensors_close(c->shards[i].file);
        free(c->shards[i].name);
    }
    for (size_t i = 0; i < c->place_count; i++)
        free(c->places[i].tensor);
    free(c->shards);
    free(c->places);
    free(c->folder);
    free(c);
}

static struct place *place_find(const struct checkpoint *c, const char *name)
{
    struct place key = {.tensor = (char *)name};

    return bsearch(&key, c->places, c->place_count, sizeof *c->places, compare_places);
}

bool checkpoint_has(const struct checkpoint *c, const char *name)
{
    return c->indexed ? place_find(c, name) != NULL
                      : safetensors_find(c->shards[0].file, name) != NULL;
}

int checkpoint_find(struct checkpoint *c, const char *name, const struct safetensors **file,
                    const struct tensor **tensor, struct fl_error *e)
{
    struct place *place = c->indexed ? place_find(c, name) : NULL;
    struct shard *shard = &c->shards[place ? place->shard : 0];
    int rc;

    if (c->indexed && !place)
        return error_set(e, -ENOENT,
                         "%s/%s: tensor '%s' is missing: do config.json and checkpoint belong "
                         "together, and is it complete?",
                         c->folder, INDEX_NAME, name);
    rc = shard_open(c, shard, e);
    if (rc < 0)
        return rc;
    *file = shard->file;
    *tensor = safetensors_find(shard->file, name);
    if (*tensor)
        return 0;
    if (c->indexed)
        return error_set(e, -ENOENT,
                         "%s/%s: tensor '%s' is not in it, but %s says so: download both again",
                         c->folder, shard->name, name, INDEX_NAME);
    return error_set(e, -ENOENT,
                     "%s/%s: tensor '%s' is missing: do config.json and checkpoint belong "
                     "together, and is it complete?",
                     c->folder, shard->name, name);
}
