// SPDX-License-Identifier: Apache-2.0
// Inside the network: one pass over a micro-batch, and what its parts share.
#ifndef FL_NET_PASS_H
#define FL_NET_PASS_H

#include "net/net.h"

struct net {
    struct net_config config;
    struct net_probe probe;
    int64_t *counts;                 // [layers] of a dispatch's, one after another
    size_t *send_bytes, *recv_bytes; // by rank, of one exchange
    void **inputs;                   // of the pass
    struct layer_state *states;      // [layers] of the pass
};

// A micro-batch on the device, the layers' inputs and their routing. In training the input of every
// layer stays for the backward pass; in evaluation two buffers alternate.
struct pass {
    struct net *net;
    struct ops *ops;
    const struct model *model;
    struct batch batch; // of device pointers, but starts, which is the host's
    bool training;
    uint64_t step;
    double aux_scale; // of one layer's aux
    void **inputs;    // host [layers + 1] streams [T, H]
    real *rope;
    int32_t *ids;     // [layers, T, K]
    uint8_t *kept;    // [layers, T, K]
    double *aux;      // [layers]
    double *loss_sum; // [1]
};

// Takes the batch to the device. The caller has a mark to release, whatever is returned.
int pass_open(struct pass *pass, const struct batch *host, struct fl_error *e);
// Transient buffers; released with the arena's marks.
int pass_push(struct pass *pass, enum memory_category category, size_t bytes, void **out,
              struct fl_error *e);
int pass_push_rows(struct pass *pass, enum ops_row kind, int rows, int cols, void **out,
                   struct fl_error *e);
int pass_push_reals(struct pass *pass, size_t count, real **out, struct fl_error *e);
// Shows stream rows, or reals, to the probe.
int pass_see_rows(struct pass *pass, const char *what, int layer, const void *x, int rows, int cols,
                  struct fl_error *e);
int pass_see_reals(struct pass *pass, const char *what, int layer, const real *x, int rows,
                   int cols, struct fl_error *e);
int pass_see_routing(struct pass *pass, int layer, struct fl_error *e);
// The adapters of a base matrix in this pass; targets that follow one another cover its rows.
void pass_lora(const struct pass *pass, int layer, unsigned targets, struct lora *lora);

// Rows on their way to the experts' ranks and back.
struct dispatch {
    // Host: rows this rank sends to every expert [E], rows every source sends to each local expert
    // [EP, E / EP], and their sums [E / EP].
    int64_t *sent, *received, *grouped;
    int32_t *order, *position, *index;
    struct group group;
    int rows_sent;
};
size_t dispatch_counts(const struct net_config *config); // of all three arrays together
int dispatch_open(struct pass *pass, int layer, const struct routing *routing, struct dispatch *d,
                  struct fl_error *e);
// Sends from[order[r] / divide] and groups what arrives.
int dispatch_send(struct pass *pass, const struct dispatch *d, const void *from, int divide,
                  size_t row_bytes, void *grouped, struct fl_error *e);
// The way back: rows in the order they were sent.
int dispatch_return(struct pass *pass, const struct dispatch *d, const void *grouped,
                    size_t row_bytes, void *rows, struct fl_error *e);

// First half of a layer, up to what is added to the residual.
struct attention {
    void *h, *hq, *qkv, *qk, *out, *outq, *delta;
    real *lse;
    struct lora qkv_lora, proj_lora;
};
int attention_forward(struct pass *pass, int layer, struct attention *a, struct fl_error *e);
// dx: in, the gradient of the sum after this half; out, that of the layer's input.
int attention_backward(struct pass *pass, int layer, struct attention *a, void *dx,
                       struct fl_error *e);

// Second half: router, experts, residual.
struct moe {
    void *x; // after attention
    void *h, *hq;
    struct routing routing;
    struct dispatch dispatch;
    void *rows, *gate_up, *act, *actq;
    struct lora fc1_lora, fc2_lora;
};
// Up to the activation of the experts; delta is added to the layer's input first.
int moe_forward(struct pass *pass, int layer, const void *delta, bool replay, struct moe *m,
                struct fl_error *e);
// Down projection and combination: out = x + the experts' sum.
int moe_finish(struct pass *pass, int layer, struct moe *m, void *out, struct fl_error *e);
// dx: in, the gradient of the layer's output; out, that of m->x.
int moe_backward(struct pass *pass, int layer, struct moe *m, void *dx, struct fl_error *e);

// What a layer's forward pass leaves: to its own backward pass where it is not computed again.
struct layer_state {
    struct attention attention;
    struct moe moe;
};

// Whether a half of every layer stays from the forward to the backward pass.
bool pass_keeps_attention(const struct pass *pass);
bool pass_keeps_experts(const struct pass *pass);

#endif
