// SPDX-License-Identifier: Apache-2.0
// Reader of one safetensors file: 8 bytes of header length, a JSON header, then the data.
//
// Format: https://huggingface.co/docs/safetensors. Everything the header claims is checked against
// the file before anything is read: types, shapes, sizes, offsets without overlap or gap.
#ifndef FL_WEIGHTS_SAFETENSORS_H
#define FL_WEIGHTS_SAFETENSORS_H

#include "base/error.h"
#include "weights/tensor.h"

#include <stddef.h>

#define SAFETENSORS_HEADER_LIMIT 100000000 // bytes, the format's own limit

struct safetensors;

// Errors name file and tensor: -ENOENT and other errnos of open, -EINVAL for a damaged file.
int safetensors_open(const char *path, struct safetensors **out, struct fl_error *e);
void safetensors_close(struct safetensors *file); // NULL-safe

const char *safetensors_path(const struct safetensors *file);
size_t safetensors_count(const struct safetensors *file);
// Sorted by name; valid until close.
const struct tensor *safetensors_at(const struct safetensors *file, size_t index);
// NULL when the file has no such tensor.
const struct tensor *safetensors_find(const struct safetensors *file, const char *name);

// Reads bytes of the tensor's data from first_byte straight to destination; safe from several
// threads at once.
int safetensors_read(const struct safetensors *file, const struct tensor *tensor,
                     uint64_t first_byte, void *destination, size_t bytes, struct fl_error *e);

#endif
