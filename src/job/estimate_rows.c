// SPDX-License-Identifier: Apache-2.0
// What an estimate is made of, named.
#include "job/estimate.h"

#define AT(member) offsetof(struct estimate, member)

const struct estimate_row estimate_times[ESTIMATE_TIMES] = {
    {"products", "frozen products", "FP8, 52 % of the peak, grouped 50 %", AT(products_s)},
    {"weights", "reading frozen weights", "transposed in the backward pass", AT(weights_s)},
    {"attention", "attention", "58 % of the bf16 peak, backward 42 %", AT(attention_s)},
    {"output_layer", "output layer", "72 % of the bf16 peak, and its logits", AT(head_s)},
    {"adapters", "adapters", "20 % of the bf16 peak; backward, their rows 8 times", AT(adapters_s)},
    {"dropout", "dropout", "of the adapters' inputs", AT(dropout_s)},
    {"traffic", "norms, quantising, moving", "88 % of the memory's bandwidth", AT(traffic_s)},
    {"launches", "launches", "0.2 ms a layer and micro-batch", AT(launches_s)},
    {"exchange", "exchange with experts", "nothing of it overlapped", AT(exchange_s)},
    {"tensor", "tensor-parallel exchange", "nothing of it overlapped", AT(tensor_s)},
    {"gradients", "gradients' reduction", "", AT(gradients_s)},
    {"gather", "gathering of shards", "beyond computing", AT(gather_s)},
    {"tables", "sharded embedding and output", "nothing of it overlapped", AT(tables_s)},
    {"inputs", "layer inputs' copies", "beyond computing", AT(inputs_s)},
    {"optimizer", "optimizer", "", AT(optimizer_s)},
};

const struct estimate_row estimate_volumes[ESTIMATE_VOLUMES] = {
    {"dispatch", "rows to experts", "FP8 and scales", AT(dispatch_bytes)},
    {"return", "and back, to be combined", "bf16", AT(return_bytes)},
    {"dispatch_again", "to be computed again", "FP8 and scales", AT(again_bytes)},
    {"back_dispatch", "gradients to experts", "FP8 and scales", AT(back_dispatch_bytes)},
    {"back_return", "and back", "bf16", AT(back_return_bytes)},
    {"tensor", "between tensor-parallel ranks", "bf16 tokens", AT(tensor_bytes)},
    {"dense_gradients", "gradients of shared adapters", "fp32, ring of all",
     AT(dense_gradient_bytes)},
    {"expert_gradients", "gradients of experts", "fp32, ring of replicas",
     AT(expert_gradient_bytes)},
    {"gather", "shards of attention", "FP8, a layer at a time", AT(gather_bytes)},
    {"tables", "rows of sharded tables", "bf16", AT(tables_bytes)},
    {"host", "to and from host memory", "", AT(host_bytes)},
};
