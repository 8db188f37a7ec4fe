// SPDX-License-Identifier: Apache-2.0
// What a step costs in time and traffic: sums over the shapes, at measured shares of a GPU's peaks.
#ifndef FL_JOB_ESTIMATE_H
#define FL_JOB_ESTIMATE_H

#include "job/gpus.h"
#include "job/plan.h"

// Of one rank in one iteration. Balanced routing, full micro-batches; what overlaps with computing
// counts by what is left over.
struct estimate {
    double tokens;                                                             // of all ranks
    double products_s, attention_s, head_s, adapters_s, traffic_s, launches_s; // computing
    double exchange_s, gradients_s, gather_s, inputs_s, optimizer_s;           // exposed
    double step_s;
    double exchange_bytes, gradient_bytes, gather_bytes, host_bytes; // sent by one rank
};

// Pure. The plan is of the same spec and model, on the GPU backend.
void estimate_make(const struct spec *spec, const struct model *model, const struct plan *plan,
                   const struct gpu *gpu, const struct fabric *fabric, struct estimate *out);

#endif
