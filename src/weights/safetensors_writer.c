// SPDX-License-Identifier: Apache-2.0
// Writes a safetensors file as a stream.
#include "weights/safetensors_writer.h"

#include "base/file.h"
#include "base/memory.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define DATA_ALIGNMENT 8

struct safetensors_writer {
    struct file_writer *file;
    char *path;
    uint64_t written, announced; // bytes of data
};

static json_t *entry_make(const struct tensor *t, uint64_t begin, uint64_t end)
{
    json_t *shape = json_array();

    for (int i = 0; i < t->dims; i++)
        json_array_append_new(shape, json_integer(t->shape[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", tensor_type_name(t->type), "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)end);
}

// The JSON header, padded with spaces so that the data are aligned; free().
static int header_make(const char *path, const struct tensor *tensors, size_t count, char **header,
                       uint64_t *data_bytes, struct fl_error *e)
{
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    char *text = NULL;
    size_t length, padded;
    int rc = 0;

    *data_bytes = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes, end;
        if (tensor_bytes(&tensors[i], &bytes) < 0 ||
            __builtin_add_overflow(*data_bytes, bytes, &end) || end > INT64_MAX) {
            rc = error_set(e, -EOVERFLOW, "%s: tensor '%s': impossible shape", path,
                           tensors[i].name);
            goto out;
        }
        if (json_object_get(root, tensors[i].name) ||
            json_object_set_new(root, tensors[i].name, entry_make(&tensors[i], *data_bytes, end))) {
            rc = error_set(e, -EINVAL, "%s: tensor '%s': listed twice or not UTF-8", path,
                           tensors[i].name);
            goto out;
        }
        *data_bytes = end;
    }
    text = json_dumps(root, JSON_COMPACT);
    length = strlen(text);
    padded = (length + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT * DATA_ALIGNMENT;
    *header = memory_format("%-*s", (int)padded, text);
out:
    free(text);
    json_decref(root);
    return rc;
}

int safetensors_writer_open(const char *path, const struct tensor *tensors, size_t count,
                            struct safetensors_writer **out, struct fl_error *e)
{
    struct safetensors_writer *w = memory_zeroed(1, sizeof *w);
    char *header = NULL;
    uint64_t length;
    int rc;

    *out = NULL;
    w->path = memory_string(path);
    rc = header_make(path, tensors, count, &header, &w->announced, e);
    if (rc < 0)
        goto out;
    rc = file_writer_open(path, &w->file, e);
    if (rc < 0)
        goto out;
    length = htole64(strlen(header));
    rc = file_writer_append(w->file, &length, sizeof length, e);
    if (rc == 0)
        rc = file_writer_append(w->file, header, strlen(header), e);
out:
    free(header);
    if (rc < 0)
        safetensors_writer_abort(w);
    else
        *out = w;
    return rc;
}

int safetensors_writer_append(struct safetensors_writer *w, const void *data, size_t bytes,
                              struct fl_error *e)
{
    if (bytes > w->announced - w->written)
        return error_set(e, -ERANGE, "%s: %zu bytes of data more than its %" PRIu64, w->path,
                         bytes - (size_t)(w->announced - w->written), w->announced);
    w->written += bytes;
    return file_writer_append(w->file, data, bytes, e);
}

int safetensors_writer_commit(struct safetensors_writer *w, struct fl_error *e)
{
    struct file_writer *file = w->file;
    int rc;

    if (w->written != w->announced) {
        rc = error_set(e, -ERANGE, "%s: %" PRIu64 " bytes of data, announced were %" PRIu64,
                       w->path, w->written, w->announced);
        safetensors_writer_abort(w);
        return rc;
    }
    w->file = NULL;
    rc = file_writer_commit(file, e);
    safetensors_writer_abort(w);
    return rc;
}

void safetensors_writer_abort(struct safetensors_writer *w)
{
    if (!w)
        return;
    file_writer_abort(w->file);
    free(w->path);
    free(w);
}
