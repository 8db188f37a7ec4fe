// SPDX-License-Identifier: Apache-2.0
// The experts' two linear layers and SwiGLU, experts side by side on the threads.
#include "ops/cpu/cpu.h"

#include <math.h>
#include <omp.h>

// Scratch of every thread: a dequantised tile and the LoRA products'.
struct worker_scratch {
    real *base;
    size_t tile, size; // reals
};

static struct worker_scratch worker_scratch_of(const struct fp8_matrix *w, const struct lora *lora,
                                               real *base)
{
    return (struct worker_scratch){base, base_tile_size(w), expert_worker_size(w, lora)};
}

static int scratch_push(struct cpu *cpu, const struct fp8_matrix *w, const struct lora *lora,
                        struct worker_scratch *s, struct fl_error *e)
{
    struct cpu_scratch scratch = cpu_expert_scratch(w, lora, cpu->threads);
    void *push[CPU_SCRATCHES] = {NULL};
    int rc = cpu_push(cpu, &scratch, push, e);

    *s = worker_scratch_of(w, lora, push[0]);
    return rc;
}

static real *scratch_mine(const struct worker_scratch *s)
{
    return s->base + s->size * (size_t)omp_get_thread_num();
}

static size_t group_first(const struct group *group, int expert)
{
    int64_t first = 0;

    for (int i = 0; i < expert; i++)
        first += group->counts[i];
    return (size_t)first;
}

static void product_forward(struct cpu *cpu, const struct fp8_matrix *w, const struct lora *lora,
                            const struct group *group, int expert, const real *x, const real *xq,
                            real *y, const struct worker_scratch *s)
{
    size_t first = group_first(group, expert);
    int rows = (int)group->counts[expert];
    real *mine = scratch_mine(s), *to = y + first * (size_t)w->rows;

    base_forward(w, expert, xq + first * (size_t)w->cols, rows, to, mine);
    lora_forward(cpu->fp8, lora, expert, group->keys + first, x + first * (size_t)w->cols, rows,
                 w->cols, to, w->rows, mine + s->tile);
}

static real sigmoid(real x)
{
    return 1 / (1 + real_exp(-x));
}

static void swiglu(const real *gate_up, int width, real *act)
{
    for (int c = 0; c < width; c++)
        act[c] = gate_up[c] * sigmoid(gate_up[c]) * gate_up[width + c];
}

int cpu_fc1_forward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                    const struct group *group, const void *xq, void *gate_up, void *act, void *actq,
                    struct fl_error *e)
{
    struct cpu *cpu = cpu_of(ops);
    struct arena_mark mark = arena_mark(cpu->arena);
    int width = w->rows / 2;
    struct worker_scratch scratch;
    int rc = scratch_push(cpu, w, lora, &scratch, e);

    if (rc < 0)
        return rc;
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads)
    for (int i = 0; i < group->experts; i++)
        product_forward(cpu, w, lora, group, i, xq, xq, gate_up, &scratch);
#pragma omp parallel for schedule(static)
    for (int r = 0; r < group->rows; r++)
        swiglu((const real *)gate_up + (size_t)r * (size_t)w->rows, width,
               (real *)act + (size_t)r * (size_t)width);
    quantise_rows(cpu->fp8, act, group->rows, width, &width, 1, actq);
    round_rows(cpu->fp8, act, (size_t)group->rows * (size_t)width);
    round_rows(cpu->fp8, gate_up, (size_t)group->rows * (size_t)w->rows);
    arena_release(cpu->arena, mark);
    return 0;
}

int cpu_fc2_forward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                    const struct group *group, const void *act, const void *actq, void *y,
                    struct fl_error *e)
{
    struct cpu *cpu = cpu_of(ops);
    struct arena_mark mark = arena_mark(cpu->arena);
    struct worker_scratch scratch;
    int rc = scratch_push(cpu, w, lora, &scratch, e);

    if (rc < 0)
        return rc;
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads)
    for (int i = 0; i < group->experts; i++)
        product_forward(cpu, w, lora, group, i, act, actq, y, &scratch);
    round_rows(cpu->fp8, y, (size_t)group->rows * (size_t)w->rows);
    arena_release(cpu->arena, mark);
    return 0;
}

// dx = dyq W + LoRA's gradient of dy.
static void product_backward(struct cpu *cpu, const struct fp8_matrix *w, const struct lora *lora,
                             const struct group *group, int expert, const real *weights,
                             const real *x, const real *dy, const real *dyq, real *dx,
                             const struct worker_scratch *s)
{
    size_t first = group_first(group, expert), in = (size_t)w->cols, out = (size_t)w->rows;
    int rows = (int)group->counts[expert];
    real *mine = scratch_mine(s);

    base_backward(w, expert, dyq + first * out, rows, dx + first * in, mine);
    lora_backward(cpu->fp8, lora, expert, group->keys + first, weights ? weights + first : NULL,
                  x + first * in, dy + first * out, rows, w->cols, w->rows, dx + first * in,
                  mine + s->tile);
}

int cpu_fc2_backward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                     const struct group *group, const void *act, const void *dyq,
                     const real *weights, void *dact, real *dweights, struct fl_error *e)
{
    struct cpu *cpu = cpu_of(ops);
    struct arena_mark mark = arena_mark(cpu->arena);
    struct worker_scratch scratch;
    int rc = scratch_push(cpu, w, lora, &scratch, e);

    if (rc < 0)
        return rc;
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads)
    for (int i = 0; i < group->experts; i++)
        product_backward(cpu, w, lora, group, i, weights, act, dyq, dyq, dact, &scratch);
#pragma omp parallel for schedule(static)
    for (int r = 0; r < group->rows; r++) {
        const real *a = (const real *)act + (size_t)r * (size_t)w->cols;
        real *d = (real *)dact + (size_t)r * (size_t)w->cols, dot = 0;
        for (int c = 0; c < w->cols; c++) {
            dot += a[c] * d[c];
            d[c] = round_to_bf16(cpu->fp8, weights[r] * d[c]);
        }
        dweights[r] = dot;
    }
    arena_release(cpu->arena, mark);
    return 0;
}

static void swiglu_backward(bool fp8, const real *gate_up, const real *dact, int width,
                            real *dgate_up)
{
    for (int c = 0; c < width; c++) {
        real gate = gate_up[c], s = sigmoid(gate);
        dgate_up[c] = round_to_bf16(fp8, dact[c] * gate_up[width + c] * s * (1 + gate * (1 - s)));
        dgate_up[width + c] = round_to_bf16(fp8, dact[c] * gate * s);
    }
}

int cpu_fc1_backward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                     const struct group *group, const void *xq, const void *gate_up,
                     const void *dact, void *dx, struct fl_error *e)
{
    struct cpu *cpu = cpu_of(ops);
    struct arena_mark mark = arena_mark(cpu->arena);
    struct cpu_scratch pushes = cpu_fc1_backward_scratch(w, lora, group->rows, cpu->threads);
    void *push[CPU_SCRATCHES] = {NULL}; // the workers', dgate_up, and that quantised
    int width = w->rows / 2, rc = cpu_push(cpu, &pushes, push, e);
    struct worker_scratch scratch;
    real *dgate_up, *dgate_upq;

    if (rc < 0)
        goto out;
    scratch = worker_scratch_of(w, lora, push[0]);
    dgate_up = push[1];
    dgate_upq = push[2];
#pragma omp parallel for schedule(static)
    for (int r = 0; r < group->rows; r++) {
        size_t at = (size_t)r * (size_t)w->rows;
        swiglu_backward(cpu->fp8, (const real *)gate_up + at,
                        (const real *)dact + (size_t)r * (size_t)width, width, dgate_up + at);
    }
    quantise_rows(cpu->fp8, dgate_up, group->rows, w->rows, w->part_rows, w->parts, dgate_upq);
#pragma omp parallel for schedule(dynamic) num_threads(cpu->threads)
    for (int i = 0; i < group->experts; i++)
        product_backward(cpu, w, lora, group, i, NULL, xq, dgate_up, dgate_upq, dx, &scratch);
    round_rows(cpu->fp8, dx, (size_t)group->rows * (size_t)w->cols);
out:
    arena_release(cpu->arena, mark);
    return rc;
}
