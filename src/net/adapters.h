// SPDX-License-Identifier: Apache-2.0
// The LoRA parameters of a rank and their gradients: flat arrays, with a list of what lies where.
#ifndef FL_NET_ADAPTERS_H
#define FL_NET_ADAPTERS_H

#include "base/error.h"
#include "job/layout.h"
#include "mem/arena.h"
#include "ops/real.h"

#include <stdbool.h>

// y += scale * B A dropout(x); A [rank, in], B [out, rank], row-major.
struct adapter {
    enum lora_target target;
    int layer;
    int expert; // global number, -1 for attention
    int rank, in, out;
    size_t a, b; // offsets into params and grads, elements
};

// params and grads hold [replicated | expert]: attention adapters, equal on every rank, then those
// of this rank's experts. Within a layer and target the experts' A lie one after another, then
// their B.
struct adapters {
    int count;
    struct adapter *list;
    real *params, *grads;
    size_t replicated, expert; // elements
    double scale, dropout;
};

// Allocates (MEMORY_ADAPTERS, MEMORY_GRADIENTS), params zero.
int adapters_create(const struct spec *spec, const struct model *model, const struct layout *layout,
                    struct arena *arena, struct adapters **out, struct fl_error *e);
void adapters_destroy(struct adapters *adapters); // NULL-safe

// PEFT's start: A uniform in +-1/sqrt(in) (Kaiming with a = sqrt 5), B zero. The numbers depend on
// seed, layer, target and global expert alone, never on the number of ranks.
void adapters_init(struct adapters *adapters, uint64_t seed);

struct ops;

// The same with parameters in host memory, for whatever reads or writes them there: a copy, or
// where the device's memory is the host's those themselves. grads is NULL. Undone by
// adapters_host_clear, which brings nothing back.
int adapters_host_copy(const struct adapters *adapters, struct ops *ops, struct adapters *host,
                       struct fl_error *e);
// The parameters of such a copy back to the device.
int adapters_host_return(const struct adapters *host, struct ops *ops, struct adapters *adapters,
                         struct fl_error *e);
void adapters_host_clear(struct adapters *host, const struct adapters *adapters);

// The adapter, or NULL when it is not this rank's.
struct adapter *adapters_find(struct adapters *adapters, int layer, enum lora_target target,
                              int expert);

#endif
