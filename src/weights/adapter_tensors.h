// SPDX-License-Identifier: Apache-2.0
// The tensors of an adapter file in PEFT's names, one pair for each projection of each expert.
#ifndef FL_WEIGHTS_ADAPTER_TENSORS_H
#define FL_WEIGHTS_ADAPTER_TENSORS_H

#include "job/model.h"
#include "job/spec.h"

#include <stdbool.h>
#include <stddef.h>

#define ADAPTER_WEIGHTS_NAME "adapter_model.safetensors"
#define ADAPTER_CONFIG_NAME  "adapter_config.json"

// Rows [first_row, first_row + rows) of A [rank, in] or B [out, rank] of one struct adapter. A
// fused module's A is stored whole for each of its projections, its B is divided between them.
struct adapter_tensor {
    char *name; // "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    enum lora_target target;
    int layer, expert; // expert -1: attention
    bool is_b;
    int first_row, rows, cols;
};

struct adapter_tensors {
    size_t count;
    struct adapter_tensor *list;
};

// Of the whole model, by layer: attention, then the experts by number.
struct adapter_tensors *adapter_tensors_create(const struct spec *spec, const struct model *model);
void adapter_tensors_destroy(struct adapter_tensors *tensors); // NULL-safe

// The distinct projection names of the targets ("q_proj", ...) into names; returns their number.
#define ADAPTER_PROJECTIONS 7
int adapter_projections(unsigned targets, const char *names[ADAPTER_PROJECTIONS]);

#endif
