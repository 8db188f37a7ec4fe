// SPDX-License-Identifier: Apache-2.0
// The experts' two linear layers and SwiGLU, all local experts in one grouped product.
#include "ops/cuda/products.h"

#include "swiglu.h"

static struct lora_rows stream_rows(const void *x, int cols)
{
    return (struct lora_rows){.x = x, .row_columns = cols, .columns = cols};
}

static struct lora_rows quantised_rows(const void *xq, int cols)
{
    return (struct lora_rows){.x = xq, .quantised = 1, .row_columns = cols, .columns = cols};
}

static int groups_push(struct cuda *cuda, const struct group *group, struct product_groups *out,
                       struct fl_error *e)
{
    return product_groups_push(cuda, group->experts, group->rows, group->counts, group->keys, out,
                               e);
}

static int experts_forward(struct cuda *cuda, const struct fp8_matrix *w, const struct lora *lora,
                           const struct group *group, const struct lora_rows *x, const void *xq,
                           void *y, struct fl_error *e)
{
    struct arena_mark mark = arena_mark(cuda->arena);
    struct product_groups groups;
    struct product_operand operand;
    int rc;

    if ((rc = groups_push(cuda, group, &groups, e)) == 0 &&
        (rc = product_operand_push(cuda, xq, group->rows, w->cols, &operand, e)) == 0)
        rc = product_forward(cuda, w, lora, &groups, x, &operand, y, e);
    arena_release(cuda->arena, mark);
    return rc;
}

int cuda_fc1_forward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                     const struct group *group, const void *xq, void *gate_up, void *act,
                     void *actq, struct fl_error *e)
{
    struct cuda *cuda = cuda_of(ops);
    struct lora_rows x = quantised_rows(xq, w->cols);
    int rc;

    if (group->rows == 0)
        return 0;
    rc = experts_forward(cuda, w, lora, group, &x, xq, gate_up, e);
    if (rc < 0)
        return rc;
    return CUDA_CHECK(swiglu_forward(gate_up, group->rows, w->rows / 2, act, actq, cuda->stream),
                      e);
}

int cuda_fc2_forward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                     const struct group *group, const void *act, const void *actq, void *y,
                     struct fl_error *e)
{
    struct lora_rows x = stream_rows(act, w->cols);

    if (group->rows == 0)
        return 0;
    return experts_forward(cuda_of(ops), w, lora, group, &x, actq, y, e);
}

int cuda_fc2_backward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                      const struct group *group, const void *act, const void *dyq,
                      const real *weights, void *dact, real *dweights, struct fl_error *e)
{
    struct cuda *cuda = cuda_of(ops);
    struct arena_mark mark = arena_mark(cuda->arena);
    struct product_gradient gradient = {
        .x = stream_rows(act, w->cols),
        .dy = quantised_rows(dyq, w->rows),
        .weights = weights,
        .act = act,
        .dweights = dweights,
    };
    struct product_groups groups;
    struct product_operand operand;
    int rc;

    if (group->rows == 0)
        return 0;
    if ((rc = groups_push(cuda, group, &groups, e)) == 0 &&
        (rc = product_operand_push(cuda, dyq, group->rows, w->rows, &operand, e)) == 0)
        rc = product_backward(cuda, w, lora, &groups, &gradient, &operand, dact, e);
    arena_release(cuda->arena, mark);
    return rc;
}

int cuda_fc1_backward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                      const struct group *group, const void *xq, const void *gate_up,
                      const void *dact, void *dx, struct fl_error *e)
{
    struct cuda *cuda = cuda_of(ops);
    struct arena_mark mark = arena_mark(cuda->arena);
    size_t rows = (size_t)group->rows;
    int k = gradient_operand_columns(w), stride = product_scale_stride(group->rows), rc;
    struct product_groups groups;
    void *dy, *codes, *scales;

    if (group->rows == 0)
        return 0;
    if ((rc = groups_push(cuda, group, &groups, e)) < 0 ||
        (rc = cuda_push(cuda, rows * stream_row_bytes(w->rows), &dy, e)) < 0 ||
        (rc = cuda_push(cuda, gradient_codes_bytes(w, group->rows), &codes, e)) < 0 ||
        (rc = cuda_push(cuda, gradient_scales_bytes(w, group->rows), &scales, e)) < 0 ||
        (rc = CUDA_CHECK(swiglu_backward(gate_up, dact, group->rows, w->rows / 2, dy, codes, scales,
                                         stride, cuda->stream),
                         e)) < 0)
        goto out;
    rc = product_backward(cuda, w, lora, &groups,
                          &(struct product_gradient){.x = quantised_rows(xq, w->cols),
                                                     .dy = stream_rows(dy, w->rows)},
                          &(struct product_operand){codes, scales, k, stride}, dx, e);
out:
    arena_release(cuda->arena, mark);
    return rc;
}
