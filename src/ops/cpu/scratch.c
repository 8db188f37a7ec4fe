// SPDX-License-Identifier: Apache-2.0
// How much scratch the reference backend's operations take.
#include "ops/cpu/scratch.h"

static struct cpu_scratch one(size_t bytes)
{
    return (struct cpu_scratch){1, {bytes}};
}

static void add(struct cpu_scratch *scratch, size_t bytes)
{
    scratch->bytes[scratch->count++] = bytes;
}

size_t cpu_row_size(int cols)
{
    return (size_t)cols * sizeof(real);
}

size_t base_tile_size(const struct fp8_matrix *w)
{
    return (size_t)(w->rows < CPU_TILE_ROWS ? w->rows : CPU_TILE_ROWS) * (size_t)w->cols;
}

int lora_widest_part(const struct lora *lora)
{
    int widest = 0;

    for (int p = 0; p < lora->count; p++)
        widest = lora->part[p].rows > widest ? lora->part[p].rows : widest;
    return widest;
}

// A, B, a block of rows of x, its mask, dx and dy, S and its gradient.
size_t lora_scratch_size(const struct lora *lora, int in)
{
    size_t rank = (size_t)lora->rank, width = (size_t)in, out = (size_t)lora_widest_part(lora);

    if (lora->count == 0)
        return 0;
    return rank * (width + out) + CPU_LORA_ROWS * (3 * width + out + 2 * rank);
}

struct cpu_scratch cpu_linear_forward_scratch(const struct fp8_matrix *w, const struct lora *lora)
{
    struct cpu_scratch scratch = one(base_tile_size(w) * sizeof(real));

    add(&scratch, lora_scratch_size(lora, w->cols) * sizeof(real));
    return scratch;
}

struct cpu_scratch cpu_linear_backward_scratch(const struct fp8_matrix *w, const struct lora *lora,
                                               int rows)
{
    struct cpu_scratch scratch = cpu_linear_forward_scratch(w, lora);

    add(&scratch, (size_t)rows * (size_t)w->rows * sizeof(real));
    return scratch;
}

size_t attention_tile_size(const int32_t *starts, int samples)
{
    int longest = 0;

    for (int s = 0; s < samples; s++)
        if (starts[s + 1] - starts[s] > longest)
            longest = starts[s + 1] - starts[s];
    return CPU_ATTENTION_ROWS * (size_t)longest;
}

// A tile a thread of probabilities.
struct cpu_scratch cpu_attention_forward_scratch(const int32_t *starts, int samples, int threads)
{
    return one(attention_tile_size(starts, samples) * (size_t)threads * sizeof(real));
}

// And one of their gradient.
struct cpu_scratch cpu_attention_backward_scratch(const int32_t *starts, int samples, int threads)
{
    return one(2 * attention_tile_size(starts, samples) * (size_t)threads * sizeof(real));
}

static size_t wide_router_bytes(const struct model *m)
{
    return (size_t)m->experts * (size_t)m->hidden * sizeof(real);
}

struct cpu_scratch cpu_router_forward_scratch(const struct model *m, int tokens, int64_t capacity,
                                              bool replay)
{
    struct cpu_scratch scratch = one(wide_router_bytes(m));

    if (!replay && capacity > 0) // an expert's slots
        add(&scratch, (size_t)tokens * (size_t)m->top_k * sizeof(int32_t));
    return scratch;
}

struct cpu_scratch cpu_router_backward_scratch(const struct model *m, int tokens)
{
    struct cpu_scratch scratch = one(wide_router_bytes(m));

    add(&scratch, (size_t)tokens * (size_t)m->experts * sizeof(real));
    add(&scratch, (size_t)m->experts * sizeof(real));
    return scratch;
}

size_t expert_worker_size(const struct fp8_matrix *w, const struct lora *lora)
{
    return base_tile_size(w) + lora_scratch_size(lora, w->cols);
}

struct cpu_scratch cpu_expert_scratch(const struct fp8_matrix *w, const struct lora *lora,
                                      int threads)
{
    return one(expert_worker_size(w, lora) * (size_t)threads * sizeof(real));
}

// The gradient of gate and up, and that quantised.
struct cpu_scratch cpu_fc1_backward_scratch(const struct fp8_matrix *w, const struct lora *lora,
                                            int rows, int threads)
{
    struct cpu_scratch scratch = cpu_expert_scratch(w, lora, threads);
    size_t bytes = (size_t)rows * (size_t)w->rows * sizeof(real);

    add(&scratch, bytes);
    add(&scratch, bytes);
    return scratch;
}

struct cpu_scratch cpu_head_scratch(const struct model *m)
{
    size_t rows = (size_t)(m->vocab < CPU_HEAD_ROWS ? m->vocab : CPU_HEAD_ROWS);

    return one(rows * (size_t)m->hidden * sizeof(real));
}

struct cpu_scratch cpu_cross_entropy_scratch(int rows)
{
    return one((size_t)rows * sizeof(double));
}

struct cpu_scratch cpu_sum_squares_scratch(size_t count)
{
    return one((count + CPU_SUM_CHUNK - 1) / CPU_SUM_CHUNK * sizeof(double));
}
