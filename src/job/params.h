// SPDX-License-Identifier: Apache-2.0
// Parameter counts in closed form.
#ifndef FL_JOB_PARAMS_H
#define FL_JOB_PARAMS_H

#include "job/model.h"
#include "job/spec.h"

#include <stdint.h>

// Of the base model on one of tp ranks that share heads and vocabulary, holding `experts` experts
// in every layer: a rank's share, or with tp 1 and all experts the model's. Key and value heads are
// replicated where there are fewer than ranks.
uint64_t params_base(const struct model *model, int tp, int experts);

// Of the adapters: A [rank, in] and B [out, rank] of every target, an A for every fused module. Of
// tp ranks each has its rows of B of q, k and v and its columns of A of the output projection.
uint64_t params_trainable(const struct spec *spec, const struct model *model, int tp, int experts);

// Model totals as Megatron-LM's theoretical report counts them: without routers and head norms.
uint64_t params_reported_block(const struct model *model);
uint64_t params_reported_embedding(const struct model *model);

#endif
