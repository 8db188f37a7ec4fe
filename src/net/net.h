// SPDX-License-Identifier: Apache-2.0
// The network: forward and backward of Qwen3-MoE with LoRA, written once over ops and comm.
#ifndef FL_NET_NET_H
#define FL_NET_NET_H

#include "comm/comm.h"
#include "data/batch.h"
#include "net/adapters.h"
#include "ops/ops.h"
#include "weights/model_weights.h"

struct net;

// What a test may see or fix; NULL members are not used.
struct net_probe {
    // rows x cols values of the forward pass: "hidden" (before layer i; layer = layers: after the
    // final norm), "router_logits", "experts" (the routing decision, [tokens, top_k] numbers),
    // "kept" (likewise, 0: dropped by the capacity), and "logits" a chunk of NET_HEAD_CHUNK rows
    // after another, layer = the chunk's first row.
    void (*see)(void *context, const char *what, int layer, const real *values, int rows, int cols);
    void *context;
    const int32_t *routing; // [layers, tokens, top_k] experts to use instead of the router's choice
    const uint8_t *kept;    // likewise, 0: dropped; NULL with a routing: all kept
};

#define NET_HEAD_CHUNK 256 // rows whose logits exist at the same time

struct net_config {
    const struct spec *spec;
    const struct model *model;
    const struct layout *layout;
    struct ops *ops;
    struct arena *arena;
    struct comm *ep_comm; // the expert-parallel group
    struct model_weights *weights;
    struct adapters *adapters;
};

struct net_loss {
    double loss_sum; // of the cross entropy over this batch's targets
    int64_t targets; // counted
    double aux_loss; // mean over layers, without its coefficient
};

// Keeps references to everything in config.
int net_create(const struct net_config *config, struct net **out, struct fl_error *e);
void net_destroy(struct net *net); // NULL-safe
void net_probe_set(struct net *net, const struct net_probe *probe);

// Adds to the adapters' gradients those of  loss_scale * loss_sum + aux_scale * aux_coeff * sum
// over layers of aux, where
//   aux = E / (k T^2) * sum over experts i of (sum over t of p[t, i]) * n[i]
// of this rank's T tokens: p the full softmax, n the slots routed to i before dropping; its
// gradient goes through p alone. Under accumulation and data parallelism the caller divides
// aux_scale by the number of micro-batches of the iteration on all ranks, so that the iteration's
// aux is their mean. A capacity factor cf limits every expert to ceil(T * k * cf / E) rows of this
// rank's micro-batch, those with the greatest routing weights. step keys the dropout. What of every
// layer stays and what is computed again, from its input, is spec->recompute's; the results are the
// same bits. All ranks of ep_comm call together, with any batch sizes; a rank
// without work passes tokens = 0.
int net_train(struct net *net, const struct batch *batch, uint64_t step, double loss_scale,
              double aux_scale, struct net_loss *loss, struct fl_error *e);

// Forward only, no dropout, no capacity limit.
int net_evaluate(struct net *net, const struct batch *batch, struct net_loss *loss,
                 struct fl_error *e);

#endif
