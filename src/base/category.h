// SPDX-License-Identifier: Apache-2.0
// What memory is for: the same seven words in plan, arena, record and report.
#ifndef FL_BASE_CATEGORY_H
#define FL_BASE_CATEGORY_H

enum memory_category {
    MEMORY_WEIGHTS,     // frozen base weights and their scales
    MEMORY_ADAPTERS,    // LoRA parameters the products read
    MEMORY_GRADIENTS,   // of the adapters
    MEMORY_OPTIMIZER,   // moments and master parameters
    MEMORY_ACTIVATIONS, // what the backward pass needs: layer inputs, routing, one layer's tensors
    MEMORY_WORKSPACE,   // scratch of one operation
    MEMORY_COMMUNICATION, // send and receive buffers
    MEMORY_CATEGORIES
};

// "weights", "adapters", ...
const char *memory_category_name(enum memory_category category);

#endif
