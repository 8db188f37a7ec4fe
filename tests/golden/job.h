// SPDX-License-Identifier: Apache-2.0
// A training job of a test: any checkpoint or shape, on either backend, with a file of values that
// others computed for it or without one.
#ifndef FL_TESTS_GOLDEN_JOB_H
#define FL_TESTS_GOLDEN_JOB_H

#include "job/plan.h"
#include "net/net.h"
#include "train/optimizer.h"
#include "weights/safetensors.h"

#ifndef FL_SOURCE_DIR
#define FL_SOURCE_DIR "."
#endif

struct golden_config {
    const char *model;  // a checkpoint's folder or synth://
    const char *values; // a safetensors file in the manner of tests/data/golden; NULL: none
    bool cuda;          // the GPU's backend, else the CPU's
    enum numerics numerics;
    const char *recompute; // NULL: full
    int layers, vocab;     // fewer layers and words than the model has; 0: its own
    // Of the adapters; samples of equal length. With values they are the file's.
    int rank, samples, length;
};

extern const struct golden_config golden_tiny; // tests/data's, on the CPU

struct golden {
    struct fl_error e;
    const struct golden_config *config;
    struct safetensors *file; // NULL: none
    struct model model;
    struct spec *spec;
    struct plan plan; // for the threads of this process
    struct arena *arena;
    struct ops *ops;
    struct comm *comm;
    struct model_weights *weights;
    struct adapters *adapters;
    struct net *net;
    struct optimizer *optimizer;
    size_t count; // of parameters
    struct batch batch;
    struct net_loss loss;
    // Of the last pass.
    real *hidden, *router_logits, *logits; // [layers + 1, T, H], [layers, T, E], [T, vocab]
    int32_t *routing;                      // [layers, T, K]
};

// Ends the program with one line when rc is an error.
void golden_must(int rc, const char *call, const struct fl_error *e);
#define GOLDEN_OK(g, call) golden_must((call), #call, &(g)->e)

// With a file of values the adapters are zero, else random, B too. config stays the caller's. Any
// error ends the program.
void golden_open(struct golden *g, const struct golden_config *config);
void golden_close(struct golden *g);

// The tensor's data, its number of 4-byte elements; free(). golden_has: whether there is one.
void *golden_tensor(struct golden *g, const char *name, size_t *count);
double golden_scalar(struct golden *g, const char *name);
bool golden_has(const struct golden *g, const char *name);

// "KIND.layers.1.mlp.experts.3.gate_up.lora_A" into name; returns name.
char *golden_name(const struct adapter *a, const char *kind, char half, char name[128]);
// All tensors of a kind ("lora", "grad") in the order of the parameters, into host memory.
void golden_params_read(struct golden *g, const char *kind, real *host);

// Puts the file's adapters in place.
void golden_adapters(struct golden *g);
// Gradients of the mean loss, replacing the old ones; routing NULL: the router's own choice.
void golden_train(struct golden *g, const int32_t *routing);
double golden_mean_loss(const struct golden *g);
// A whole iteration, with the optimizer and without a look inside. Returns the gradient's norm.
double golden_step(struct golden *g);
// To host memory [count].
void golden_download(struct golden *g, const real *device, real *host);

#endif
