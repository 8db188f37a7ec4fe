// SPDX-License-Identifier: Apache-2.0
// Reader of one safetensors file.
#include "weights/safetensors.h"

#include "base/memory.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct safetensors {
    int fd;
    char *path;
    uint64_t data_start, file_bytes;
    size_t count;
    struct tensor *tensors; // sorted by name
};

// Full read at a place; the file's end before that is an error.
static int read_at(int fd, const char *path, void *destination, size_t bytes, uint64_t place,
                   struct fl_error *e)
{
    char *p = destination;

    while (bytes) {
        ssize_t n = pread(fd, p, bytes, (off_t)place);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_set(e, -errno, "%s: cannot read at byte %" PRIu64 ": %s", path, place,
                             strerror(errno));
        if (n == 0)
            return error_set(e, -EIO, "%s: ends at byte %" PRIu64 " while it is read: truncated",
                             path, place);
        p += n;
        bytes -= (size_t)n;
        place += (uint64_t)n;
    }
    return 0;
}

static int refuse(const struct safetensors *file, const char *tensor, struct fl_error *e,
                  const char *what)
{
    return error_set(e, -EINVAL, "%s: tensor '%s': %s", file->path, tensor, what);
}

static int shape_parse(const struct safetensors *file, const json_t *shape, struct tensor *t,
                       struct fl_error *e)
{
    size_t i;
    json_t *v;

    if (!json_is_array(shape))
        return refuse(file, t->name, e, "the header gives no shape");
    if (json_array_size(shape) > TENSOR_DIMS)
        return refuse(file, t->name, e, "more than 8 dimensions");
    json_array_foreach(shape, i, v)
    {
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return refuse(file, t->name, e, "a dimension that is not a whole number");
        t->shape[i] = json_integer_value(v);
    }
    t->dims = (int)json_array_size(shape);
    return 0;
}

// One entry of the header: {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}.
static int tensor_parse(const struct safetensors *file, const json_t *entry, struct tensor *t,
                        struct fl_error *e)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    char shape[TENSOR_SHAPE_TEXT];
    uint64_t expected, data_bytes = file->file_bytes - file->data_start;
    int rc;

    if (!dtype)
        return refuse(file, t->name, e, "the header gives no dtype");
    t->type = tensor_type_find(dtype);
    if (t->type == TENSOR_TYPES)
        return error_set(e, -EINVAL, "%s: tensor '%s': unsupported dtype '%s'", file->path, t->name,
                         dtype);
    rc = shape_parse(file, json_object_get(entry, "shape"), t, e);
    if (rc < 0)
        return rc;
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
        return refuse(file, t->name, e, "data_offsets must be [begin, end] with begin <= end");
    t->bytes = (uint64_t)(json_integer_value(end) - json_integer_value(begin));
    if ((uint64_t)json_integer_value(end) > data_bytes)
        return error_set(
            e, -EINVAL,
            "%s: tensor '%s': ends %" PRIu64 " bytes behind the end of the file (%" PRIu64
            " bytes): truncated; copy or download it again",
            file->path, t->name, (uint64_t)json_integer_value(end) - data_bytes, file->file_bytes);
    t->offset = file->data_start + (uint64_t)json_integer_value(begin);
    if (tensor_bytes(t, &expected) < 0)
        return error_set(e, -EINVAL, "%s: tensor '%s': shape %s is larger than any file",
                         file->path, t->name, tensor_shape_text(t, shape));
    if (expected != t->bytes)
        return error_set(
            e, -EINVAL,
            "%s: tensor '%s': shape %s of %s takes %" PRIu64 " bytes, the header gives it %" PRIu64,
            file->path, t->name, tensor_shape_text(t, shape), dtype, expected, t->bytes);
    return 0;
}

static int compare_places(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

// The format wants the data covered without overlap or gap; leaves the tensors sorted by place.
static int places_check(const struct safetensors *file, struct fl_error *e)
{
    uint64_t end = file->data_start;

    qsort(file->tensors, file->count, sizeof *file->tensors, compare_places);
    for (size_t i = 0; i < file->count; i++) {
        const struct tensor *t = &file->tensors[i];
        if (t->offset < end)
            return error_set(e, -EINVAL, "%s: tensor '%s': its data overlap those of '%s'",
                             file->path, t->name, file->tensors[i - 1].name);
        if (t->offset > end)
            return error_set(e, -EINVAL,
                             "%s: tensor '%s': %" PRIu64 " bytes before it belong to no tensor",
                             file->path, t->name, t->offset - end);
        end += t->bytes;
    }
    if (end != file->file_bytes)
        return error_set(e, -EINVAL, "%s: %" PRIu64 " bytes behind the last tensor belong to none",
                         file->path, file->file_bytes - end);
    return 0;
}

static int header_parse(struct safetensors *file, const char *text, size_t bytes,
                        struct fl_error *e)
{
    json_error_t json_error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &json_error), *entry;
    const char *name;
    int rc = 0;

    if (!root)
        return error_set(e, -EINVAL,
                         "%s: header is not valid JSON at byte %d: %s; download the file again",
                         file->path, json_error.position + 8, json_error.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return error_set(e, -EINVAL, "%s: header is not a JSON object", file->path);
    }
    file->tensors = memory_zeroed(json_object_size(root), sizeof *file->tensors);
    json_object_foreach(root, name, entry)
    {
        struct tensor *t = &file->tensors[file->count];
        if (!strcmp(name, "__metadata__"))
            continue;
        t->name = memory_string(name);
        file->count++;
        rc = tensor_parse(file, entry, t, e);
        if (rc < 0)
            break;
    }
    json_decref(root);
    if (rc == 0)
        rc = places_check(file, e);
    qsort(file->tensors, file->count, sizeof *file->tensors, compare_names);
    return rc;
}

static int header_read(struct safetensors *file, struct fl_error *e)
{
    uint64_t length;
    char *text;
    int rc;

    if (file->file_bytes < 8)
        return error_set(e, -EINVAL, "%s: %" PRIu64 " bytes: too short for a safetensors file",
                         file->path, file->file_bytes);
    rc = read_at(file->fd, file->path, &length, sizeof length, 0, e);
    if (rc < 0)
        return rc;
    length = le64toh(length);
    if (length > file->file_bytes - 8)
        return error_set(e, -EINVAL,
                         "%s: header length %" PRIu64 " reaches beyond the file (%" PRIu64
                         " bytes): truncated or not safetensors; copy or download it again",
                         file->path, length, file->file_bytes);
    if (length > SAFETENSORS_HEADER_LIMIT)
        return error_set(e, -EINVAL, "%s: header length %" PRIu64 " is above the format's %d",
                         file->path, length, SAFETENSORS_HEADER_LIMIT);
    file->data_start = 8 + length;
    text = memory_zeroed(length, 1);
    rc = read_at(file->fd, file->path, text, length, 8, e);
    if (rc == 0)
        rc = header_parse(file, text, length, e);
    free(text);
    return rc;
}

int safetensors_open(const char *path, struct safetensors **out, struct fl_error *e)
{
    struct safetensors *file = memory_zeroed(1, sizeof *file);
    struct stat st;
    int rc;

    *out = NULL;
    file->path = memory_string(path);
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0 || fstat(file->fd, &st) < 0) {
        rc = error_set(e, -errno,
                       "%s: cannot open: %s; check the checkpoint's files and permissions", path,
                       strerror(errno));
        goto out;
    }
    if (!S_ISREG(st.st_mode)) {
        rc = error_set(e, -EINVAL, "%s: not a regular file", path);
        goto out;
    }
    file->file_bytes = (uint64_t)st.st_size;
    rc = header_read(file, e);
out:
    if (rc < 0)
        safetensors_close(file);
    else
        *out = file;
    return rc;
}

void safetensors_close(struct safetensors *file)
{
    if (!file)
        return;
    if (file->fd >= 0)
        close(file->fd);
    for (size_t i = 0; i < file->count; i++)
        free((char *)file->tensors[i].name);
    free(file->tensors);
    free(file->path);
    free(file);
}

const char *safetensors_path(const struct safetensors *file)
{
    return file->path;
}

size_t safetensors_count(const struct safetensors *file)
{
    return file->count;
}

const struct tensor *safetensors_at(const struct safetensors *file, size_t index)
{
    return &file->tensors[index];
}

const struct tensor *safetensors_find(const struct safetensors *file, const char *name)
{
    struct tensor key = {.name = name};

    return bsearch(&key, file->tensors, file->count, sizeof *file->tensors, compare_names);
}

int safetensors_read(const struct safetensors *file, const struct tensor *tensor,
                     uint64_t first_byte, void *destination, size_t bytes, struct fl_error *e)
{
    int rc;

    if (first_byte > tensor->bytes || bytes > tensor->bytes - first_byte)
        return error_set(e, -ERANGE,
                         "%s: tensor '%s': bytes %" PRIu64 " to %" PRIu64 " asked of %" PRIu64,
                         file->path, tensor->name, first_byte, first_byte + bytes, tensor->bytes);
    rc = read_at(file->fd, file->path, destination, bytes, tensor->offset + first_byte, e);
    if (rc < 0)
        return error_set(e, rc, "%s: tensor '%s': cannot read: %s", file->path, tensor->name,
                         rc == -EIO ? "the file was truncated or the disk failed" : strerror(-rc));
    return 0;
}
