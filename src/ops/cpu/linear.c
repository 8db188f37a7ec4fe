// SPDX-License-Identifier: Apache-2.0
// Dense linear layers: frozen base product plus LoRA.
#include "ops/cpu/cpu.h"

int cpu_linear_forward(struct ops *ops, const struct fp8_matrix *w, const struct lora *lora,
                       const uint64_t *keys, const void *x, const void *xq, int rows, void *y,
                       struct fl_error *e)
{
    struct cpu *cpu = cpu_of(ops);
    struct arena_mark mark = arena_mark(cpu->arena);
    real *tile, *scratch;
    int rc;

    if ((rc = cpu_push(cpu, base_tile_size(w), &tile, e)) < 0 ||
        (rc = cpu_push(cpu, lora_scratch_size(lora, w->cols), &scratch, e)) < 0)
        goto out;
    base_forward(w, 0, xq, rows, y, tile);
    lora_forward(cpu->fp8, lora, 0, keys, x, rows, w->cols, y, w->rows, scratch);
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
    size_t out_size = (size_t)rows * (size_t)w->rows;
    real *tile, *scratch, *dyq;
    int rc;

    if ((rc = cpu_push(cpu, base_tile_size(w), &tile, e)) < 0 ||
        (rc = cpu_push(cpu, lora_scratch_size(lora, w->cols), &scratch, e)) < 0 ||
        (rc = cpu_push(cpu, out_size, &dyq, e)) < 0)
        goto out;
    if (dx) {
        quantise_rows(cpu->fp8, dy, rows, w->rows, w->part_rows, w->parts, dyq);
        base_backward(w, 0, dyq, rows, dx, tile);
    }
    lora_backward(cpu->fp8, lora, 0, keys, NULL, x, dy, rows, w->cols, w->rows, dx, scratch);
    if (dx)
        round_rows(cpu->fp8, dx, (size_t)rows * (size_t)w->cols);
out:
    arena_release(cpu->arena, mark);
    return rc;
}
