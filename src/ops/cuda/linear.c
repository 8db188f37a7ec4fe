// SPDX-License-Identifier: Apache-2.0
// Dense linear layers: one group of all rows.
#include "ops/cuda/products.h"

#include "quantise.h"

static struct lora_rows stream_rows(const void *x, int cols)
{
    return (struct lora_rows){.x = x, .row_columns = cols, .columns = cols};
}

int cuda_linear_forward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                        const uint64_t *keys, const void *x, const void *xq, int rows, void *y,
                        struct fl_error *e)
{
    struct cuda *cuda = cuda_of(ops);
    struct arena_mark mark = arena_mark(cuda->arena);
    struct lora_rows from = stream_rows(x, w->cols);
    int64_t count = rows;
    struct product_groups groups;
    struct product_operand operand;
    int rc;

    if (rows == 0)
        return 0;
    if ((rc = product_groups_push(cuda, 1, rows, &count, keys, &groups, e)) == 0 &&
        (rc = product_operand_push(cuda, xq, rows, w->cols, &operand, e)) == 0)
        rc = product_forward(cuda, w, lora, &groups, &from, &operand, y, e);
    arena_release(cuda->arena, mark);
    return rc;
}

// dy quantised anew, its blocks restarting with every part of w.
static int gradient_quantise(struct cuda *cuda, const struct fp8_matrix *w, const void *dy,
                             int rows, struct product_operand *out, struct fl_error *e)
{
    int stride = product_scale_stride(rows), rc;
    void *codes, *scales;

    if ((rc = cuda_push(cuda, gradient_codes_bytes(w, rows), &codes, e)) < 0 ||
        (rc = cuda_push(cuda, gradient_scales_bytes(w, rows), &scales, e)) < 0)
        return rc;
    *out = (struct product_operand){codes, scales, gradient_operand_columns(w), stride};
    return CUDA_CHECK(
        quantise_to_operand(dy, rows, w->part_rows, w->parts, codes, scales, stride, cuda->stream),
        e);
}

int cuda_linear_backward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                         const uint64_t *keys, const void *x, const void *dy, int rows, void *dx,
                         struct fl_error *e)
{
    struct cuda *cuda = cuda_of(ops);
    struct arena_mark mark = arena_mark(cuda->arena);
    struct product_gradient gradient = {.x = stream_rows(x, w->cols),
                                        .dy = stream_rows(dy, w->rows)};
    int64_t count = rows;
    struct product_groups groups;
    struct product_operand operand;
    int rc;

    if (rows == 0)
        return 0;
    if ((rc = product_groups_push(cuda, 1, rows, &count, keys, &groups, e)) == 0 &&
        (!dx || (rc = gradient_quantise(cuda, w, dy, rows, &operand, e)) == 0))
        rc = product_backward(cuda, w, lora, &groups, &gradient, &operand, dx, e);
    arena_release(cuda->arena, mark);
    return rc;
}
