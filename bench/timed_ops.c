// SPDX-License-Identifier: Apache-2.0
// A backend whose operations are timed, each beside the work it cannot do without.
#include "timed_ops.h"

#include "base/memory.h"
#include "net/net.h"

#include <stdlib.h>

struct timed {
    struct ops table; // first: a struct ops * is a struct timed *
    struct ops *inner;
    struct spans *spans;
};

// Bytes of one row.
static double stream(const struct ops *ops, int cols)
{
    return (double)ops->row_bytes(ops, ROW_STREAM, cols);
}

static double quantised(const struct ops *ops, int cols)
{
    return (double)ops->row_bytes(ops, ROW_QUANTISED, cols);
}

// The body of an operation: inner is what it hands on to.
#define TIMED(name, work, call)                                                                    \
    struct ops *inner = ((struct timed *)ops)->inner;                                              \
    struct spans *spans = ((struct timed *)ops)->spans;                                            \
    int span = spans_begin(spans, SPANS_OPERATIONS, name, work), rc = inner->call;                 \
    spans_end(spans, span);                                                                        \
    return rc

static void timed_destroy(struct ops *ops)
{
    free(ops);
}

static int timed_staging(struct ops *ops, size_t bytes, void **host, struct fl_error *e)
{
    struct ops *inner = ((struct timed *)ops)->inner;

    return inner->staging(inner, bytes, host, e);
}

static void timed_staging_free(struct ops *ops, void *host)
{
    struct ops *inner = ((struct timed *)ops)->inner;

    inner->staging_free(inner, host);
}

static size_t timed_row_bytes(const struct ops *ops, enum ops_row kind, int cols)
{
    const struct ops *inner = ((const struct timed *)ops)->inner;

    return inner->row_bytes(inner, kind, cols);
}

static int timed_stream_read(struct ops *ops, real *host, const void *x, int rows, int cols,
                             struct fl_error *e)
{
    struct ops *inner = ((struct timed *)ops)->inner;

    return inner->stream_read(inner, host, x, rows, cols, e);
}

static int timed_make_codes(struct ops *ops, const struct synth *synth, size_t first, size_t rows,
                            uint8_t *codes, float *scales, struct fl_error *e)
{
    struct ops *inner = ((struct timed *)ops)->inner;

    return inner->make_codes(inner, synth, first, rows, codes, scales, e);
}

static int timed_make_values(struct ops *ops, const struct synth *synth, size_t first, size_t rows,
                             bool wide, void *values, struct fl_error *e)
{
    struct ops *inner = ((struct timed *)ops)->inner;

    return inner->make_values(inner, synth, first, rows, wide, values, e);
}

static int timed_upload(struct ops *ops, void *device, const void *host, size_t bytes,
                        struct fl_error *e)
{
    TIMED("upload", work_bytes((double)bytes), upload(inner, device, host, bytes, e));
}

static int timed_download(struct ops *ops, void *host, const void *device, size_t bytes,
                          struct fl_error *e)
{
    TIMED("download", work_bytes((double)bytes), download(inner, host, device, bytes, e));
}

static int timed_zero(struct ops *ops, void *device, size_t bytes, struct fl_error *e)
{
    TIMED("zero", work_bytes((double)bytes), zero(inner, device, bytes, e));
}

static int timed_embed(struct ops *ops, const uint16_t *table, const int32_t *ids, int tokens,
                       void *x, struct fl_error *e)
{
    TIMED("embed", work_bytes(2 * tokens * stream(ops, ops->model->hidden)),
          embed(inner, table, ids, tokens, x, e));
}

static int timed_norm_forward(struct ops *ops, const void *x, const void *delta, const float *gain,
                              int rows, int cols, void *sum, void *y, void *yq, struct fl_error *e)
{
    double row = (2 + 2 * (delta != NULL)) * stream(ops, cols) + (yq ? quantised(ops, cols) : 0);

    TIMED("norm_forward", work_bytes(rows * row),
          norm_forward(inner, x, delta, gain, rows, cols, sum, y, yq, e));
}

static int timed_norm_backward(struct ops *ops, const void *x, const float *gain, const void *dy,
                               int rows, int cols, void *dx, struct fl_error *e)
{
    TIMED("norm_backward", work_bytes(4 * rows * stream(ops, cols)),
          norm_backward(inner, x, gain, dy, rows, cols, dx, e));
}

static int timed_quantise(struct ops *ops, const void *x, int rows, int cols, void *xq,
                          struct fl_error *e)
{
    TIMED("quantise", work_bytes(rows * (stream(ops, cols) + quantised(ops, cols))),
          quantise(inner, x, rows, cols, xq, e));
}

// Rows of x that only adapters read.
static double lora_reads(const struct lora *lora, double row)
{
    return lora->count ? row : 0;
}

static int timed_linear_forward(struct ops *ops, const struct fp8_matrix *w,
                                const struct lora *lora, const uint64_t *keys, const void *x,
                                const void *xq, int rows, void *y, struct fl_error *e)
{
    double row =
        quantised(ops, w->cols) + lora_reads(lora, stream(ops, w->cols)) + stream(ops, w->rows);

    TIMED(w->parts > 1 ? "linear_forward qkv" : "linear_forward proj",
          work_forward(w, lora, NULL, rows, row),
          linear_forward(inner, w, lora, keys, x, xq, rows, y, e));
}

static int timed_linear_backward(struct ops *ops, const struct fp8_matrix *w,
                                 const struct lora *lora, const uint64_t *keys, const void *x,
                                 const void *dy, int rows, void *dx, struct fl_error *e)
{
    double row = stream(ops, w->rows) + lora_reads(lora, stream(ops, w->cols)) +
                 (dx ? stream(ops, w->cols) : 0);

    TIMED(w->parts > 1 ? "linear_backward qkv" : "linear_backward proj",
          work_backward(w, lora, NULL, rows, dx != NULL, row),
          linear_backward(inner, w, lora, keys, x, dy, rows, dx, e));
}

static int timed_rope_table(struct ops *ops, const int32_t *positions, int tokens, real *table,
                            struct fl_error *e)
{
    TIMED("rope_table", work_bytes(4.0 * tokens * ops->model->head_dim),
          rope_table(inner, positions, tokens, table, e));
}

// Bytes of a token's queries and keys.
static double qk_bytes(const struct ops *ops)
{
    return stream(ops, (ops->model->heads + ops->model->kv_heads) * ops->model->head_dim);
}

static int timed_rope_forward(struct ops *ops, const void *qkv, const float *q_norm,
                              const float *k_norm, const real *table, int tokens, void *qk,
                              struct fl_error *e)
{
    TIMED("rope_forward", work_bytes(2 * tokens * qk_bytes(ops)),
          rope_forward(inner, qkv, q_norm, k_norm, table, tokens, qk, e));
}

static int timed_rope_backward(struct ops *ops, const void *qkv, const float *q_norm,
                               const float *k_norm, const real *table, int tokens, void *dqkv,
                               struct fl_error *e)
{
    TIMED("rope_backward", work_bytes(3 * tokens * qk_bytes(ops)),
          rope_backward(inner, qkv, q_norm, k_norm, table, tokens, dqkv, e));
}

static int timed_attention_forward(struct ops *ops, const void *qk, const void *qkv,
                                   const int32_t *starts, int samples, void *out, real *lse,
                                   struct fl_error *e)
{
    TIMED("attention_forward", work_attention(ops->model, starts, samples, false),
          attention_forward(inner, qk, qkv, starts, samples, out, lse, e));
}

static int timed_attention_backward(struct ops *ops, const void *qk, const void *qkv,
                                    const void *out, const real *lse, const void *dout,
                                    const int32_t *starts, int samples, void *dqkv,
                                    struct fl_error *e)
{
    TIMED("attention_backward", work_attention(ops->model, starts, samples, true),
          attention_backward(inner, qk, qkv, out, lse, dout, starts, samples, dqkv, e));
}

// Logits in fp32 are three products in bf16.
static int timed_router_forward(struct ops *ops, const void *h, const float *weight, int tokens,
                                int64_t capacity, bool replay, struct routing *routing,
                                struct fl_error *e)
{
    const struct model *m = ops->model;
    struct work work = {.bf16 = 6.0 * tokens * m->hidden * m->experts,
                        .bytes = tokens * (stream(ops, m->hidden) + 8.0 * m->experts)};

    TIMED("router_forward", work,
          router_forward(inner, h, weight, tokens, capacity, replay, routing, e));
}

static int timed_router_backward(struct ops *ops, const float *weight, int tokens,
                                 const struct routing *routing, const real *dweights,
                                 double aux_scale, void *dh, struct fl_error *e)
{
    const struct model *m = ops->model;
    struct work work = {.bf16 = 6.0 * tokens * m->hidden * m->experts,
                        .bytes = tokens * (2 * stream(ops, m->hidden) + 4.0 * m->experts)};

    TIMED("router_backward", work,
          router_backward(inner, weight, tokens, routing, dweights, aux_scale, dh, e));
}

static int timed_dispatch_plan(struct ops *ops, const struct routing *routing, int tokens,
                               int32_t *order, int32_t *position, int64_t *counts,
                               struct fl_error *e)
{
    TIMED("dispatch_plan", work_bytes(13.0 * tokens * ops->model->top_k),
          dispatch_plan(inner, routing, tokens, order, position, counts, e));
}

static int timed_regroup_plan(struct ops *ops, const int64_t *counts, int sources, int experts,
                              int32_t *index, struct fl_error *e)
{
    double rows = 0;

    for (int i = 0; i < sources * experts; i++)
        rows += (double)counts[i];
    TIMED("regroup_plan", work_bytes(4 * rows),
          regroup_plan(inner, counts, sources, experts, index, e));
}

static int timed_rows_gather(struct ops *ops, const void *from, const int32_t *index, int divide,
                             int rows, size_t row_bytes, void *to, struct fl_error *e)
{
    double bytes = (1 + 1.0 / divide) * rows * (double)row_bytes + 4.0 * rows;

    TIMED(row_bytes > 64 ? "rows_gather" : "rows_gather of numbers", work_bytes(bytes),
          rows_gather(inner, from, index, divide, rows, row_bytes, to, e));
}

static int timed_rows_scatter(struct ops *ops, const void *from, const int32_t *index, int rows,
                              size_t row_bytes, void *to, struct fl_error *e)
{
    TIMED(row_bytes > 64 ? "rows_scatter" : "rows_scatter of numbers",
          work_bytes(2.0 * rows * (double)row_bytes + 4.0 * rows),
          rows_scatter(inner, from, index, rows, row_bytes, to, e));
}

static int timed_combine(struct ops *ops, const void *rows, const int32_t *position,
                         const real *weights, const void *residual, int tokens, void *out,
                         struct fl_error *e)
{
    double row = (ops->model->top_k + 1 + (residual != NULL)) * stream(ops, ops->model->hidden);

    TIMED("combine", work_bytes(tokens * row),
          combine(inner, rows, position, weights, residual, tokens, out, e));
}

static int timed_fc1_forward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                             const struct group *group, const void *xq, void *gate_up, void *act,
                             void *actq, struct fl_error *e)
{
    double row = quantised(ops, w->cols) + stream(ops, w->rows) + stream(ops, w->rows / 2) +
                 quantised(ops, w->rows / 2);

    TIMED("fc1_forward", work_forward(w, lora, group, group->rows, row),
          fc1_forward(inner, w, lora, group, xq, gate_up, act, actq, e));
}

static int timed_fc2_forward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                             const struct group *group, const void *act, const void *actq, void *y,
                             struct fl_error *e)
{
    double row =
        lora_reads(lora, stream(ops, w->cols)) + quantised(ops, w->cols) + stream(ops, w->rows);

    TIMED("fc2_forward", work_forward(w, lora, group, group->rows, row),
          fc2_forward(inner, w, lora, group, act, actq, y, e));
}

static int timed_fc2_backward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                              const struct group *group, const void *act, const void *dyq,
                              const real *weights, void *dact, real *dweights, struct fl_error *e)
{
    double row = quantised(ops, w->rows) + 2 * stream(ops, w->cols) + 8;

    TIMED("fc2_backward", work_backward(w, lora, group, group->rows, true, row),
          fc2_backward(inner, w, lora, group, act, dyq, weights, dact, dweights, e));
}

static int timed_fc1_backward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                              const struct group *group, const void *xq, const void *gate_up,
                              const void *dact, void *dx, struct fl_error *e)
{
    double row = stream(ops, w->rows) + stream(ops, w->rows / 2) +
                 lora_reads(lora, quantised(ops, w->cols)) + stream(ops, w->cols);

    TIMED("fc1_backward", work_backward(w, lora, group, group->rows, true, row),
          fc1_backward(inner, w, lora, group, xq, gate_up, dact, dx, e));
}

// Arithmetic of the head; its matrix is read once for all chunks of a batch at best.
static struct work head_work(const struct model *m, int rows)
{
    return (struct work){.bf16 = 2.0 * rows * m->hidden * m->vocab, .bytes = 4.0 * rows * m->vocab};
}

static int timed_head_forward(struct ops *ops, const void *h, const uint16_t *head, int rows,
                              real *logits, struct fl_error *e)
{
    TIMED("head_forward", head_work(ops->model, rows),
          head_forward(inner, h, head, rows, logits, e));
}

static int timed_cross_entropy(struct ops *ops, real *logits, const int32_t *targets, int rows,
                               bool gradient, double scale, double *loss_sum, struct fl_error *e)
{
    TIMED("cross_entropy", work_bytes((gradient ? 8.0 : 4.0) * rows * ops->model->vocab),
          cross_entropy(inner, logits, targets, rows, gradient, scale, loss_sum, e));
}

static int timed_head_backward(struct ops *ops, const real *dlogits, const uint16_t *head, int rows,
                               void *dh, struct fl_error *e)
{
    TIMED("head_backward", head_work(ops->model, rows),
          head_backward(inner, dlogits, head, rows, dh, e));
}

static int timed_sum_squares(struct ops *ops, const real *x, size_t count, double *sum,
                             struct fl_error *e)
{
    TIMED("sum_squares", work_bytes(4 * (double)count), sum_squares(inner, x, count, sum, e));
}

static int timed_scale(struct ops *ops, real *x, size_t count, double factor, struct fl_error *e)
{
    TIMED("scale", work_bytes(8 * (double)count), scale(inner, x, count, factor, e));
}

static double moment_bytes(const struct moment *moment, size_t count)
{
    return (double)(moment_values_bytes(moment->type, count) +
                    moment_scales_bytes(moment->type, count));
}

static int timed_adamw(struct ops *ops, const struct adamw *adamw, double grad_scale, size_t count,
                       real *params, const real *grads, const struct moment *first,
                       const struct moment *second, struct fl_error *e)
{
    double bytes =
        12 * (double)count + 2 * moment_bytes(first, count) + 2 * moment_bytes(second, count);

    TIMED("adamw", work_bytes(bytes),
          adamw(inner, adamw, grad_scale, count, params, grads, first, second, e));
}

static const struct ops timed_table = {
    .destroy = timed_destroy,
    .staging = timed_staging,
    .staging_free = timed_staging_free,
    .row_bytes = timed_row_bytes,
    .upload = timed_upload,
    .download = timed_download,
    .zero = timed_zero,
    .stream_read = timed_stream_read,
    .make_codes = timed_make_codes,
    .make_values = timed_make_values,
    .embed = timed_embed,
    .norm_forward = timed_norm_forward,
    .norm_backward = timed_norm_backward,
    .quantise = timed_quantise,
    .linear_forward = timed_linear_forward,
    .linear_backward = timed_linear_backward,
    .rope_table = timed_rope_table,
    .rope_forward = timed_rope_forward,
    .rope_backward = timed_rope_backward,
    .attention_forward = timed_attention_forward,
    .attention_backward = timed_attention_backward,
    .router_forward = timed_router_forward,
    .router_backward = timed_router_backward,
    .dispatch_plan = timed_dispatch_plan,
    .regroup_plan = timed_regroup_plan,
    .rows_gather = timed_rows_gather,
    .rows_scatter = timed_rows_scatter,
    .combine = timed_combine,
    .fc1_forward = timed_fc1_forward,
    .fc2_forward = timed_fc2_forward,
    .fc2_backward = timed_fc2_backward,
    .fc1_backward = timed_fc1_backward,
    .head_forward = timed_head_forward,
    .cross_entropy = timed_cross_entropy,
    .head_backward = timed_head_backward,
    .sum_squares = timed_sum_squares,
    .scale = timed_scale,
    .adamw = timed_adamw,
};

struct ops *timed_ops_create(struct ops *inner, struct spans *spans)
{
    struct timed *t = memory_zeroed(1, sizeof *t);

    t->table = timed_table;
    t->table.name = inner->name;
    t->table.numerics = inner->numerics;
    t->table.model = inner->model;
    t->table.unified = inner->unified;
    if (!inner->make_codes)
        t->table.make_codes = NULL;
    if (!inner->make_values)
        t->table.make_values = NULL;
    t->inner = inner;
    t->spans = spans;
    return &t->table;
}
