// SPDX-License-Identifier: Apache-2.0
// Dense linear layers: frozen base product plus LoRA.
#include "ops/cpu/cpu.h"

int cpu_linear_forward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                       const uint64_t *keys, const void *x, const void *xq, int rows, void *y,
                       struct fl_error *e)
{
    struct cpu *cpu = cpu_of(ops);
    struct arena_mark mark = arena_mark(cpu->arena);
    struct cpu_scratch scratch = cpu_linear_forward_scratch(w, lora);
    void *push[CPU_SCRATCHES] = {NULL}; // a tile of w, the low-rank products'
    int rc = cpu_push(cpu, &scratch, push, e);

    if (rc < 0)
        goto out;
    base_forward(w, 0, xq, rows, y, push[0]);
    lora_forward(cpu->fp8, lora, 0, keys, x, rows, w->cols, y, w->rows, push[1]);
    round_rows(cpu->fp8, y, (size_t)rows * (size_t)w->rows);
out:
    arena_release(cpu->arena, mark);
    return rc;
}

int cpu_linear_backward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                        const uint64_t *keys, const void *x, const void *dy, int rows, void *dx,
                        struct fl_error *e)
{
    struct cpu *cpu = cpu_of(ops);
    struct arena_mark mark = arena_mark(cpu->arena);
    struct cpu_scratch scratch = cpu_linear_backward_scratch(w, lora, rows);
    void *push[CPU_SCRATCHES] = {NULL}; // a tile of w, the low-rank products', dy quantised
    int rc = cpu_push(cpu, &scratch, push, e);

    if (rc < 0)
        goto out;
    if (dx) {
        quantise_rows(cpu->fp8, dy, rows, w->rows, w->part_rows, w->parts, push[2]);
        base_backward(w, 0, push[2], rows, dx, push[0]);
    }
    lora_backward(cpu->fp8, lora, 0, keys, NULL, x, dy, rows, w->cols, w->rows, dx, push[1]);
    if (dx)
        round_rows(cpu->fp8, dx, (size_t)rows * (size_t)w->cols);
out:
    arena_release(cpu->arena, mark);
    return rc;
}
