// SPDX-License-Identifier: Apache-2.0
// A model as config.json describes it: shapes only.
#ifndef FL_JOB_MODEL_H
#define FL_JOB_MODEL_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FP8_BLOCK 128 // rows and columns under one weight scale

struct model {
    int layers, hidden, heads, kv_heads, head_dim;
    int experts, top_k, expert_width; // expert_width: moe_intermediate_size
    int vocab;
    int max_positions;
    double rms_eps, rope_theta;
    bool norm_topk_prob, tied_embeddings;
    bool fp8; // weights are stored e4m3 with 128x128 scales; else BF16, quantised while loading
};

// Parses config.json text; name is the file's name for messages. Refuses other architectures and
// features this trainer lacks (attention bias, sliding window, rope scaling, dense layers) by name.
int model_parse(const char *text, size_t bytes, const char *name, struct model *model,
                struct fl_error *e);

// Reads the config.json of a model as job/source.h writes it. Weights made of it are always FP8.
int model_load(const char *model_source, struct model *model, struct fl_error *e);

#endif
