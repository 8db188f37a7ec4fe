// SPDX-License-Identifier: Apache-2.0
// The reference backend's table, its memory operations and scratch.
#include "ops/cpu/cpu.h"

#include "base/memory.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

int cpu_push(struct cpu *cpu, const struct cpu_scratch *scratch, void *out[CPU_SCRATCHES],
             struct fl_error *e)
{
    int rc = 0;

    for (int i = 0; i < scratch->count && rc == 0; i++)
        rc = arena_push(cpu->arena, MEMORY_WORKSPACE, scratch->bytes[i], &out[i], e);
    return rc;
}

void round_rows(bool fp8, real *x, size_t count)
{
    if (!fp8)
        return;
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < count; i++)
        x[i] = (real)bf16_round((float)x[i]);
}

static size_t cpu_row_bytes(const struct ops *ops, enum ops_row kind, int cols)
{
    (void)ops;
    (void)kind;
    return cpu_row_size(cols);
}

static int cpu_copy(struct ops *ops, void *to, const void *from, size_t bytes, struct fl_error *e)
{
    (void)ops;
    (void)e;
    if (bytes)
        memcpy(to, from, bytes);
    return 0;
}

static int cpu_zero(struct ops *ops, void *device, size_t bytes, struct fl_error *e)
{
    (void)ops;
    (void)e;
    if (bytes)
        memset(device, 0, bytes);
    return 0;
}

static int cpu_stream_read(struct ops *ops, real *host, const void *x, int rows, int cols,
                           struct fl_error *e)
{
    return cpu_copy(ops, host, x, (size_t)rows * (size_t)cols * sizeof(real), e);
}

static int cpu_staging(struct ops *ops, size_t bytes, void **host, struct fl_error *e)
{
    (void)ops;
    (void)e;
    *host = memory_zeroed(bytes, 1);
    return 0;
}

static void cpu_staging_free(struct ops *ops, void *host)
{
    (void)ops;
    free(host);
}

static void cpu_destroy(struct ops *ops)
{
    free(ops);
}

static const struct ops cpu_table = {
    .name = "cpu",
    .unified = true,
    .destroy = cpu_destroy,
    .staging = cpu_staging,
    .staging_free = cpu_staging_free,
    .row_bytes = cpu_row_bytes,
    .upload = cpu_copy,
    .download = cpu_copy,
    .zero = cpu_zero,
    .stream_read = cpu_stream_read,
    .embed = cpu_embed,
    .norm_forward = cpu_norm_forward,
    .norm_backward = cpu_norm_backward,
    .quantise = cpu_quantise,
    .linear_forward = cpu_linear_forward,
    .linear_backward = cpu_linear_backward,
    .rope_table = cpu_rope_table,
    .rope_forward = cpu_rope_forward,
    .rope_backward = cpu_rope_backward,
    .attention_forward = cpu_attention_forward,
    .attention_backward = cpu_attention_backward,
    .router_forward = cpu_router_forward,
    .router_backward = cpu_router_backward,
    .dispatch_plan = cpu_dispatch_plan,
    .regroup_plan = cpu_regroup_plan,
    .rows_gather = cpu_rows_gather,
    .rows_scatter = cpu_rows_scatter,
    .combine = cpu_combine,
    .fc1_forward = cpu_fc1_forward,
    .fc2_forward = cpu_fc2_forward,
    .fc2_backward = cpu_fc2_backward,
    .fc1_backward = cpu_fc1_backward,
    .head_forward = cpu_head_forward,
    .cross_entropy = cpu_cross_entropy,
    .head_backward = cpu_head_backward,
    .sum_squares = cpu_sum_squares,
    .scale = cpu_scale,
    .adamw = cpu_adamw,
};

int ops_cpu_create(const struct model *model, enum numerics numerics, struct arena *arena,
                   struct ops **out, struct fl_error *e)
{
    struct cpu *cpu = memory_zeroed(1, sizeof *cpu);

    (void)e;
    cpu->table = cpu_table;
    cpu->table.model = model;
    cpu->table.numerics = numerics;
    cpu->arena = arena;
    cpu->threads = omp_get_max_threads();
    cpu->fp8 = numerics == NUMERICS_FP8;
    *out = &cpu->table;
    return 0;
}
