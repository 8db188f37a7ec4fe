// SPDX-License-Identifier: Apache-2.0
// What a checkpoint's index says of its size.
#include "job/index.h"

#include "base/file.h"
#include "base/memory.h"
#include "job/source.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>

#define INDEX_LIMIT (256u << 20) // bytes
#define BYTES_MOST  0x1p60

static int index_parse(const char *text, size_t bytes, const char *path, struct index_size *size,
                       struct fl_error *e)
{
    json_error_t reason;
    json_t *root = json_loadb(text, bytes, 0, &reason), *files = json_object(), *file;
    const json_t *map = json_object_get(root, "weight_map");
    const json_t *total = json_object_get(json_object_get(root, "metadata"), "total_size");
    double bytes_told = json_number_value(total); // some writers tell it as a float
    bool words = true;
    const char *name;
    int rc = 0;

    json_object_foreach((json_t *)map, name, file)
    {
        words &= json_is_string(file);
        if (json_is_string(file))
            json_object_set_new(files, json_string_value(file), json_true());
    }
    size->tensors = json_object_size(map);
    size->files = json_object_size(files);
    size->bytes = bytes_told > 0 && bytes_told < BYTES_MOST ? (uint64_t)bytes_told : 0;
    if (!root)
        rc = error_set(e, -EINVAL, "%s:%d: not JSON: %s; copy it from the checkpoint again", path,
                       reason.line, reason.text);
    else if (!size->tensors)
        rc = error_set(e, -EINVAL,
                       "%s: weight_map names no tensors; copy it from the checkpoint again", path);
    else if (!words)
        rc = error_set(e, -EINVAL,
                       "%s: weight_map gives a tensor no file; copy it from the checkpoint again",
                       path);
    else if (total && !size->bytes)
        rc = error_set(e, -EINVAL,
                       "%s: metadata.total_size is no number of bytes; copy it from the checkpoint "
                       "again",
                       path);
    json_decref(files);
    json_decref(root);
    return rc;
}

int index_read(const char *model, struct index_size *size, struct fl_error *e)
{
    struct source source;
    char *path, *text = NULL;
    size_t bytes;
    int rc = source_parse(model, &source, e);

    *size = (struct index_size){0};
    if (rc < 0 || source.synth) {
        source_clear(&source);
        return rc;
    }
    path = memory_format("%s/model.safetensors.index.json", source.folder);
    rc = file_read(path, INDEX_LIMIT, &text, &bytes, e);
    if (rc == 0)
        rc = index_parse(text, bytes, path, size, e);
    else if (rc == -ENOENT)
        rc = 0;
    free(text);
    free(path);
    source_clear(&source);
    return rc;
}
