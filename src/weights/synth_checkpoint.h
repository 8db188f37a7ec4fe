// SPDX-License-Identifier: Apache-2.0
// A made checkpoint on disk: what synth:// holds in memory, as sharded safetensors.
#ifndef FL_WEIGHTS_SYNTH_CHECKPOINT_H
#define FL_WEIGHTS_SYNTH_CHECKPOINT_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

struct synth_written {
    uint64_t bytes; // of tensor data
    size_t shards;
};

// Of source (job/source.h, with or without synth://) and its seed into folder, which must be new or
// empty: config.json as FP8, shards of at most shard_bytes unless one tensor is larger, their
// index, and the tokenizer where the source has one. A failure leaves nothing in folder.
int synth_checkpoint_write(const char *source, uint64_t seed, const char *folder,
                           uint64_t shard_bytes, struct synth_written *written, struct fl_error *e);

#endif
