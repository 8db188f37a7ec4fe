// SPDX-License-Identifier: Apache-2.0
// The output head and cross entropy, a chunk of rows at a time.
#include "ops/cpu/cpu.h"

#include <math.h>

static void tile_widen(const uint16_t *head, size_t count, real *tile)
{
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < count; i++)
        tile[i] = (real)bf16_to_float(head[i]);
}

static int tile_push(struct cpu *cpu, real **tile, struct fl_error *e)
{
    struct cpu_scratch scratch = cpu_head_scratch(cpu->table.model);
    void *push[CPU_SCRATCHES] = {NULL};
    int rc = cpu_push(cpu, &scratch, push, e);

    *tile = push[0];
    return rc;
}

int cpu_head_forward(struct ops *ops, const void *h, const uint16_t *head, int rows, real *logits,
                     struct fl_error *e)
{
    struct cpu *cpu = cpu_of(ops);
    int vocab = ops->model->vocab, hidden = ops->model->hidden;
    struct arena_mark mark = arena_mark(cpu->arena);
    real *tile;
    int rc = tile_push(cpu, &tile, e);

    if (rc < 0)
        return rc;
    for (int v = 0; v < vocab; v += CPU_HEAD_ROWS) {
        int n = vocab - v < CPU_HEAD_ROWS ? vocab - v : CPU_HEAD_ROWS;
        tile_widen(head + (size_t)v * (size_t)hidden, (size_t)n * (size_t)hidden, tile);
        gemm_nt(rows, n, hidden, 1, h, hidden, tile, hidden, 0, logits + v, vocab);
    }
    arena_release(cpu->arena, mark);
    return 0;
}

// -log softmax(logits)[target]; with gradient, logits become scale * (softmax - one-hot).
static double row_entropy(real *logits, int vocab, int32_t target, bool gradient, real scale)
{
    real top = logits[0], wanted = logits[target];
    double sum = 0;

    for (int v = 1; v < vocab; v++)
        top = logits[v] > top ? logits[v] : top;
    for (int v = 0; v < vocab; v++) {
        real exponential = real_exp(logits[v] - top);
        sum += (double)exponential;
        if (gradient)
            logits[v] = exponential;
    }
    if (gradient) {
        real factor = scale / (real)sum;
        for (int v = 0; v < vocab; v++)
            logits[v] *= factor;
        logits[target] -= scale;
    }
    return log(sum) + (double)top - (double)wanted;
}

int cpu_cross_entropy(struct ops *ops, real *logits, const int32_t *targets, int rows,
                      bool gradient, double scale, double *loss_sum, struct fl_error *e)
{
    struct cpu *cpu = cpu_of(ops);
    int vocab = ops->model->vocab;
    struct arena_mark mark = arena_mark(cpu->arena);
    struct cpu_scratch scratch = cpu_cross_entropy_scratch(rows);
    void *push[CPU_SCRATCHES] = {NULL};
    double *losses;
    int rc = cpu_push(cpu, &scratch, push, e);

    if (rc < 0)
        return rc;
    losses = push[0];
#pragma omp parallel for schedule(static)
    for (int r = 0; r < rows; r++) {
        real *row = logits + (size_t)r * (size_t)vocab;
        losses[r] = 0;
        if (targets[r] >= 0)
            losses[r] = row_entropy(row, vocab, targets[r], gradient, (real)scale);
        else if (gradient)
            for (int v = 0; v < vocab; v++)
                row[v] = 0;
    }
    for (int r = 0; r < rows; r++)
        *loss_sum += losses[r];
    if (gradient)
        round_rows(cpu->fp8, logits, (size_t)rows * (size_t)vocab);
    arena_release(cpu->arena, mark);
    return 0;
}

int cpu_head_backward(struct ops *ops, const real *dlogits, const uint16_t *head, int rows,
                      void *dh, struct fl_error *e)
{
    struct cpu *cpu = cpu_of(ops);
    int vocab = ops->model->vocab, hidden = ops->model->hidden;
    struct arena_mark mark = arena_mark(cpu->arena);
    real *tile;
    int rc = tile_push(cpu, &tile, e);

    if (rc < 0)
        return rc;
    for (int v = 0; v < vocab; v += CPU_HEAD_ROWS) {
        int n = vocab - v < CPU_HEAD_ROWS ? vocab - v : CPU_HEAD_ROWS;
        tile_widen(head + (size_t)v * (size_t)hidden, (size_t)n * (size_t)hidden, tile);
        gemm_nn(rows, hidden, n, 1, dlogits + v, vocab, tile, hidden, v > 0, dh, hidden);
    }
    round_rows(cpu->fp8, dh, (size_t)rows * (size_t)hidden);
    arena_release(cpu->arena, mark);
    return 0;
}
