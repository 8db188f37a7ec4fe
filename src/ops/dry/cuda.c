// SPDX-License-Identifier: Apache-2.0
// The dry operations of the GPU backend: the pushes of ops/cuda in the same order, sizes by the
// same functions.
#include "ops/cuda/scratch.h"
#include "ops/dry/table.h"

#include "rows.h"

static int push_list(struct ops *ops, struct cuda_scratch scratch, struct fl_error *e)
{
    return dry_push_all(ops, scratch.bytes, scratch.count, e);
}

static int take(struct ops *ops, const char *operation, const void *weight,
                struct cuda_scratch scratch, struct fl_error *e)
{
    struct arena_mark mark = dry_begin(ops, operation, weight);

    return dry_end(ops, mark, push_list(ops, scratch, e));
}

static size_t row_bytes(const struct ops *ops, enum ops_row kind, int cols)
{
    (void)ops;
    return kind == ROW_STREAM ? stream_row_bytes(cols) : quantised_row_bytes(cols);
}

// Rows of a product, in groups.
struct rows_of {
    int groups, rows;
    const int64_t *counts; // host [groups]
};

static struct rows_of rows_of(const struct group *group)
{
    return (struct rows_of){group->experts, group->rows, group->counts};
}

static struct arena_mark mark_of(struct ops *ops)
{
    return arena_mark(dry_of(ops)->config.arena);
}

// Scratch that makes way for the next.
static int turn_take(struct ops *ops, size_t bytes, struct fl_error *e)
{
    struct arena_mark mark = mark_of(ops);

    return dry_end(ops, mark, dry_push(ops, bytes, e));
}

// The low-rank term of y: B, S and, a part at a time, A.
static int term_take(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                     const struct rows_of *r, struct fl_error *e)
{
    int rank = lora_rank(lora), rc;

    if (rank == 0)
        return 0;
    if ((rc = dry_push(ops, lora_matrix_bytes(r->groups, w->rows, rank), e)) < 0)
        return rc;
    rc = dry_push(ops, lora_rows_bytes(r->rows, lora_term_columns(w, lora)), e);
    for (int i = 0; i < lora->count && rc == 0; i++)
        rc = turn_take(ops, lora_matrix_bytes(r->groups, rank, w->cols), e);
    return rc;
}

static int product_forward(struct ops *ops, const char *operation, const struct fp8_matrix *w,
                           const struct lora *lora, const struct rows_of *r, struct fl_error *e)
{
    struct arena_mark mark = dry_begin(ops, operation, w->data);
    int rc;

    if (r->rows == 0)
        return 0;
    if ((rc = dry_push(ops, product_offsets_bytes(r->groups), e)) == 0 &&
        (rc = dry_push(ops, operand_scales_bytes(r->rows, w->cols), e)) == 0)
        rc = term_take(ops, w, lora, r, e);
    return dry_end(ops, mark, rc);
}

// One part's gradients: S, and in turn A, B and both gradients' turns.
static int part_take(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                     const struct lora_part *part, const struct rows_of *r, struct fl_error *e)
{
    int rank = lora_rank(lora);
    const size_t turns[] = {
        lora_matrix_bytes(r->groups, rank, w->cols),
        lora_matrix_bytes(r->groups, rank, part->rows),
        lora_turns_bytes(r->groups, part->rows, rank),
        lora_turns_bytes(r->groups, w->cols, rank),
    };
    struct arena_mark mark = mark_of(ops);
    int rc = dry_push(ops, lora_rows_bytes(r->rows, rank), e);

    for (size_t i = 0; i < sizeof turns / sizeof *turns && rc == 0; i++)
        rc = turn_take(ops, turns[i], e);
    return dry_end(ops, mark, rc);
}

// Adapters' gradients, dS and A transposed if wanted, then dX a range of groups at a time.
static int product_backward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                            const struct rows_of *r, bool act, bool dx, struct fl_error *e)
{
    int columns = lora_rank(lora) * lora->count, rc = 0;

    if (columns) {
        rc = dry_push(ops, lora_rows_bytes(r->rows, columns), e);
        if (rc == 0 && dx)
            rc = dry_push(ops, lora_matrix_bytes(r->groups, w->cols, columns), e);
    }
    for (int i = 0; i < lora->count && rc == 0; i++)
        rc = part_take(ops, w, lora, &lora->part[i], r, e);
    if (rc < 0 || !dx)
        return rc;
    return push_list(
        ops, cuda_product_ranges_scratch(w, r->groups, r->counts, product_finishes(lora, act)), e);
}

static int linear_forward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                          const uint64_t *keys, const void *x, const void *xq, int rows, void *y,
                          struct fl_error *e)
{
    int64_t count = rows;

    (void)keys, (void)x, (void)xq, (void)y;
    return product_forward(ops, "linear_forward", w, lora, &(struct rows_of){1, rows, &count}, e);
}

static int linear_backward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                           const uint64_t *keys, const void *x, const void *dy, int rows, void *dx,
                           struct fl_error *e)
{
    struct arena_mark mark = dry_begin(ops, "linear_backward", w->data);
    int64_t count = rows;
    struct rows_of r = {1, rows, &count};
    int rc;

    (void)keys, (void)x, (void)dy;
    if (rows == 0)
        return 0;
    rc = dry_push(ops, product_offsets_bytes(1), e);
    if (rc == 0 && dx)
        rc = dry_push(ops, gradient_codes_bytes(w, rows), e);
    if (rc == 0 && dx)
        rc = dry_push(ops, gradient_scales_bytes(w, rows), e);
    if (rc == 0)
        rc = product_backward(ops, w, lora, &r, false, dx != NULL, e);
    return dry_end(ops, mark, rc);
}

static int attention_forward(struct ops *ops, const void *qk, const void *qkv,
                             const int32_t *starts, int samples, void *out, real *lse,
                             struct fl_error *e)
{
    (void)qk, (void)qkv, (void)out, (void)lse;
    return take(ops, "attention_forward", NULL, cuda_attention_forward_scratch(starts, samples), e);
}

static int attention_backward(struct ops *ops, const void *qk, const void *qkv, const void *out,
                              const real *lse, const void *dout, const int32_t *starts, int samples,
                              void *dqkv, struct fl_error *e)
{
    (void)qk, (void)qkv, (void)out, (void)lse, (void)dout, (void)dqkv;
    return take(ops, "attention_backward", NULL,
                cuda_attention_backward_scratch(ops->model, starts, samples), e);
}

static int router_forward(struct ops *ops, const void *h, const float *weight, int tokens,
                          int64_t capacity, bool replay, struct routing *routing,
                          struct fl_error *e)
{
    (void)h, (void)replay, (void)routing;
    dry_of(ops)->capacity = capacity;
    return take(ops, "router_forward", weight, cuda_router_forward_scratch(ops->model, tokens), e);
}

static int router_backward(struct ops *ops, const float *weight, int tokens,
                           const struct routing *routing, const real *dweights, double aux_scale,
                           void *dh, struct fl_error *e)
{
    (void)routing, (void)dweights, (void)aux_scale, (void)dh;
    return take(ops, "router_backward", weight, cuda_router_backward_scratch(ops->model, tokens),
                e);
}

static int dispatch_plan(struct ops *ops, const struct routing *routing, int tokens, int32_t *order,
                         int32_t *position, int64_t *counts, struct fl_error *e)
{
    (void)routing, (void)order, (void)position;
    dry_dispatch(ops, tokens, counts);
    return take(ops, "dispatch_plan", NULL, cuda_dispatch_plan_scratch(ops->model, tokens), e);
}

static int regroup_plan(struct ops *ops, const int64_t *counts, int sources, int experts,
                        int32_t *index, struct fl_error *e)
{
    (void)counts, (void)index;
    return take(ops, "regroup_plan", NULL, cuda_regroup_plan_scratch(sources, experts), e);
}

static int fc1_forward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                       const struct group *group, const void *xq, void *gate_up, void *act,
                       void *actq, struct fl_error *e)
{
    struct rows_of r = rows_of(group);

    (void)xq, (void)gate_up, (void)act, (void)actq;
    return product_forward(ops, "fc1_forward", w, lora, &r, e);
}

static int fc2_forward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                       const struct group *group, const void *act, const void *actq, void *y,
                       struct fl_error *e)
{
    struct rows_of r = rows_of(group);

    (void)act, (void)actq, (void)y;
    return product_forward(ops, "fc2_forward", w, lora, &r, e);
}

static int fc2_backward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                        const struct group *group, const void *act, const void *dyq,
                        const real *weights, void *dact, real *dweights, struct fl_error *e)
{
    struct arena_mark mark = dry_begin(ops, "fc2_backward", w->data);
    struct rows_of r = rows_of(group);
    int rc;

    (void)act, (void)dyq, (void)weights, (void)dact, (void)dweights;
    if (r.rows == 0)
        return 0;
    if ((rc = dry_push(ops, product_offsets_bytes(r.groups), e)) == 0 &&
        (rc = dry_push(ops, operand_scales_bytes(r.rows, w->rows), e)) == 0)
        rc = product_backward(ops, w, lora, &r, true, true, e);
    return dry_end(ops, mark, rc);
}

static int fc1_backward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                        const struct group *group, const void *xq, const void *gate_up,
                        const void *dact, void *dx, struct fl_error *e)
{
    struct arena_mark mark = dry_begin(ops, "fc1_backward", w->data);
    struct rows_of r = rows_of(group);
    int rc;

    (void)xq, (void)gate_up, (void)dact, (void)dx;
    if (r.rows == 0)
        return 0;
    if ((rc = dry_push(ops, product_offsets_bytes(r.groups), e)) == 0 &&
        (rc = dry_push(ops, (size_t)r.rows * stream_row_bytes(w->rows), e)) == 0 &&
        (rc = dry_push(ops, gradient_codes_bytes(w, r.rows), e)) == 0 &&
        (rc = dry_push(ops, gradient_scales_bytes(w, r.rows), e)) == 0)
        rc = product_backward(ops, w, lora, &r, false, true, e);
    return dry_end(ops, mark, rc);
}

static int head_forward(struct ops *ops, const void *h, const uint16_t *head, int rows,
                        real *logits, struct fl_error *e)
{
    (void)h, (void)rows, (void)logits;
    return take(ops, "head_forward", head, cuda_head_forward_scratch(), e);
}

static int cross_entropy(struct ops *ops, real *logits, const int32_t *targets, int rows,
                         bool gradient, double scale, double *loss_sum, struct fl_error *e)
{
    (void)targets, (void)gradient, (void)scale, (void)loss_sum;
    return take(ops, "cross_entropy", logits, cuda_cross_entropy_scratch(rows), e);
}

static int head_backward(struct ops *ops, const real *dlogits, const uint16_t *head, int rows,
                         void *dh, struct fl_error *e)
{
    (void)dlogits, (void)dh;
    return take(ops, "head_backward", head, cuda_head_backward_scratch(ops->model, rows), e);
}

static int sum_squares(struct ops *ops, const real *x, size_t count, double *sum,
                       struct fl_error *e)
{
    (void)count;
    *sum = 0;
    return take(ops, "sum_squares", x, cuda_sum_squares_scratch(), e);
}

void dry_cuda_fill(struct ops *table)
{
    table->row_bytes = row_bytes;
    table->linear_forward = linear_forward;
    table->linear_backward = linear_backward;
    table->attention_forward = attention_forward;
    table->attention_backward = attention_backward;
    table->router_forward = router_forward;
    table->router_backward = router_backward;
    table->dispatch_plan = dispatch_plan;
    table->regroup_plan = regroup_plan;
    table->fc1_forward = fc1_forward;
    table->fc2_forward = fc2_forward;
    table->fc2_backward = fc2_backward;
    table->fc1_backward = fc1_backward;
    table->head_forward = head_forward;
    table->cross_entropy = cross_entropy;
    table->head_backward = head_backward;
    table->sum_squares = sum_squares;
}
