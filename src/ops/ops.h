// SPDX-License-Identifier: Apache-2.0
// What a backend computes: operations as coarse as a GPU wants to fuse, behind one table.
//
// Pointers are the device's unless marked "host"; callers never look behind them. Buffers come from
// the arena. Two kinds of rows hide a backend's storage, whose size row_bytes tells:
//   stream     values rounded to bf16 in fp8 numerics, plain reals in exact numerics
//   quantised  e4m3 in blocks of 1x128 with scales amax / 448, plain reals in exact numerics
// Both are made from an operation's fp32 results, rounded once. "real" arrays are fp32 on every
// backend. Every operation may be called with no rows.
// Matrices are row-major; T tokens, R rows, H hidden, W expert width, K top_k, E experts.
// All return 0 or a negative errno with e filled.
#ifndef FL_OPS_OPS_H
#define FL_OPS_OPS_H

#include "base/error.h"
#include "data/batch.h"
#include "job/model.h"
#include "job/spec.h"
#include "mem/arena.h"
#include "ops/moment.h"
#include "ops/real.h"
#include "weights/model_weights.h"
#include "weights/synth.h"

enum ops_row { ROW_STREAM, ROW_QUANTISED };

// One adapter pair, or for grouped operations one pair an expert, one after another.
// rows [row, row + rows) of y += scale * dropout(x) A^T B^T; A [rank, in], B [rows, rank].
struct lora_part {
    const real *a, *b;
    real *da, *db; // gradients, added to
    int row, rows;
    uint32_t key[2]; // Philox key of this module's dropout in this step
};

// The adapters of one module; count 0: none. dropout: probability, 0 outside training. The mask of
// an element depends on (key, expert_first + group, token key, column) alone.
struct lora {
    int count, rank;
    double scale, dropout;
    int expert_first;
    struct lora_part part[MATRIX_PARTS];
};

// A layer's routing decision and what follows from it.
struct routing {
    int32_t *ids;         // [T, K] experts, most probable first
    uint8_t *kept;        // [T, K] 0 where the expert's capacity dropped the slot
    real *logits, *probs; // [T, E]; probs: softmax over all experts
    real *weights;        // [T, K]
    double *aux;          // [1] load balancing loss
};

// Rows grouped by local expert.
struct group {
    int experts, rows;
    const int64_t *counts; // host [experts] rows of each
    const uint64_t *keys;  // [rows] token keys
};

// AdamW of Loshchilov and Hutter, "Decoupled weight decay regularization" (ICLR 2019).
struct adamw {
    double lr, beta1, beta2, eps, weight_decay;
    int64_t step; // from 1
};

struct ops {
    const char *name; // "cpu", or the GPU's UUID as NVML writes it
    enum numerics numerics;
    const struct model *model;

    bool unified; // device pointers are host memory

    void (*destroy)(struct ops *ops);

    // Memory. staging: host memory that transfers read and write fastest, for any thread.
    int (*staging)(struct ops *ops, size_t bytes, void **host, struct fl_error *e);
    void (*staging_free)(struct ops *ops, void *host);
    size_t (*row_bytes)(const struct ops *ops, enum ops_row kind, int cols);
    int (*upload)(struct ops *ops, void *device, const void *host, size_t bytes,
                  struct fl_error *e);
    int (*download)(struct ops *ops, void *host, const void *device, size_t bytes,
                    struct fl_error *e);
    int (*zero)(struct ops *ops, void *device, size_t bytes, struct fl_error *e);
    // Stream rows as reals in host memory.
    int (*stream_read)(struct ops *ops, real *host, const void *x, int rows, int cols,
                       struct fl_error *e);

    // Weights made in place, weights/synth.h; wide: fp32 of bf16 values. NULL: made on the host.
    int (*make_codes)(struct ops *ops, const struct synth *synth, size_t first, size_t rows,
                      uint8_t *codes, float *scales, struct fl_error *e);
    int (*make_values)(struct ops *ops, const struct synth *synth, size_t first, size_t rows,
                       bool wide, void *values, struct fl_error *e);

    // Embedding, norms, quantisation.
    int (*embed)(struct ops *ops, const uint16_t *table, const int32_t *ids, int tokens, void *x,
                 struct fl_error *e);
    // y = s / rms(s) * gain with s = x + delta, or x where delta is NULL; s goes to sum if there is
    // a delta, the quantised y to yq unless NULL.
    int (*norm_forward)(struct ops *ops, const void *x, const void *delta, const float *gain,
                        int rows, int cols, void *sum, void *y, void *yq, struct fl_error *e);
    // dx += gradient of the norm at x.
    int (*norm_backward)(struct ops *ops, const void *x, const float *gain, const void *dy,
                         int rows, int cols, void *dx, struct fl_error *e);
    int (*quantise)(struct ops *ops, const void *x, int rows, int cols, void *xq,
                    struct fl_error *e);

    // Dense linear layers: y = xq W^T + LoRA(x); dx = quantised(dy) W + LoRA's, NULL: not wanted.
    int (*linear_forward)(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                          const uint64_t *keys, const void *x, const void *xq, int rows, void *y,
                          struct fl_error *e);
    int (*linear_backward)(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                           const uint64_t *keys, const void *x, const void *dy, int rows, void *dx,
                           struct fl_error *e);

    // Attention. qkv rows: [heads q | kv_heads k | kv_heads v]; qk rows: [heads q | kv_heads k],
    // normalised per head and rotated. table: [T, head_dim / 2, 2] cosines and sines.
    int (*rope_table)(struct ops *ops, const int32_t *positions, int tokens, real *table,
                      struct fl_error *e);
    int (*rope_forward)(struct ops *ops, const void *qkv, const float *q_norm, const float *k_norm,
                        const real *table, int tokens, void *qk, struct fl_error *e);
    // In place: the q and k parts of dqkv become gradients of qkv.
    int (*rope_backward)(struct ops *ops, const void *qkv, const float *q_norm, const float *k_norm,
                         const real *table, int tokens, void *dqkv, struct fl_error *e);
    // Causal within each sample. starts: host [samples + 1]. out [T, heads * D], lse [heads, T].
    int (*attention_forward)(struct ops *ops, const void *qk, const void *qkv,
                             const int32_t *starts, int samples, void *out, real *lse,
                             struct fl_error *e);
    int (*attention_backward)(struct ops *ops, const void *qk, const void *qkv, const void *out,
                              const real *lse, const void *dout, const int32_t *starts, int samples,
                              void *dqkv, struct fl_error *e);

    // Routing. logits = h weight^T in fp32; the top_k most probable experts, ties to the lower
    // number; weights: their probabilities, divided by their sum if norm_topk_prob. capacity > 0:
    // of every expert the slots with the greatest weights are kept, ties to the earlier token;
    // the others are dropped without renormalising.
    // aux = E / (K T^2) sum over i of (sum over t of probs[t, i]) * (slots of expert i).
    // replay: ids and kept are given.
    int (*router_forward)(struct ops *ops, const void *h, const float *weight, int tokens,
                          int64_t capacity, bool replay, struct routing *routing,
                          struct fl_error *e);
    // dh += gradient of  sum of dweights * weights + aux_scale * aux  (aux: through probs alone).
    int (*router_backward)(struct ops *ops, const float *weight, int tokens,
                           const struct routing *routing, const real *dweights, double aux_scale,
                           void *dh, struct fl_error *e);

    // Dispatch. order[r]: slot (t * K + k) of the r-th row sent, by expert, then by slot; position:
    // its inverse, [T, K], -1 where dropped; counts: host [E] rows of each expert.
    int (*dispatch_plan)(struct ops *ops, const struct routing *routing, int tokens, int32_t *order,
                         int32_t *position, int64_t *counts, struct fl_error *e);
    // Rows arrived by source, then by expert; index[i]: arrival place of the i-th row when grouped
    // by expert, then by source. counts: host [sources, experts].
    int (*regroup_plan)(struct ops *ops, const int64_t *counts, int sources, int experts,
                        int32_t *index, struct fl_error *e);
    // to[i] = from[index[i] / divide]; zeros where index[i] is negative.
    int (*rows_gather)(struct ops *ops, const void *from, const int32_t *index, int divide,
                       int rows, size_t row_bytes, void *to, struct fl_error *e);
    // to[index[i]] = from[i].
    int (*rows_scatter)(struct ops *ops, const void *from, const int32_t *index, int rows,
                        size_t row_bytes, void *to, struct fl_error *e);
    // out[t] = residual[t] + sum over k of weights[t, k] * rows[position[t, k]], in fp32 in the
    // order of k. residual NULL: 0; weights NULL: 1.
    int (*combine)(struct ops *ops, const void *rows, const int32_t *position, const real *weights,
                   const void *residual, int tokens, void *out, struct fl_error *e);

    // Experts, rows grouped; xq, dyq are the quantised rows that crossed the network, which their
    // LoRA products read as well.
    // gate_up [R, 2W] stream; act = silu(gate) * up as stream and quantised actq [R, W].
    int (*fc1_forward)(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                       const struct group *group, const void *xq, void *gate_up, void *act,
                       void *actq, struct fl_error *e);
    int (*fc2_forward)(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                       const struct group *group, const void *act, const void *actq, void *y,
                       struct fl_error *e);
    // dyq: gradient of the row's unweighted use. dweights[r] = <dyq W + LoRA's, act>, which equals
    // <dyq, y>; dact = weights[r] * (dyq W + LoRA's).
    int (*fc2_backward)(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                        const struct group *group, const void *act, const void *dyq,
                        const real *weights, void *dact, real *dweights, struct fl_error *e);
    int (*fc1_backward)(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                        const struct group *group, const void *xq, const void *gate_up,
                        const void *dact, void *dx, struct fl_error *e);

    // Head, a chunk of rows at a time. logits [R, vocab].
    int (*head_forward)(struct ops *ops, const void *h, const uint16_t *head, int rows,
                        real *logits, struct fl_error *e);
    // loss_sum[0] += -log softmax(logits)[target] over targets that are not -1; with gradient,
    // logits become scale * (softmax - one-hot), 0 in masked rows.
    int (*cross_entropy)(struct ops *ops, real *logits, const int32_t *targets, int rows,
                         bool gradient, double scale, double *loss_sum, struct fl_error *e);
    int (*head_backward)(struct ops *ops, const real *dlogits, const uint16_t *head, int rows,
                         void *dh, struct fl_error *e);

    // Optimizer. sum: host.
    int (*sum_squares)(struct ops *ops, const real *x, size_t count, double *sum,
                       struct fl_error *e);
    int (*scale)(struct ops *ops, real *x, size_t count, double factor, struct fl_error *e);
    // The gradients count grad_scale times (clipping).
    int (*adamw)(struct ops *ops, const struct adamw *adamw, double grad_scale, size_t count,
                 real *params, const real *grads, const struct moment *first,
                 const struct moment *second, struct fl_error *e);
};

// The reference backend: OpenBLAS and OpenMP. Keeps references to model and arena, where scratch
// is pushed (MEMORY_WORKSPACE) and released within each operation.
int ops_cpu_create(const struct model *model, enum numerics numerics, struct arena *arena,
                   struct ops **out, struct fl_error *e);
// The GPU backend, NUMERICS_FP8 on the device in use; arena is that device's. In builds without
// CUDA there are no devices, and the others are -ENOTSUP.
int ops_cuda_devices(void); // visible ones
int ops_cuda_use(int device, struct fl_error *e);
int ops_cuda_create(const struct model *model, struct arena *arena, struct ops **out,
                    struct fl_error *e);
void ops_destroy(struct ops *ops); // NULL-safe

#endif
