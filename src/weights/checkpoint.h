// SPDX-License-Identifier: Apache-2.0
// A checkpoint folder in Hugging Face layout: model.safetensors.index.json and its shards, or one
// model.safetensors.
#ifndef FL_WEIGHTS_CHECKPOINT_H
#define FL_WEIGHTS_CHECKPOINT_H

#include "base/error.h"
#include "weights/safetensors.h"

#include <stdbool.h>

struct checkpoint;

// Reads the index (or the only file's header). Errors: no such folder, neither file in it, an index
// that is not JSON or names a shard outside the folder.
int checkpoint_open(const char *folder, struct checkpoint **out, struct fl_error *e);
void checkpoint_close(struct checkpoint *checkpoint); // NULL-safe

bool checkpoint_has(const struct checkpoint *checkpoint, const char *name);

// The tensor and the file that holds it, both valid until close. Opens the file's header on its
// first use, so one thread at a time. Errors: name missing from the index, its shard missing or
// damaged, the shard lacks it.
int checkpoint_find(struct checkpoint *checkpoint, const char *name,
                    const struct safetensors **file, const struct tensor **tensor,
                    struct fl_error *e);

#endif
