// SPDX-License-Identifier: Apache-2.0
// What a step costs in time and traffic: sums over the shapes, at measured shares of a GPU's peaks.
// Measured on an H200; other GPUs are scaled by their peaks and bandwidths.
#ifndef FL_JOB_ESTIMATE_H
#define FL_JOB_ESTIMATE_H

#include "job/gpus.h"
#include "job/plan.h"

#include <stddef.h>

// Of one rank in one iteration. Balanced routing, full micro-batches; what overlaps with computing
// counts by what is left over.
struct estimate {
    double tokens;                                                             // of all ranks
    double products_s, attention_s, head_s, adapters_s, traffic_s, launches_s; // computing
    double weights_s, dropout_s;                                               // likewise
    double exchange_s, gradients_s, gather_s, tables_s, tensor_s, inputs_s, optimizer_s; // exposed
    double step_s;
    // Sent by one rank. Of the exchange with experts: rows there and back in the forward pass, what
    // goes there again to be computed again, gradients there and back.
    double dispatch_bytes, return_bytes, again_bytes, back_dispatch_bytes, back_return_bytes;
    // Gradients of adapters that all ranks have, and of experts that replicas share.
    double dense_gradient_bytes, expert_gradient_bytes;
    double gather_bytes; // shards of attention's weights, a layer at a time
    double tables_bytes; // rows to sharded embedding and output layer and back
    double tensor_bytes; // tokens between the ranks that share heads
    double host_bytes;   // to and from host memory
};

// A time or a volume by its names: for a program, and for a person.
struct estimate_row {
    const char *key, *name, *what;
    size_t offset; // in struct estimate, of a double
};
#define ESTIMATE_TIMES   15
#define ESTIMATE_VOLUMES 11
extern const struct estimate_row estimate_times[ESTIMATE_TIMES]; // sum to step_s
extern const struct estimate_row estimate_volumes[ESTIMATE_VOLUMES];

static inline const double *estimate_time(const struct estimate *e, const struct estimate_row *row)
{
    return (const double *)(const void *)((const char *)e + row->offset);
}

// Pure. The plan is of the same spec and model, on the GPU backend.
void estimate_make(const struct spec *spec, const struct model *model, const struct plan *plan,
                   const struct gpu *gpu, const struct fabric *fabric, struct estimate *out);

#endif
