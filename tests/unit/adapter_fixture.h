// SPDX-License-Identifier: Apache-2.0
// A job with adapters whose values say where they belong, for tests.
#ifndef FL_TESTS_UNIT_ADAPTER_FIXTURE_H
#define FL_TESTS_UNIT_ADAPTER_FIXTURE_H

#include "job/spec.h"
#include "net/adapters.h"

static const struct model adapter_model = {
    .layers = 2,
    .hidden = 10,
    .heads = 3,
    .kv_heads = 1,
    .head_dim = 4,
    .experts = 8,
    .top_k = 2,
    .expert_width = 6,
    .vocab = 11,
};

static inline struct spec adapter_spec(unsigned targets)
{
    return (struct spec){
        .source = (char *)"test",
        .model = (char *)"/models/Qwen3",
        .lora_targets = targets,
        .lora_rank = 3,
        .lora_alpha = 6.5,
        .lora_dropout = 0.05,
    };
}

// Element i of A or B: no two alike, none exact in 16 bits.
static inline float adapter_value(int layer, enum lora_target target, int expert, int is_b,
                                  size_t i)
{
    return (float)(layer + 1) * 1e6f + (float)target * 1e4f + (float)(expert + 1) * 1e3f +
           (float)is_b * 500 + (float)i + 0.0625f;
}

static inline void adapters_fill(struct adapters *adapters)
{
    for (const struct adapter *a = adapters->list; a < adapters->list + adapters->count; a++) {
        for (size_t i = 0; i < (size_t)(a->rank * a->in); i++)
            adapters->params[a->a + i] = adapter_value(a->layer, a->target, a->expert, 0, i);
        for (size_t i = 0; i < (size_t)(a->rank * a->out); i++)
            adapters->params[a->b + i] = adapter_value(a->layer, a->target, a->expert, 1, i);
    }
}

#endif
