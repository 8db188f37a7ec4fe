// SPDX-License-Identifier: Apache-2.0
// Writes a safetensors file as a stream: all names and shapes first, then the data in that order.
//
// The file is there whole or not at all. The data start at a multiple of 8 bytes and follow each
// other without gaps, as the format wants; list tensors of wider elements first to keep every one
// aligned to its element. Equal input gives equal bytes.
#ifndef FL_WEIGHTS_SAFETENSORS_WRITER_H
#define FL_WEIGHTS_SAFETENSORS_WRITER_H

#include "base/error.h"
#include "weights/tensor.h"

#include <stddef.h>

struct safetensors_writer;

// Name, type, dims and shape of each tensor are used. Nothing of tensors is kept.
int safetensors_writer_open(const char *path, const struct tensor *tensors, size_t count,
                            struct safetensors_writer **out, struct fl_error *e);

// The next bytes of the data, in pieces of any size. More than announced: -ERANGE.
int safetensors_writer_append(struct safetensors_writer *writer, const void *data, size_t bytes,
                              struct fl_error *e);

// Puts the file into place and frees the writer; on failure (also fewer bytes than announced:
// -ERANGE) nothing is left.
int safetensors_writer_commit(struct safetensors_writer *writer, struct fl_error *e);
// Removes what was written; NULL-safe.
void safetensors_writer_abort(struct safetensors_writer *writer);

#endif
