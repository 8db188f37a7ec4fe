// SPDX-License-Identifier: Apache-2.0
// LoRA's low-rank terms: bf16 copies of the parameters, the skinny products around the base
// product, the adapters' gradients.
#include "ops/cuda/products.h"

#include <errno.h>
#include <math.h>

struct lora_dropout lora_dropout_of(const struct lora *lora, const struct lora_part *part,
                                    const struct product_groups *groups)
{
    if (lora->dropout == 0)
        return (struct lora_dropout){0};
    return (struct lora_dropout){
        .key = {part->key[0], part->key[1]},
        .keys = groups->keys,
        .threshold = (uint32_t)lrint(65536 * lora->dropout),
        .group_first = (uint32_t)lora->expert_first,
        .keep = (float)(1 / (1 - lora->dropout)),
    };
}

// One module's parameter as bf16 [groups, to_rows, to_cols], padded with zeros, on the arena.
static int matrix_push(struct cuda *cuda, const float *from, int groups, int rows, int cols,
                       int rows_padded, int cols_padded, bool transposed, uint16_t **out,
                       struct fl_error *e)
{
    size_t each = (size_t)rows_padded * (size_t)cols_padded;
    void *to;
    int rc = cuda_push(cuda, lora_matrix_bytes(groups, rows_padded, cols_padded), &to, e);

    if (rc < 0)
        return rc;
    *out = to;
    return CUDA_CHECK(lora_pack(
                          &(struct lora_pack){
                              .from = from,
                              .groups = groups,
                              .rows = rows,
                              .cols = cols,
                              .rows_padded = rows_padded,
                              .cols_padded = cols_padded,
                              .transposed = transposed,
                              .to = to,
                              .to_cols = transposed ? rows_padded : cols_padded,
                              .to_group = each,
                          },
                          cuda->stream),
                      e);
}

static struct lora_groups lora_groups_of(const struct product_groups *groups)
{
    return (struct lora_groups){groups->offsets, groups->groups, groups->rows};
}

// S of one part to columns of s.
static int part_project(struct cuda *cuda, const struct lora *lora, const struct lora_part *part,
                        const struct product_groups *groups, const struct lora_rows *x, uint16_t *s,
                        int s_columns, struct fl_error *e)
{
    struct arena_mark mark = arena_mark(cuda->arena);
    struct lora_groups g = lora_groups_of(groups);
    struct lora_rows rows = *x;
    int rank = lora_rank(lora), rc;
    uint16_t *a;

    rows.dropout = lora_dropout_of(lora, part, groups);
    rc = matrix_push(cuda, part->a, groups->groups, lora->rank, x->columns, rank, x->columns, false,
                     &a, e);
    if (rc == 0)
        rc = CUDA_CHECK(lora_project(&rows, &g, a, rank, 1, s, s_columns, cuda->stream), e);
    arena_release(cuda->arena, mark);
    return rc;
}

// Which part of w an adapter adds to; -1: all of them.
static int part_place(const struct fp8_matrix *w, const struct lora_part *part, int *place,
                      struct fl_error *e)
{
    int row = 0;

    *place = -1;
    if (part->row == 0 && part->rows == w->rows)
        return 0;
    for (*place = 0; *place < w->parts; row += w->part_rows[(*place)++])
        if (part->row == row && part->rows == w->part_rows[*place])
            return 0;
    return error_set(e, -EINVAL,
                     "adapter on rows %d to %d: not a part of its matrix of %d rows; use whole "
                     "parts",
                     part->row, part->row + part->rows, w->rows);
}

int lora_term_push(struct cuda *cuda, const struct fp8_matrix *w, const struct lora *lora,
                   const struct product_groups *groups, const struct lora_rows *x,
                   struct fp8_gemm *gemm, struct fl_error *e)
{
    int rank = lora_rank(lora), place, rc;
    size_t b_group = (size_t)w->rows * (size_t)rank, b_bytes, s_bytes;
    void *push;
    uint16_t *b, *s;

    if (rank == 0)
        return 0;
    if ((rc = part_place(w, &lora->part[0], &place, e)) < 0)
        return rc;
    gemm->lora_rank = rank;
    gemm->lora_scale = (float)lora->scale;
    gemm->s_part_stride = place < 0 ? 0 : rank;
    gemm->s_columns = lora_term_columns(w, lora);
    b_bytes = lora_matrix_bytes(groups->groups, w->rows, rank);
    s_bytes = lora_rows_bytes(groups->rows, gemm->s_columns);
    if ((rc = cuda_push(cuda, b_bytes, &push, e)) < 0)
        return rc;
    gemm->lora_b = b = push;
    if ((rc = cuda_push(cuda, s_bytes, &push, e)) < 0)
        return rc;
    gemm->lora_s = s = push;
    // Parts without an adapter add zero.
    if (place >= 0 && lora->count < w->parts &&
        ((rc = CUDA_CHECK(cudaMemsetAsync(b, 0, b_bytes, cuda->stream), e)) < 0 ||
         (rc = CUDA_CHECK(cudaMemsetAsync(s, 0, s_bytes, cuda->stream), e)) < 0))
        return rc;
    for (const struct lora_part *p = lora->part; p < lora->part + lora->count; p++) {
        struct lora_pack pack = {
            .from = p->b,
            .groups = groups->groups,
            .rows = p->rows,
            .cols = lora->rank,
            .rows_padded = p->rows,
            .cols_padded = rank,
            .to = b + (size_t)p->row * (size_t)rank,
            .to_cols = rank,
            .to_group = b_group,
        };
        if ((rc = part_place(w, p, &place, e)) < 0 ||
            (rc = CUDA_CHECK(lora_pack(&pack, cuda->stream), e)) < 0 ||
            (rc = part_project(cuda, lora, p, groups, x, s + (place < 0 ? 0 : place * rank),
                               gemm->s_columns, e)) < 0)
            return rc;
    }
    return 0;
}

// dS = scale * dY B of one part.
static int part_project_back(struct cuda *cuda, const struct lora *lora,
                             const struct lora_part *part, const struct product_groups *groups,
                             const struct lora_rows *dy, uint16_t *ds, int ds_columns,
                             struct fl_error *e)
{
    struct arena_mark mark = arena_mark(cuda->arena);
    struct lora_groups g = lora_groups_of(groups);
    int rank = lora_rank(lora), rc;
    uint16_t *b;

    rc = matrix_push(cuda, part->b, groups->groups, part->rows, lora->rank, part->rows, rank, true,
                     &b, e);
    if (rc == 0)
        rc = CUDA_CHECK(
            lora_project(dy, &g, b, rank, (float)lora->scale, ds, ds_columns, cuda->stream), e);
    arena_release(cuda->arena, mark);
    return rc;
}

// d += over the rows of each group; d is [rank, columns] or, transposed, [columns, rank].
static int part_gradient(struct cuda *cuda, const struct lora *lora,
                         const struct product_groups *groups, const struct lora_rows *x,
                         const uint16_t *s, int s_columns, const float *weights, double alpha,
                         float *d, bool transposed, struct fl_error *e)
{
    struct arena_mark mark = arena_mark(cuda->arena);
    struct lora_groups g = lora_groups_of(groups);
    int rank = lora_rank(lora), rc;
    void *turns;

    rc = cuda_push(cuda, lora_turns_bytes(groups->groups, x->columns, rank), &turns, e);
    if (rc == 0)
        rc = CUDA_CHECK(lora_gradient(x, &g, s, s_columns, lora->rank, rank, weights, (float)alpha,
                                      d, transposed ? 1 : x->columns, transposed ? lora->rank : 1,
                                      (size_t)x->columns * (size_t)lora->rank, turns, cuda->stream),
                        e);
    arena_release(cuda->arena, mark);
    return rc;
}

static int part_gradients(struct cuda *cuda, const struct lora *lora, const struct lora_part *part,
                          const struct product_groups *groups,
                          const struct product_gradient *gradient, uint16_t *ds, int ds_columns,
                          struct fl_error *e)
{
    struct arena_mark mark = arena_mark(cuda->arena);
    struct lora_rows x = gradient->x, dy = gradient->dy;
    int rank = lora_rank(lora), rc;
    void *s;

    x.dropout = lora_dropout_of(lora, part, groups);
    dy.column = part->row;
    dy.columns = part->rows;
    if ((rc = cuda_push(cuda, lora_rows_bytes(groups->rows, rank), &s, e)) < 0 ||
        (rc = part_project(cuda, lora, part, groups, &gradient->x, s, rank, e)) < 0 ||
        (rc = part_project_back(cuda, lora, part, groups, &dy, ds, ds_columns, e)) < 0 ||
        (rc = part_gradient(cuda, lora, groups, &dy, s, rank, gradient->weights, lora->scale,
                            part->db, true, e)) < 0)
        goto out;
    rc = part_gradient(cuda, lora, groups, &x, ds, ds_columns, gradient->weights, 1, part->da,
                       false, e);
out:
    arena_release(cuda->arena, mark);
    return rc;
}

int lora_gradients_push(struct cuda *cuda, const struct fp8_matrix *w, const struct lora *lora,
                        const struct product_groups *groups,
                        const struct product_gradient *gradient, const uint16_t **ds_out,
                        const uint16_t **at_out, struct fl_error *e)
{
    int rank = lora_rank(lora), columns = rank * lora->count, rc;
    size_t at_group = (size_t)w->cols * (size_t)columns;
    uint16_t *ds, *at = NULL;
    void *push;

    if (rank == 0)
        return 0;
    rc = cuda_push(cuda, lora_rows_bytes(groups->rows, columns), &push, e);
    if (rc < 0)
        return rc;
    ds = push;
    if (at_out) {
        rc = cuda_push(cuda, lora_matrix_bytes(groups->groups, w->cols, columns), &push, e);
        if (rc < 0)
            return rc;
        *at_out = at = push;
        *ds_out = ds;
    }
    for (int i = 0; i < lora->count; i++) {
        const struct lora_part *p = &lora->part[i];
        struct lora_pack pack = {
            .from = p->a,
            .groups = groups->groups,
            .rows = lora->rank,
            .cols = w->cols,
            .rows_padded = rank,
            .cols_padded = w->cols,
            .transposed = 1,
            .to = at + i * rank,
            .to_cols = columns,
            .to_group = at_group,
        };
        if ((at && (rc = CUDA_CHECK(lora_pack(&pack, cuda->stream), e)) < 0) ||
            (rc = part_gradients(cuda, lora, p, groups, gradient, ds + i * rank, columns, e)) < 0)
            return rc;
    }
    return 0;
}
