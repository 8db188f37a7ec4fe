// SPDX-License-Identifier: Apache-2.0
// What a checkpoint's index says of its size, without a look at the shards.
#ifndef FL_JOB_INDEX_H
#define FL_JOB_INDEX_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

struct index_size {
    uint64_t bytes;        // of all tensors; 0: not told
    size_t tensors, files; // 0: there is no index
};

// Of model.safetensors.index.json of the model's folder (job/source.h). A missing one is no error;
// one that is not JSON, names no tensors or no files for them, or a size that is none, is.
int index_read(const char *model, struct index_size *size, struct fl_error *e);

#endif
