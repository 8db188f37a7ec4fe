// SPDX-License-Identifier: Apache-2.0
// How far our own network is from golden values, and one backend from another.
#ifndef FL_TESTS_GOLDEN_GOLDEN_H
#define FL_TESTS_GOLDEN_GOLDEN_H

#include "golden/job.h"

#define GOLDEN_STEPS 20

// Distances to the golden values, Frobenius, relative.
struct golden_exact {
    double base_loss, router_logits, hidden, logits; // of the base model
    double lora_loss, lora_logits, gradients;        // gradients: of the worst adapter
    double train_loss, train_norm;                   // of the worst step
};

// Gradients of two backends, or of one and a file.
struct golden_likeness {
    double loss;                               // difference
    double cosine, norm_ratio;                 // of the whole gradient
    double adapter_cosine, adapter_norm_ratio; // the worst adapter's
    char worst[128];                           // the one with that cosine
    int without; // adapters without a gradient on both sides, which are not compared
};

struct golden_fp8 {
    struct golden_likeness replayed; // the routing; its loss: with routing free
    double free_cosine;              // of the whole gradient, routing free
};

// steps: of training, at most GOLDEN_STEPS. break_it, if given, plants a bug before the first pass.
void golden_exact_measure(struct golden_exact *x, const struct golden_config *config, int steps,
                          void (*break_it)(struct golden *g));
// config: of the backend in question; the routing is that of the CPU in exact numerics.
void golden_fp8_measure(struct golden_fp8 *x, const struct golden_config *config,
                        void (*break_it)(struct golden *g));

// g's step with adapters in place and this routing against a loss and gradients [g->count].
void golden_compare(struct golden *g, const int32_t *routing, double loss, const real *gradients,
                    struct golden_likeness *x);

// Names of the limits that are broken, "" when none, into text; returns text.
char *golden_exact_judge(const struct golden_exact *x, char text[256]);
char *golden_fp8_judge(const struct golden_fp8 *x, char text[256]);
// fp8 numerics against fp32's.
char *golden_likeness_judge(const struct golden_likeness *x, char text[256]);

// The same quantisation on both sides: loss within 2e-3, cosines at least 0.999, norms within 1 %.
// floor, if not NULL: where it is wider, and so for every number by itself, twice what the
// step moves by itself. Rounding to e4m3 turns a difference of d between two right sums into one of
// about sqrt(0.1 d) of the rounded, layer after layer, so deep jobs have a floor above these
// limits.
char *golden_sharp_judge(const struct golden_likeness *x, const struct golden_likeness *floor,
                         char text[256]);
// How far that is: g, on the CPU, whose step gave this loss and gradients, with the gains of its
// norms moved by 1e-4 at random, about what the tensor core's sums are off by.
void golden_floor(struct golden *g, const int32_t *routing, double loss, const real *gradients,
                  struct golden_likeness *x);

#endif
