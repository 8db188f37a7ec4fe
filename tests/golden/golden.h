// SPDX-License-Identifier: Apache-2.0
// The tiny checkpoint and its golden values beside our own network, and how far the two are apart.
#ifndef FL_TESTS_GOLDEN_GOLDEN_H
#define FL_TESTS_GOLDEN_GOLDEN_H

#include "net/net.h"
#include "weights/safetensors.h"

#define GOLDEN_STEPS 20

struct golden {
    struct fl_error e;
    struct safetensors *file;
    struct model model;
    struct spec spec;
    struct layout layout;
    struct arena *arena;
    struct ops *ops;
    struct comm *comm;
    struct model_weights *weights;
    struct adapters *adapters;
    struct net *net;
    struct batch batch;
    struct net_loss loss;
    // Of the last pass.
    real *hidden, *router_logits, *logits; // [layers + 1, T, H], [layers, T, E], [T, vocab]
    int32_t *routing;                      // [layers, T, K]
};

// Fails the running test on any error. The adapters are zero.
void golden_open(struct golden *g, enum numerics numerics);
void golden_close(struct golden *g);

// Puts golden.safetensors' adapters in place.
void golden_adapters(struct golden *g);
// Gradients of the mean loss, replacing the old ones; routing NULL: the router's own choice.
void golden_train(struct golden *g, const int32_t *routing);
double golden_mean_loss(const struct golden *g);

// Distances to the golden values, Frobenius, relative.
struct golden_exact {
    double base_loss, router_logits, hidden, logits; // of the base model
    double lora_loss, lora_logits, gradients;        // gradients: of the worst adapter
    double train_loss, train_norm;                   // of the worst step
};
struct golden_fp8 {
    double loss;                               // absolute
    double cosine, norm_ratio;                 // of the whole gradient, routing replayed
    double adapter_cosine, adapter_norm_ratio; // the worst adapter's
    double free_cosine;                        // of the whole gradient, routing free
};

// steps: of training, at most GOLDEN_STEPS. break_it, if given, plants a bug before the first pass.
void golden_exact_measure(struct golden_exact *x, int steps, void (*break_it)(struct golden *g));
void golden_fp8_measure(struct golden_fp8 *x, void (*break_it)(struct golden *g));

// Names of the limits that are broken, "" when none, into text; returns text.
char *golden_exact_judge(const struct golden_exact *x, char text[256]);
char *golden_fp8_judge(const struct golden_fp8 *x, char text[256]);

#endif
