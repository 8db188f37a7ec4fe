// SPDX-License-Identifier: Apache-2.0
// Every kernel launch of the backend, timed beside the work it is given.
#include "launches.h"

#include "attention.h"
#include "dispatch.h"
#include "embed.h"
#include "fp8_gemm.h"
#include "lora.h"
#include "loss.h"
#include "norm.h"
#include "optimizer.h"
#include "quantise.h"
#include "rope.h"
#include "router.h"
#include "rows.h"
#include "swiglu.h"
#include "transpose.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

static struct spans *watching;

void launches_watch(struct spans *spans)
{
    watching = spans;
}

// name's calls come to __wrap_name; __real_name is the launcher. bench/build reads these lines.
#define LAUNCH_AS(name, type, parameters, arguments, work)                                         \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters                                                                  \
    {                                                                                              \
        int span = spans_begin(watching, SPANS_LAUNCHES, #name, work);                             \
        type result = __real_##name arguments;                                                     \
        spans_end(watching, span);                                                                 \
        return result;                                                                             \
    }
#define LAUNCH(name, parameters, arguments, work) LAUNCH_AS(name, int, parameters, arguments, work)

static const struct work none = {0};

static double groups_bytes(int groups, double rows, double cols)
{
    return groups * rows * cols;
}

// A product of a range of groups has rows up to the range's last, of which the ranges before had
// theirs: they come one after another from the same operand.
static struct work gemm_work(const struct fp8_gemm *g)
{
    static struct fp8_gemm last;
    double rows = g->rows;
    struct work work;

    if (g->a == last.a && g->a_scale == last.a_scale && g->rows > last.rows &&
        g->offsets > last.offsets)
        rows -= last.rows;
    last = *g;
    work = (struct work){.fp8 = 2 * rows * g->n * g->k, .bf16 = 2 * rows * g->n * g->lora_rank};
    work.bytes = rows * (g->k + 4.0 * g->k / 128) + groups_bytes(g->groups, g->n, g->k) +
                 rows * g->n * (g->d_is_float ? 4 : 2) + 2 * rows * g->s_columns +
                 2 * groups_bytes(g->groups, g->n, g->lora_rank);
    return work;
}

static double rows_bytes(const struct lora_rows *x)
{
    return x->quantised ? (double)quantised_row_bytes(x->columns) : 2.0 * x->columns;
}

static struct work project_work(const struct lora_rows *x, const struct lora_groups *g, int rank)
{
    return (struct work){.bf16 = 2.0 * g->rows * x->columns * rank,
                         .bytes = g->rows * (rows_bytes(x) + 2.0 * rank) +
                                  2 * groups_bytes(g->groups, x->columns, rank)};
}

static struct work gradient_work(const struct lora_rows *x, const struct lora_groups *g, int rank)
{
    return (struct work){.bf16 = 2.0 * g->rows * x->columns * rank,
                         .bytes = g->rows * (rows_bytes(x) + 2.0 * rank) +
                                  8 * groups_bytes(g->groups, x->columns, rank)};
}

static struct work input_work(const struct lora_input *i, const struct lora_groups *g)
{
    double columns = (double)i->parts * i->padded_rank;

    return (struct work){.bf16 = 2.0 * g->rows * i->columns * columns,
                         .bytes = g->rows * (i->columns * (i->act ? 8.0 : 6.0) + 2 * columns) +
                                  2 * groups_bytes(g->groups, i->columns, columns)};
}

static struct work transpose_work(const struct fp8_transpose *t)
{
    double rows = 0;

    for (int i = 0; i < t->parts; i++)
        rows += t->part_rows[i];
    return work_bytes(2 * groups_bytes(t->groups, rows, t->k));
}

static int columns_of(const int *parts, int count)
{
    int columns = 0;

    for (int i = 0; i < count; i++)
        columns += parts[i];
    return columns;
}

static double moment_bytes(struct optimizer_moment m, size_t count)
{
    return (double)(moment_values_bytes((enum storage)m.type, count) +
                    moment_scales_bytes((enum storage)m.type, count));
}

// clang-format off
LAUNCH(sm90_fp8_gemm, (const struct fp8_gemm *gemm, void *stream), (gemm, stream), gemm_work(gemm))
LAUNCH(fp8_transpose, (const struct fp8_transpose *transpose, void *stream), (transpose, stream),
       transpose_work(transpose))

LAUNCH(lora_pack, (const struct lora_pack *pack, void *stream), (pack, stream),
       work_bytes(groups_bytes(pack->groups, pack->rows, 4.0 * pack->cols) +
                  groups_bytes(pack->groups, pack->rows_padded, 2.0 * pack->cols_padded)))
LAUNCH(lora_project,
       (const struct lora_rows *x, const struct lora_groups *groups, const uint16_t *w,
        int padded_rank, float alpha, uint16_t *s, int s_columns, void *stream),
       (x, groups, w, padded_rank, alpha, s, s_columns, stream),
       project_work(x, groups, padded_rank))
LAUNCH(lora_gradient,
       (const struct lora_rows *x, const struct lora_groups *groups, const uint16_t *s,
        int s_columns, int rank, int padded_rank, const float *weights, float alpha, float *d,
        int j_stride, int c_stride, size_t d_group, int32_t *turns, void *stream),
       (x, groups, s, s_columns, rank, padded_rank, weights, alpha, d, j_stride, c_stride, d_group,
        turns, stream),
       gradient_work(x, groups, rank))
LAUNCH(lora_input,
       (const struct lora_input *input, const struct lora_groups *groups, void *stream),
       (input, groups, stream), input_work(input, groups))

LAUNCH(scales_transpose,
       (const uint8_t *xq, int rows, int cols, float *scales, int scale_stride, void *stream),
       (xq, rows, cols, scales, scale_stride, stream), work_bytes(8.0 * rows * cols / 128))
LAUNCH(quantise_to_rows, (const uint16_t *x, int rows, int cols, uint8_t *xq, void *stream),
       (x, rows, cols, xq, stream), work_bytes(3.0 * rows * cols))
LAUNCH(quantise_to_operand,
       (const uint16_t *dy, int rows, const int *part_cols, int parts, uint8_t *codes,
        float *scales, int scale_stride, void *stream),
       (dy, rows, part_cols, parts, codes, scales, scale_stride, stream),
       work_bytes(3.0 * rows * columns_of(part_cols, parts)))
LAUNCH(swiglu_forward,
       (const uint16_t *gate_up, int rows, int width, uint16_t *act, uint8_t *actq, void *stream),
       (gate_up, rows, width, act, actq, stream), work_bytes(7.0 * rows * width))
LAUNCH(swiglu_backward,
       (const uint16_t *gate_up, const uint16_t *dact, int rows, int width, uint16_t *dgate_up,
        uint8_t *codes, float *scales, int scale_stride, void *stream),
       (gate_up, dact, rows, width, dgate_up, codes, scales, scale_stride, stream),
       work_bytes(12.0 * rows * width))

LAUNCH(embed_rows,
       (const uint16_t *table, const int32_t *ids, int tokens, int hidden, uint16_t *x,
        void *stream),
       (table, ids, tokens, hidden, x, stream), work_bytes(4.0 * tokens * hidden))
LAUNCH(rms_norm_forward,
       (const uint16_t *x, const uint16_t *delta, const float *gain, int rows, int cols, float eps,
        uint16_t *sum, uint16_t *y, uint8_t *yq, void *stream),
       (x, delta, gain, rows, cols, eps, sum, y, yq, stream),
       work_bytes((double)rows * cols * ((delta ? 8 : 4) + (yq ? 1 : 0))))
LAUNCH(rms_norm_backward,
       (const uint16_t *x, const float *gain, const uint16_t *dy, int rows, int cols, float eps,
        uint16_t *dx, void *stream),
       (x, gain, dy, rows, cols, eps, dx, stream), work_bytes(8.0 * rows * cols))
LAUNCH(rope_table,
       (const int32_t *positions, int tokens, int head_dim, double theta, float *table,
        void *stream),
       (positions, tokens, head_dim, theta, table, stream), work_bytes(4.0 * tokens * head_dim))
LAUNCH(rope_forward, (const struct rope *rope, uint16_t *qk, void *stream), (rope, qk, stream),
       work_bytes(4.0 * rope->tokens * (rope->heads + rope->kv_heads) * rope->head_dim))
LAUNCH(rope_backward, (const struct rope *rope, uint16_t *dqkv, void *stream),
       (rope, dqkv, stream),
       work_bytes(6.0 * rope->tokens * (rope->heads + rope->kv_heads) * rope->head_dim))

LAUNCH(attention_tiles_store,
       (const struct attention_tile *host, int count, struct attention_tile *device, void *stream),
       (host, count, device, stream), none)
LAUNCH(sm90_attention_forward,
       (const struct attention *attention, void *out, float *lse, void *stream),
       (attention, out, lse, stream), none)
LAUNCH(sm90_attention_backward,
       (const struct attention *attention, const void *out, const float *lse, const void *dout,
        float *stats, int stat_stride, void *dqkv, void *stream),
       (attention, out, lse, dout, stats, stat_stride, dqkv, stream), none)

LAUNCH(sm90_router_forward, (const struct router *router, void *stream), (router, stream), none)
LAUNCH(router_load_balance,
       (const double *mass, const int32_t *slots, int tokens, int experts, int top_k, double *aux,
        void *stream),
       (mass, slots, tokens, experts, top_k, aux, stream), none)
LAUNCH(router_capacity,
       (const int32_t *ids, const float *weights, int slots, int experts, int64_t capacity,
        uint8_t *kept, void *stream),
       (ids, weights, slots, experts, capacity, kept, stream), none)
LAUNCH(router_count,
       (const int32_t *ids, int slots, int experts, int32_t *counts, void *stream),
       (ids, slots, experts, counts, stream), none)
LAUNCH(router_backward, (const struct router_gradient *gradient, void *stream),
       (gradient, stream), none)

LAUNCH(dispatch_plan, (const struct dispatch_plan *plan, void *stream), (plan, stream),
       work_bytes(13.0 * plan->slots))
LAUNCH(dispatch_regroup,
       (const struct dispatch_segment *segments, int count, int32_t *index, void *stream),
       (segments, count, index, stream), none)
LAUNCH(dispatch_gather,
       (const void *from, const int32_t *index, int divide, int rows, size_t row_bytes, void *to,
        void *stream),
       (from, index, divide, rows, row_bytes, to, stream),
       work_bytes((1 + 1.0 / divide) * rows * (double)row_bytes + 4.0 * rows))
LAUNCH(dispatch_scatter,
       (const void *from, const int32_t *index, int rows, size_t row_bytes, void *to, void *stream),
       (from, index, rows, row_bytes, to, stream),
       work_bytes(2.0 * rows * (double)row_bytes + 4.0 * rows))
LAUNCH(dispatch_combine,
       (const uint16_t *rows, const int32_t *position, const float *weights,
        const uint16_t *residual, int tokens, int top_k, int pitch, uint16_t *out, void *stream),
       (rows, position, weights, residual, tokens, top_k, pitch, out, stream),
       work_bytes(2.0 * tokens * pitch * (top_k + 1 + (residual != NULL))))

LAUNCH(sm90_cross_entropy,
       (float *logits, const int32_t *targets, int rows, int vocab, int gradient, float scale,
        double *losses, double *loss_sum, void *stream),
       (logits, targets, rows, vocab, gradient, scale, losses, loss_sum, stream),
       work_bytes((gradient ? 8.0 : 4.0) * rows * vocab))
LAUNCH(optimizer_sum_squares,
       (const float *x, size_t count, double *parts, double *sum, void *stream),
       (x, count, parts, sum, stream), work_bytes(4 * (double)count))
LAUNCH(optimizer_scale, (float *x, size_t count, float factor, void *stream),
       (x, count, factor, stream), work_bytes(8 * (double)count))
LAUNCH(optimizer_adamw, (const struct optimizer_adamw *adamw, void *stream), (adamw, stream),
       work_bytes(12 * (double)adamw->count + 2 * moment_bytes(adamw->m, adamw->count) +
                  2 * moment_bytes(adamw->v, adamw->count)))

LAUNCH_AS(cudaMemcpyAsync, cudaError_t,
          (void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream),
          (to, from, bytes, kind, stream), none)
LAUNCH_AS(cudaMemsetAsync, cudaError_t,
          (void *at, int value, size_t bytes, cudaStream_t stream), (at, value, bytes, stream),
          work_bytes((double)bytes))
LAUNCH_AS(cublasLtMatmul, cublasStatus_t,
          (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
           cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
           const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
           cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algorithm, void *workspace,
           size_t workspace_bytes, cudaStream_t stream),
          (handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm,
           workspace, workspace_bytes, stream),
          none)
// clang-format on
