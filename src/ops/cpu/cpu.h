// SPDX-License-Identifier: Apache-2.0
// Inside the reference backend: its state, rounding, and the functions the operations are made of.
//
// On the CPU every row is a row of reals; in fp8 numerics the values are rounded where the GPU's
// storage would round them.
#ifndef FL_OPS_CPU_CPU_H
#define FL_OPS_CPU_CPU_H

#include "base/floats.h"
#include "ops/cpu/scratch.h"
#include "ops/ops.h"

#include <stdbool.h>

struct cpu {
    struct ops table; // first: a struct ops * is a struct cpu *
    struct arena *arena;
    int threads; // of the loops that have scratch for each
    bool fp8;
};

static inline struct cpu *cpu_of(struct ops *ops)
{
    return (struct cpu *)ops;
}

// An operation's scratch; freed by arena_release.
int cpu_push(struct cpu *cpu, const struct cpu_scratch *scratch, void *out[CPU_SCRATCHES],
             struct fl_error *e);

// x rounded to bf16 in fp8 numerics.
static inline real round_to_bf16(bool fp8, real x)
{
    return fp8 ? (real)bf16_round((float)x) : x;
}

// Rounds in place in fp8 numerics.
void round_rows(bool fp8, real *x, size_t count);

// C [m, n] = alpha * op(A) op(B) + beta * C; the names tell which of A, B is transposed: nt reads
// B as [n, k], tn reads A as [k, m].
void gemm_nn(int m, int n, int k, real alpha, const real *a, int lda, const real *b, int ldb,
             real beta, real *c, int ldc);
void gemm_nt(int m, int n, int k, real alpha, const real *a, int lda, const real *b, int ldb,
             real beta, real *c, int ldc);
void gemm_tn(int m, int n, int k, real alpha, const real *a, int lda, const real *b, int ldb,
             real beta, real *c, int ldc);

// Products with the frozen matrix number index of w, dequantised tile by tile into tile
// (base_tile_size(w) reals).
// y [rows, w->rows] = x W^T.
void base_forward(const struct fp8_matrix *w, int index, const real *x, int rows, real *y,
                  real *tile);
// dx [rows, w->cols] = dy W.
void base_backward(const struct fp8_matrix *w, int index, const real *dy, int rows, real *dx,
                   real *tile);

// One block of at most 128 values to e4m3 and back with scale amax / 448. A NaN stays in its place;
// an infinity makes the whole block NaN.
void quantise_block(const real *x, int count, real *y);
// Rows of parts whose blocks restart (part_cols add up to cols); copies in exact numerics.
void quantise_rows(bool fp8, const real *x, int rows, int cols, const int *part_cols, int parts,
                   real *y);

// The LoRA products of one group (an expert, or 0 for dense modules); x [rows, in].
// scratch: lora_scratch_size(lora, in) reals.
// y [rows, out] += scale * dropout(x) A^T B^T.
void lora_forward(bool fp8, const struct lora *lora, int group, const uint64_t *keys, const real *x,
                  int rows, int in, real *y, int out, real *scratch);
// Adds to dA and dB; dx [rows, in] += the gradient, unless NULL. row_weights: dA and dB see
// weighted rows of dy, dx does not; NULL: 1.
void lora_backward(bool fp8, const struct lora *lora, int group, const uint64_t *keys,
                   const real *row_weights, const real *x, const real *dy, int rows, int in,
                   int out, real *dx, real *scratch);

// Operations, by file.
int cpu_embed(struct ops *ops, const uint16_t *table, const int32_t *ids, int tokens, void *x,
              struct fl_error *e);
int cpu_norm_forward(struct ops *ops, const void *x, const void *delta, const float *gain, int rows,
                     int cols, void *sum, void *y, void *yq, struct fl_error *e);
int cpu_norm_backward(struct ops *ops, const void *x, const float *gain, const void *dy, int rows,
                      int cols, void *dx, struct fl_error *e);
int cpu_quantise(struct ops *ops, const void *x, int rows, int cols, void *xq, struct fl_error *e);
int cpu_linear_forward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                       const uint64_t *keys, const void *x, const void *xq, int rows, void *y,
                       struct fl_error *e);
int cpu_linear_backward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                        const uint64_t *keys, const void *x, const void *dy, int rows, void *dx,
                        struct fl_error *e);
int cpu_rope_table(struct ops *ops, const int32_t *positions, int tokens, real *table,
                   struct fl_error *e);
int cpu_rope_forward(struct ops *ops, const void *qkv, const float *q_norm, const float *k_norm,
                     const real *table, int tokens, void *qk, struct fl_error *e);
int cpu_rope_backward(struct ops *ops, const void *qkv, const float *q_norm, const float *k_norm,
                      const real *table, int tokens, void *dqkv, struct fl_error *e);
int cpu_attention_forward(struct ops *ops, const void *qk, const void *qkv, const int32_t *starts,
                          int samples, void *out, real *lse, struct fl_error *e);
int cpu_attention_backward(struct ops *ops, const void *qk, const void *qkv, const void *out,
                           const real *lse, const void *dout, const int32_t *starts, int samples,
                           void *dqkv, struct fl_error *e);
int cpu_router_forward(struct ops *ops, const void *h, const float *weight, int tokens,
                       int64_t capacity, bool replay, struct routing *routing, struct fl_error *e);
int cpu_router_backward(struct ops *ops, const float *weight, int tokens,
                        const struct routing *routing, const real *dweights, double aux_scale,
                        void *dh, struct fl_error *e);
int cpu_dispatch_plan(struct ops *ops, const struct routing *routing, int tokens, int32_t *order,
                      int32_t *position, int64_t *counts, struct fl_error *e);
int cpu_regroup_plan(struct ops *ops, const int64_t *counts, int sources, int experts,
                     int32_t *index, struct fl_error *e);
int cpu_rows_gather(struct ops *ops, const void *from, const int32_t *index, int divide, int rows,
                    size_t row_bytes, void *to, struct fl_error *e);
int cpu_rows_scatter(struct ops *ops, const void *from, const int32_t *index, int rows,
                     size_t row_bytes, void *to, struct fl_error *e);
int cpu_combine(struct ops *ops, const void *rows, const int32_t *position, const real *weights,
                const void *residual, int tokens, void *out, struct fl_error *e);
int cpu_fc1_forward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                    const struct group *group, const void *xq, void *gate_up, void *act, void *actq,
                    struct fl_error *e);
int cpu_fc2_forward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                    const struct group *group, const void *act, const void *actq, void *y,
                    struct fl_error *e);
int cpu_fc2_backward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                     const struct group *group, const void *act, const void *dyq,
                     const real *weights, void *dact, real *dweights, struct fl_error *e);
int cpu_fc1_backward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                     const struct group *group, const void *xq, const void *gate_up,
                     const void *dact, void *dx, struct fl_error *e);
int cpu_head_forward(struct ops *ops, const void *h, const uint16_t *head, int rows, real *logits,
                     struct fl_error *e);
int cpu_cross_entropy(struct ops *ops, real *logits, const int32_t *targets, int rows,
                      bool gradient, double scale, double *loss_sum, struct fl_error *e);
int cpu_head_backward(struct ops *ops, const real *dlogits, const uint16_t *head, int rows,
                      void *dh, struct fl_error *e);
int cpu_sum_squares(struct ops *ops, const real *x, size_t count, double *sum, struct fl_error *e);
int cpu_scale(struct ops *ops, real *x, size_t count, double factor, struct fl_error *e);
int cpu_adamw(struct ops *ops, const struct adamw *adamw, double grad_scale, size_t count,
              real *params, const real *grads, const struct moment *first,
              const struct moment *second, struct fl_error *e);

#endif
