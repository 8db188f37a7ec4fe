// SPDX-License-Identifier: Apache-2.0
// The tensors of a Qwen3-MoE checkpoint by name, shape and use.
#ifndef FL_WEIGHTS_MODEL_TENSORS_H
#define FL_WEIGHTS_MODEL_TENSORS_H

#include "job/model.h"

enum tensor_use {
    USE_EMBED,
    USE_INPUT_NORM,
    USE_Q,
    USE_K,
    USE_V,
    USE_Q_NORM,
    USE_K_NORM,
    USE_O,
    USE_POST_NORM,
    USE_ROUTER,
    USE_GATE,
    USE_UP,
    USE_DOWN,
    USE_FINAL_NORM,
    USE_HEAD,
};

struct model_tensor {
    enum tensor_use use;
    int layer, expert; // where it has one
    char name[128];
    int dims, rows, cols; // dims 1: [cols]
};

// Base products, FP8 where the model is.
bool tensor_is_projection(enum tensor_use use);

// Calls visit for every tensor, in the order of the layers, with the experts [first, first + count)
// of each; stops at the first negative return and hands it on.
int model_tensors_walk(const struct model *model, int expert_first, int expert_count,
                       int (*visit)(void *context, const struct model_tensor *tensor),
                       void *context);

#endif
