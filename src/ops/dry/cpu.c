// SPDX-License-Identifier: Apache-2.0
// The dry operations of the CPU backend: each takes what the real one's scratch function says.
#include "ops/cpu/scratch.h"
#include "ops/dry/table.h"

static int take(struct ops *ops, const char *operation, const void *weight,
                struct cpu_scratch scratch, struct fl_error *e)
{
    struct arena_mark mark = dry_begin(ops, operation, weight);

    return dry_end(ops, mark, dry_push_all(ops, scratch.bytes, scratch.count, e));
}

static int threads_of(struct ops *ops)
{
    return dry_of(ops)->config.threads;
}

static size_t row_bytes(const struct ops *ops, enum ops_row kind, int cols)
{
    (void)ops, (void)kind;
    return cpu_row_size(cols);
}

static int linear_forward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                          const uint64_t *keys, const void *x, const void *xq, int rows, void *y,
                          struct fl_error *e)
{
    (void)keys, (void)x, (void)xq, (void)rows, (void)y;
    return take(ops, "linear_forward", w->data, cpu_linear_forward_scratch(w, lora), e);
}

static int linear_backward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                           const uint64_t *keys, const void *x, const void *dy, int rows, void *dx,
                           struct fl_error *e)
{
    (void)keys, (void)x, (void)dy, (void)dx;
    return take(ops, "linear_backward", w->data, cpu_linear_backward_scratch(w, lora, rows), e);
}

static int attention_forward(struct ops *ops, const void *qk, const void *qkv,
                             const int32_t *starts, int samples, void *out, real *lse,
                             struct fl_error *e)
{
    (void)qk, (void)qkv, (void)out, (void)lse;
    return take(ops, "attention_forward", NULL,
                cpu_attention_forward_scratch(starts, samples, threads_of(ops)), e);
}

static int attention_backward(struct ops *ops, const void *qk, const void *qkv, const void *out,
                              const real *lse, const void *dout, const int32_t *starts, int samples,
                              void *dqkv, struct fl_error *e)
{
    (void)qk, (void)qkv, (void)out, (void)lse, (void)dout, (void)dqkv;
    return take(ops, "attention_backward", NULL,
                cpu_attention_backward_scratch(starts, samples, threads_of(ops)), e);
}

static int router_forward(struct ops *ops, const void *h, const float *weight, int tokens,
                          int64_t capacity, bool replay, struct routing *routing,
                          struct fl_error *e)
{
    (void)h, (void)routing;
    dry_of(ops)->capacity = capacity;
    return take(ops, "router_forward", weight,
                cpu_router_forward_scratch(ops->model, tokens, capacity, replay), e);
}

static int router_backward(struct ops *ops, const float *weight, int tokens,
                           const struct routing *routing, const real *dweights, double aux_scale,
                           void *dh, struct fl_error *e)
{
    (void)routing, (void)dweights, (void)aux_scale, (void)dh;
    return take(ops, "router_backward", weight, cpu_router_backward_scratch(ops->model, tokens), e);
}

static int dispatch_plan(struct ops *ops, const struct routing *routing, int tokens, int32_t *order,
                         int32_t *position, int64_t *counts, struct fl_error *e)
{
    (void)routing, (void)order, (void)position;
    dry_dispatch(ops, tokens, counts);
    return take(ops, "dispatch_plan", NULL, (struct cpu_scratch){0}, e);
}

static int regroup_plan(struct ops *ops, const int64_t *counts, int sources, int experts,
                        int32_t *index, struct fl_error *e)
{
    (void)counts, (void)sources, (void)experts, (void)index;
    return take(ops, "regroup_plan", NULL, (struct cpu_scratch){0}, e);
}

static int fc1_forward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                       const struct group *group, const void *xq, void *gate_up, void *act,
                       void *actq, struct fl_error *e)
{
    (void)group, (void)xq, (void)gate_up, (void)act, (void)actq;
    return take(ops, "fc1_forward", w->data, cpu_expert_scratch(w, lora, threads_of(ops)), e);
}

static int fc2_forward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                       const struct group *group, const void *act, const void *actq, void *y,
                       struct fl_error *e)
{
    (void)group, (void)act, (void)actq, (void)y;
    return take(ops, "fc2_forward", w->data, cpu_expert_scratch(w, lora, threads_of(ops)), e);
}

static int fc2_backward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                        const struct group *group, const void *act, const void *dyq,
                        const real *weights, void *dact, real *dweights, struct fl_error *e)
{
    (void)group, (void)act, (void)dyq, (void)weights, (void)dact, (void)dweights;
    return take(ops, "fc2_backward", w->data, cpu_expert_scratch(w, lora, threads_of(ops)), e);
}

static int fc1_backward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                        const struct group *group, const void *xq, const void *gate_up,
                        const void *dact, void *dx, struct fl_error *e)
{
    (void)xq, (void)gate_up, (void)dact, (void)dx;
    return take(ops, "fc1_backward", w->data,
                cpu_fc1_backward_scratch(w, lora, group->rows, threads_of(ops)), e);
}

static int head_forward(struct ops *ops, const void *h, const uint16_t *head, int rows,
                        real *logits, struct fl_error *e)
{
    (void)h, (void)rows, (void)logits;
    return take(ops, "head_forward", head, cpu_head_scratch(ops->model), e);
}

static int cross_entropy(struct ops *ops, real *logits, const int32_t *targets, int rows,
                         bool gradient, double scale, double *loss_sum, struct fl_error *e)
{
    (void)targets, (void)gradient, (void)scale, (void)loss_sum;
    return take(ops, "cross_entropy", logits, cpu_cross_entropy_scratch(rows), e);
}

static int head_backward(struct ops *ops, const real *dlogits, const uint16_t *head, int rows,
                         void *dh, struct fl_error *e)
{
    (void)dlogits, (void)rows, (void)dh;
    return take(ops, "head_backward", head, cpu_head_scratch(ops->model), e);
}

static int sum_squares(struct ops *ops, const real *x, size_t count, double *sum,
                       struct fl_error *e)
{
    *sum = 0;
    return take(ops, "sum_squares", x, cpu_sum_squares_scratch(count), e);
}

void dry_cpu_fill(struct ops *table)
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
