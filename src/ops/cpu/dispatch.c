// SPDX-License-Identifier: Apache-2.0
// Where rows go: to the ranks of their experts, there into groups, and back into their tokens.
#include "ops/cpu/cpu.h"

#include <string.h>

int cpu_dispatch_plan(struct ops *ops, const struct routing *routing, int tokens, int32_t *order,
                      int32_t *position, int64_t *counts, struct fl_error *e)
{
    int slots = tokens * ops->model->top_k;
    int32_t row = 0;

    (void)e;
    for (int i = 0; i < ops->model->experts; i++) {
        int32_t first = row;
        for (int32_t s = 0; s < slots; s++) {
            if (routing->ids[s] != i)
                continue;
            position[s] = routing->kept[s] ? row : -1;
            if (routing->kept[s])
                order[row++] = s;
        }
        counts[i] = row - first;
    }
    return 0;
}

int cpu_regroup_plan(struct ops *ops, const int64_t *counts, int sources, int experts,
                     int32_t *index, struct fl_error *e)
{
    int64_t row = 0;

    (void)ops;
    (void)e;
    for (int i = 0; i < experts; i++) {
        int64_t arrival = 0;
        for (int at = 0; at < sources * experts; at++) {
            for (int64_t r = 0; r < counts[at] && at % experts == i; r++)
                index[row++] = (int32_t)(arrival + r);
            arrival += counts[at];
        }
    }
    return 0;
}

int cpu_rows_gather(struct ops *ops, const void *from, const int32_t *index, int divide, int rows,
                    size_t row_bytes, void *to, struct fl_error *e)
{
    (void)ops;
    (void)e;
#pragma omp parallel for schedule(static)
    for (int i = 0; i < rows; i++) {
        char *row = (char *)to + (size_t)i * row_bytes;
        if (index[i] < 0)
            memset(row, 0, row_bytes);
        else
            memcpy(row, (const char *)from + (size_t)(index[i] / divide) * row_bytes, row_bytes);
    }
    return 0;
}

int cpu_rows_scatter(struct ops *ops, const void *from, const int32_t *index, int rows,
                     size_t row_bytes, void *to, struct fl_error *e)
{
    (void)ops;
    (void)e;
#pragma omp parallel for schedule(static)
    for (int i = 0; i < rows; i++)
        memcpy((char *)to + (size_t)index[i] * row_bytes,
               (const char *)from + (size_t)i * row_bytes, row_bytes);
    return 0;
}

int cpu_combine(struct ops *ops, const void *rows, const int32_t *position, const real *weights,
                const void *residual, int tokens, void *out, struct fl_error *e)
{
    bool fp8 = cpu_of(ops)->fp8;
    size_t hidden = (size_t)ops->model->hidden, top_k = (size_t)ops->model->top_k;

    (void)e;
#pragma omp parallel for schedule(static)
    for (int t = 0; t < tokens; t++) {
        real *to = (real *)out + (size_t)t * hidden;
        if (residual)
            memmove(to, (const real *)residual + (size_t)t * hidden, hidden * sizeof(real));
        else
            memset(to, 0, hidden * sizeof(real));
        for (size_t s = (size_t)t * top_k; s < (size_t)(t + 1) * top_k; s++) {
            const real *from = rows;
            real weight = weights ? weights[s] : 1;
            if (position[s] < 0)
                continue;
            from += (size_t)position[s] * hidden;
            for (size_t c = 0; c < hidden; c++)
                to[c] += weight * from[c];
        }
        for (size_t c = 0; c < hidden; c++)
            to[c] = round_to_bf16(fp8, to[c]);
    }
    return 0;
}
