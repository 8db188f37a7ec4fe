// SPDX-License-Identifier: Apache-2.0
// Grouped products with frozen matrices: forward from the stored copy, backward from copies
// transposed a range of groups at a time.
#include "ops/cuda/products.h"

#include "base/memory.h"
#include "quantise.h"
#include "transpose.h"

#include <stdlib.h>

int product_groups_push(struct cuda *cuda, int groups, int rows, const int64_t *counts,
                        const uint64_t *keys, struct product_groups *out, struct fl_error *e)
{
    int32_t *offsets = memory_zeroed((size_t)groups + 1, sizeof *offsets);
    size_t bytes = product_offsets_bytes(groups);
    void *device;
    int rc = cuda_push(cuda, bytes, &device, e);

    for (int i = 0; i < groups; i++)
        offsets[i + 1] = offsets[i] + (int32_t)counts[i];
    // Pageable memory is staged before the call returns.
    if (rc == 0)
        rc = CUDA_CHECK(
            cudaMemcpyAsync(device, offsets, bytes, cudaMemcpyHostToDevice, cuda->stream), e);
    if (rc == 0)
        *out = (struct product_groups){groups, rows, counts, device, keys};
    free(offsets);
    return rc;
}

int product_operand_push(struct cuda *cuda, const void *xq, int rows, int cols,
                         struct product_operand *out, struct fl_error *e)
{
    int stride = product_scale_stride(rows);
    void *scales;
    int rc = cuda_push(cuda, operand_scales_bytes(rows, cols), &scales, e);

    if (rc < 0)
        return rc;
    *out = (struct product_operand){xq, scales, (int)quantised_row_bytes(cols), stride};
    return CUDA_CHECK(scales_transpose(xq, rows, cols, scales, stride, cuda->stream), e);
}

int product_forward(struct cuda *cuda, const struct fp8_matrix *w, const struct lora *lora,
                    const struct product_groups *groups, const struct lora_rows *x,
                    const struct product_operand *operand, void *y, struct fl_error *e)
{
    struct arena_mark mark = arena_mark(cuda->arena);
    struct fp8_gemm gemm = {
        .a = operand->codes,
        .a_scale = operand->scales,
        .b = w->data,
        .b_scale = w->scale,
        .offsets = groups->offsets,
        .d = y,
        .rows = groups->rows,
        .n = w->rows,
        .k = w->cols,
        .groups = groups->groups,
        .a_pitch = operand->pitch,
        .a_scale_stride = operand->scale_stride,
        .parts = w->parts,
    };
    int rc;

    for (int i = 0; i < w->parts; i++)
        gemm.part_rows[i] = w->part_rows[i];
    rc = lora_term_push(cuda, w, lora, groups, x, &gemm, e);
    if (rc == 0)
        rc = CUDA_CHECK(sm90_fp8_gemm(&gemm, cuda->stream), e);
    arena_release(cuda->arena, mark);
    return rc;
}

// What is the same for every range.
struct backward {
    const struct fp8_matrix *w;
    const struct lora *lora;
    const struct product_groups *groups;
    const struct product_gradient *gradient;
    const struct product_operand *operand;
    const uint16_t *ds, *at;
    bool finish; // the product stays fp32, lora_input makes dx of it
    void *dx;
};

static int range_finish(struct cuda *cuda, const struct backward *b, const struct product_range *r,
                        const float *base, struct fl_error *e)
{
    const struct fp8_matrix *w = b->w;
    struct lora_groups groups = {b->groups->offsets + r->first, r->end - r->first, r->rows};
    struct lora_input input = {
        .base = base,
        .base_row = r->row,
        .columns = w->cols,
        .act = b->gradient->act,
        .weights = b->gradient->weights,
        .dweights = b->gradient->dweights,
        .dx = b->dx,
    };

    if (b->lora->dropout != 0 && b->lora->count) {
        input.parts = b->lora->count;
        input.padded_rank = lora_rank(b->lora);
        input.ds = b->ds;
        input.at = b->at + (size_t)r->first * (size_t)w->cols * (size_t)input.parts *
                               (size_t)input.padded_rank;
        for (int p = 0; p < input.parts; p++) {
            input.dropout[p] = lora_dropout_of(b->lora, &b->lora->part[p], b->groups);
            input.dropout[p].group_first += (uint32_t)r->first;
        }
    }
    return CUDA_CHECK(lora_input(&input, &groups, cuda->stream), e);
}

static int range_backward(struct cuda *cuda, const struct backward *b,
                          const struct product_range *r, uint8_t *weights, float *scales,
                          float *base, struct fl_error *e)
{
    const struct fp8_matrix *w = b->w;
    size_t first = (size_t)r->first;
    struct fp8_transpose transpose = {
        .from = w->data + first * (size_t)w->rows * (size_t)w->cols,
        .from_scale = w->scale + first * (size_t)w->scale_rows * (size_t)w->scale_cols,
        .to = weights,
        .to_scale = scales,
        .groups = r->end - r->first,
        .k = w->cols,
        .parts = w->parts,
    };
    struct fp8_gemm gemm = {
        .a = b->operand->codes,
        .a_scale = b->operand->scales,
        .b = weights,
        .b_scale = scales,
        .offsets = b->groups->offsets + first,
        .d = b->dx,
        .rows = r->row + r->rows,
        .n = w->cols,
        .k = gradient_columns(w),
        .groups = r->end - r->first,
        .a_pitch = b->operand->pitch,
        .a_scale_stride = b->operand->scale_stride,
        .parts = 1,
        .part_rows = {w->cols},
    };
    int rc;

    if (r->rows == 0)
        return 0;
    for (int i = 0; i < w->parts; i++)
        transpose.part_rows[i] = w->part_rows[i];
    if (b->finish) {
        // Rows keep their numbers: only those of the range have memory.
        gemm.d = (void *)((uintptr_t)base - (uintptr_t)r->row * (uintptr_t)w->cols * sizeof *base);
        gemm.d_is_float = 1;
    }
    if (b->lora->count && b->lora->dropout == 0) {
        gemm.lora_rank = gemm.s_columns = lora_rank(b->lora) * b->lora->count;
        gemm.lora_s = b->ds;
        gemm.lora_b = b->at + first * (size_t)w->cols * (size_t)gemm.lora_rank;
        gemm.lora_scale = 1;
    }
    if ((rc = CUDA_CHECK(fp8_transpose(&transpose, cuda->stream), e)) < 0 ||
        (rc = CUDA_CHECK(sm90_fp8_gemm(&gemm, cuda->stream), e)) < 0)
        return rc;
    return b->finish ? range_finish(cuda, b, r, base, e) : 0;
}

static int ranges_backward(struct cuda *cuda, const struct backward *b, struct fl_error *e)
{
    const struct product_groups *g = b->groups;
    struct arena_mark mark = arena_mark(cuda->arena);
    struct product_range r = {0};
    void *push[CUDA_SCRATCHES]; // transposed weights, their scales, fp32 rows
    int rc = cuda_push_all(cuda, cuda_product_ranges_scratch(b->w, g->groups, g->counts, b->finish),
                           push, e);

    while (rc == 0 &&
           (product_range_next(b->w, g->groups, g->counts, b->finish, &r), r.first < g->groups))
        rc = range_backward(cuda, b, &r, push[0], push[1], push[2], e);
    arena_release(cuda->arena, mark);
    return rc;
}

int product_backward(struct cuda *cuda, const struct fp8_matrix *w, const struct lora *lora,
                     const struct product_groups *groups, const struct product_gradient *gradient,
                     const struct product_operand *operand, void *dx, struct fl_error *e)
{
    struct arena_mark mark = arena_mark(cuda->arena);
    struct backward b = {
        .w = w,
        .lora = lora,
        .groups = groups,
        .gradient = gradient,
        .operand = operand,
        .finish = product_finishes(lora, gradient->act != NULL),
        .dx = dx,
    };
    int rc = lora_gradients_push(cuda, w, lora, groups, gradient, dx ? &b.ds : NULL,
                                 dx ? &b.at : NULL, e);

    if (rc == 0 && dx)
        rc = ranges_backward(cuda, &b, e);
    arena_release(cuda->arena, mark);
    return rc;
}
