// SPDX-License-Identifier: Apache-2.0
// Parameter counts in closed form.
#ifndef FL_JOB_PARAMS_H
#define FL_JOB_PARAMS_H

#include "job/model.h"
#include "job/spec.h"

#include <stdint.h>

// Of the base model, holding `experts` experts in every layer: a rank's share, or all.
uint64_t params_base(const struct model *model, int experts);

// Of the adapters: A [rank, in] and B [out, rank] of every target, an A for every fused module.
uint64_t params_trainable(const struct spec *spec, const struct model *model, int experts);

// Model totals as Megatron-LM's theoretical report counts them: without routers and head norms.
uint64_t params_reported_block(const struct model *model);
uint64_t params_reported_embedding(const struct model *model);

#endif
