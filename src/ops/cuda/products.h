// SPDX-License-Identifier: Apache-2.0
// The CUDA backend's products with frozen matrices and adapters. Operations as in ops/ops.h.
#ifndef FL_OPS_CUDA_PRODUCTS_H
#define FL_OPS_CUDA_PRODUCTS_H

#include "fp8_gemm.h"
#include "lora.h"
#include "ops/cuda/cuda.h"

// Rows grouped by expert, or one group of all of them, with their first rows on the device too.
struct product_groups {
    int groups, rows;
    const int64_t *counts; // host [groups]
    const int32_t *offsets;
    const uint64_t *keys;
};

int product_groups_push(struct cuda *cuda, int groups, int rows, const int64_t *counts,
                        const uint64_t *keys, struct product_groups *out, struct fl_error *e);

// A product's quantised left operand.
struct product_operand {
    const uint8_t *codes; // [rows, pitch]
    const float *scales;  // [ceil(columns / 128), scale_stride]
    int pitch, scale_stride;
};

// The operand that quantised rows are, with scales on the arena.
int product_operand_push(struct cuda *cuda, const void *xq, int rows, int cols,
                         struct product_operand *out, struct fl_error *e);

// y = operand W^T + LoRA(x), stream rows [rows, w->rows].
int product_forward(struct cuda *cuda, const struct fp8_matrix *w, const struct lora *lora,
                    const struct product_groups *groups, const struct lora_rows *x,
                    const struct product_operand *operand, void *y, struct fl_error *e);

// The rows that a gradient's LoRA products read, and how they weigh.
struct product_gradient {
    struct lora_rows x, dy;
    const float *weights; // [rows] of dy in dA and dB and, with act, in dx; NULL: 1
    const void *act;      // stream rows: dweights = <dx before weighing, act>; NULL: not wanted
    float *dweights;
};

// Adds to dA and dB; dx [rows, w->cols] = operand W + LoRA's. operand: of the gradient, contracted
// over w->rows with every part but the last padded to whole blocks of 128; dx NULL: neither dx nor
// operand.
int product_backward(struct cuda *cuda, const struct fp8_matrix *w, const struct lora *lora,
                     const struct product_groups *groups, const struct product_gradient *gradient,
                     const struct product_operand *operand, void *dx, struct fl_error *e);

// Low-rank terms (lora.c).
// Fills in the low-rank term of the product of w; scratch on the arena.
int lora_term_push(struct cuda *cuda, const struct fp8_matrix *w, const struct lora *lora,
                   const struct product_groups *groups, const struct lora_rows *x,
                   struct fp8_gemm *gemm, struct fl_error *e);
// Adds to dA and dB. ds [rows, count * R] = scale * dy B and at [groups, w->cols, count * R], the
// A transposed, stay on the arena; NULL: not wanted.
int lora_gradients_push(struct cuda *cuda, const struct fp8_matrix *w, const struct lora *lora,
                        const struct product_groups *groups,
                        const struct product_gradient *gradient, const uint16_t **ds,
                        const uint16_t **at, struct fl_error *e);
struct lora_dropout lora_dropout_of(const struct lora *lora, const struct lora_part *part,
                                    const struct product_groups *groups);

int cuda_linear_forward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                        const uint64_t *keys, const void *x, const void *xq, int rows, void *y,
                        struct fl_error *e);
int cuda_linear_backward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                         const uint64_t *keys, const void *x, const void *dy, int rows, void *dx,
                         struct fl_error *e);
int cuda_fc1_forward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                     const struct group *group, const void *xq, void *gate_up, void *act,
                     void *actq, struct fl_error *e);
int cuda_fc2_forward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                     const struct group *group, const void *act, const void *actq, void *y,
                     struct fl_error *e);
int cuda_fc2_backward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                      const struct group *group, const void *act, const void *dyq,
                      const real *weights, void *dact, real *dweights, struct fl_error *e);
int cuda_fc1_backward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                      const struct group *group, const void *xq, const void *gate_up,
                      const void *dact, void *dx, struct fl_error *e);
int cuda_head_forward(struct ops *ops, const void *h, const uint16_t *head, int rows, real *logits,
                      struct fl_error *e);
int cuda_head_backward(struct ops *ops, const real *dlogits, const uint16_t *head, int rows,
                       void *dh, struct fl_error *e);

#endif
