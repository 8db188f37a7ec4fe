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
    // final norm), "router_logits", "logits".
    void (*see)(void *context, const char *what, int layer, const real *values, int rows, int cols);
    void *context;
    const int32_t *routing; // [layers, tokens, top_k] experts to use instead of the router's choice
};

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
// over layers of aux; step keys the dropout. All ranks of ep_comm call together, with any batch
// sizes; a rank without work passes tokens = 0.
int net_train(struct net *net, const struct batch *batch, uint64_t step, double loss_scale,
              double aux_scale, struct net_loss *loss, struct fl_error *e);

// Forward only, no dropout, no capacity limit.
int net_evaluate(struct net *net, const struct batch *batch, struct net_loss *loss,
                 struct fl_error *e);

#endif
