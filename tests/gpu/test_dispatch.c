// SPDX-License-Identifier: Apache-2.0
// Dispatch on the device against fp64 and the CPU's operations; with --time, its rates
// at the 30B shapes.
#include "gpu_fixture.h"

#include "ops/cuda/routing.h"

// skew: experts are drawn as unit^skew.
static void plan_case(int tokens, int experts, int top_k, double skew, unsigned drop)
{
    const struct model model = {.experts = experts, .top_k = top_k};
    size_t slots = (size_t)tokens * (size_t)top_k, sent = 0;
    struct routing host = {0}, device = {0};
    int32_t *order, *position, *our_order, *our_position, *device_order, *device_position;
    int64_t *counts, *our_counts;
    struct gpu g;

    gpu_open(&g, &model);
    ALLOC(slots, host.ids);
    ALLOC(slots, host.kept);
    ALLOC(slots, order);
    ALLOC(slots, position);
    ALLOC(slots, our_order);
    ALLOC(slots, our_position);
    ALLOC((size_t)experts, counts);
    ALLOC((size_t)experts, our_counts);
    for (size_t s = 0; s < slots; s++) {
        host.ids[s] = (int32_t)(experts * pow(random_unit(), skew));
        host.kept[s] = random_u32() % 100 >= drop;
    }
    device.ids = gpu_copy(&g, host.ids, slots * 4);
    device.kept = gpu_copy(&g, host.kept, slots);
    device_order = gpu_alloc(&g, slots * 4);
    device_position = gpu_alloc(&g, slots * 4);
    OK(&g,
       cuda_dispatch_plan(g.ops, &device, tokens, device_order, device_position, our_counts, &g.e));
    OK(&g, g.cpu->dispatch_plan(g.cpu, &host, tokens, order, position, counts, &g.e));
    for (int i = 0; i < experts; i++)
        sent += (size_t)counts[i];
    gpu_read(&g, our_order, device_order, slots * 4);
    gpu_read(&g, our_position, device_position, slots * 4);
    report(!memcmp(counts, our_counts, (size_t)experts * 8) &&
               !memcmp(order, our_order, sent * 4) && !memcmp(position, our_position, slots * 4),
           "plan of %d tokens for %d of %d experts, skew %g, %u %% dropped", tokens, top_k, experts,
           skew, drop);
    gpu_close(&g);
    free(host.ids);
    free(host.kept);
    free(order);
    free(position);
    free(our_order);
    free(our_position);
    free(counts);
    free(our_counts);
}

static void regroup_case(int sources, int experts, unsigned most)
{
    const struct model model = {0};
    size_t count = (size_t)sources * (size_t)experts, rows = 0;
    int64_t *counts;
    int32_t *index, *ours, *device;
    struct gpu g;

    gpu_open(&g, &model);
    ALLOC(count, counts);
    for (size_t i = 0; i < count; i++)
        rows += (size_t)(counts[i] = i % 7 == 2 ? 0 : random_u32() % (most + 1));
    ALLOC(rows, index);
    ALLOC(rows, ours);
    device = gpu_alloc(&g, rows * 4);
    OK(&g, cuda_regroup_plan(g.ops, counts, sources, experts, device, &g.e));
    OK(&g, g.cpu->regroup_plan(g.cpu, counts, sources, experts, index, &g.e));
    gpu_read(&g, ours, device, rows * 4);
    report(!memcmp(index, ours, rows * 4), "%zu rows of %d sources for %d experts regrouped", rows,
           sources, experts);
    gpu_close(&g);
    free(counts);
    free(index);
    free(ours);
}

static void rows_case(int rows, size_t row_bytes, int divide)
{
    const struct model model = {0};
    size_t bytes = (size_t)rows * row_bytes;
    int32_t *index;
    uint8_t *from, *expected, *ours;
    void *device_from, *device_to, *device_index;
    struct gpu g;

    gpu_open(&g, &model);
    ALLOC((size_t)rows, index);
    ALLOC(bytes, from);
    ALLOC(bytes, expected);
    ALLOC(bytes, ours);
    for (size_t i = 0; i < bytes; i++)
        from[i] = (uint8_t)random_u32();
    for (int i = 0; i < rows; i++)
        index[i] = i % 11 == 4 ? -1 : (int32_t)(random_u32() % (uint32_t)(rows * divide));
    device_from = gpu_copy(&g, from, bytes);
    device_to = gpu_alloc(&g, bytes);
    device_index = gpu_copy(&g, index, (size_t)rows * 4);
    OK(&g, cuda_rows_gather(g.ops, device_from, device_index, divide, rows, row_bytes, device_to,
                            &g.e));
    OK(&g, g.cpu->rows_gather(g.cpu, from, index, divide, rows, row_bytes, expected, &g.e));
    gpu_read(&g, ours, device_to, bytes);
    report(!memcmp(ours, expected, bytes), "%d rows of %zu bytes gathered", rows, row_bytes);
    for (int i = 0; i < rows; i++)
        index[i] = (int32_t)((i * 7919ll + 3) % rows); // a permutation: 7919 is prime
    device_index = gpu_copy(&g, index, (size_t)rows * 4);
    OK(&g, cuda_rows_scatter(g.ops, device_from, device_index, rows, row_bytes, device_to, &g.e));
    OK(&g, g.cpu->rows_scatter(g.cpu, from, index, rows, row_bytes, expected, &g.e));
    gpu_read(&g, ours, device_to, bytes);
    report(!memcmp(ours, expected, bytes), "%d rows of %zu bytes scattered", rows, row_bytes);
    gpu_close(&g);
    free(index);
    free(from);
    free(expected);
    free(ours);
}

static void combine_case(int tokens, int hidden, int top_k, bool weighted, bool with_residual)
{
    const struct model model = {.hidden = hidden, .top_k = top_k};
    int slots = tokens * top_k;
    float *weights = random_floats((size_t)slots, 1), *rows, *residual, *expected, *ours;
    void *device_rows, *device_residual, *device_weights, *device_position;
    int32_t *position;
    struct gpu g;

    gpu_open(&g, &model);
    ALLOC((size_t)slots, position);
    ALLOC((size_t)tokens * (size_t)hidden, expected);
    rows = random_rows(&g, slots, hidden, 1, &device_rows);
    residual = random_rows(&g, tokens, hidden, 3, &device_residual);
    for (int s = 0; s < slots; s++)
        position[s] = s % 13 == 5 ? -1 : (int32_t)((s * 7919ll + 3) % slots);
    device_weights = gpu_copy(&g, weights, (size_t)slots * 4);
    device_position = gpu_copy(&g, position, (size_t)slots * 4);
    OK(&g, g.cpu->combine(g.cpu, rows, position, weighted ? weights : NULL,
                          with_residual ? residual : NULL, tokens, expected, &g.e));
    OK(&g, cuda_combine(g.ops, device_rows, device_position, weighted ? device_weights : NULL,
                        with_residual ? device_residual : NULL, tokens, device_residual, &g.e));
    ours = read_rows(&g, device_residual, tokens, hidden);
    report(!memcmp(ours, expected, (size_t)tokens * (size_t)hidden * sizeof *ours),
           "combined: %d tokens of %d, %d rows each%s%s", tokens, hidden, top_k,
           weighted ? ", weighted" : "", with_residual ? ", residual" : "");
    gpu_close(&g);
    free(weights);
    free(rows);
    free(residual);
    free(expected);
    free(ours);
    free(position);
}

#define SETS 4

struct timed {
    struct routing routing;
    void *rows[SETS], *to[SETS];
    int32_t *order, *position;
    int64_t counts[128];
    size_t row_bytes;
    int tokens;
};

static void plan_call(struct gpu *g, void *context, int set)
{
    struct timed *t = context;

    (void)set;
    OK(g,
       cuda_dispatch_plan(g->ops, &t->routing, t->tokens, t->order, t->position, t->counts, &g->e));
}

static void gather_call(struct gpu *g, void *context, int set)
{
    struct timed *t = context;

    OK(g, cuda_rows_gather(g->ops, t->rows[set], t->order, 8, t->tokens * 8, t->row_bytes,
                           t->to[set], &g->e));
}

static void scatter_call(struct gpu *g, void *context, int set)
{
    struct timed *t = context;

    OK(g, cuda_rows_scatter(g->ops, t->to[set], t->order, t->tokens * 8, t->row_bytes,
                            t->to[(set + 1) % SETS], &g->e));
}

static void combine_call(struct gpu *g, void *context, int set)
{
    struct timed *t = context;

    OK(g, cuda_combine(g->ops, t->to[set], t->position, t->routing.weights, t->rows[set], t->tokens,
                       t->rows[set], &g->e));
}

static void time_all(void)
{
    const struct model model = {.hidden = 2048, .experts = 128, .top_k = 8};
    struct timed t = {.tokens = 4096};
    size_t rows = (size_t)t.tokens * 8;
    double bytes, us;
    int32_t *ids;
    uint8_t *kept;
    float *weights = random_floats(rows, 1);
    struct gpu g;

    gpu_open(&g, &model);
    ALLOC(rows, ids);
    ALLOC(rows, kept);
    for (size_t i = 0; i < rows; i++) {
        ids[i] = (int32_t)(random_u32() % 128);
        kept[i] = 1;
    }
    for (int i = 0; i < SETS; i++) {
        free(random_rows(&g, t.tokens, model.hidden, 1, &t.rows[i]));
        free(random_rows(&g, (int)rows, model.hidden, 1, &t.to[i]));
    }
    t.routing = (struct routing){.ids = gpu_copy(&g, ids, rows * 4),
                                 .kept = gpu_copy(&g, kept, rows),
                                 .weights = gpu_copy(&g, weights, rows * 4)};
    t.order = gpu_alloc(&g, rows * 4);
    t.position = gpu_alloc(&g, rows * 4);
    us = gpu_time(&g, SETS, plan_call, &t);
    printf("# dispatch plan, waited for: %.1f us\n", us);
    t.row_bytes = quantised_row_bytes(model.hidden);
    bytes = (double)(rows + (size_t)t.tokens) * (double)t.row_bytes;
    us = gpu_time(&g, SETS, gather_call, &t);
    printf("# gather of 32768 quantised rows: %.1f us, %.0f GB/s\n", us, bytes / us * 1e-3);
    t.row_bytes = stream_row_bytes(model.hidden);
    bytes = 2 * (double)rows * (double)t.row_bytes;
    us = gpu_time(&g, SETS, scatter_call, &t);
    printf("# scatter of 32768 stream rows: %.1f us, %.0f GB/s\n", us, bytes / us * 1e-3);
    bytes = (double)(rows + 2 * (size_t)t.tokens) * (double)t.row_bytes;
    us = gpu_time(&g, SETS, combine_call, &t);
    printf("# combine of 32768 rows: %.1f us, %.0f GB/s\n", us, bytes / us * 1e-3);
    gpu_close(&g);
    free(weights);
    free(ids);
    free(kept);
}

static void dispatch_cases(int most)
{
    static const size_t sizes[] = {1, 3, 4, 8, 12, 24, 64, 250, 1000, 2112, 4096};

    plan_case(0, 16, 2, 1, 0);
    plan_case(1, 1, 1, 1, 0);
    plan_case(33, 7, 3, 1, 30);
    plan_case(129, 512, 8, 1, 0);
    plan_case(most, 128, 8, 3, 10);
    plan_case(most, 128, 8, 40, 0);
    plan_case(100, 60, 64, 1, 100);
    regroup_case(1, 128, 300);
    regroup_case(8, 16, 300);
    regroup_case(5, 3, 1);
    regroup_case(2, 2, 0);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        rows_case(i % 3 ? 777 : 100, sizes[i], i % 2 ? 8 : 1);
    rows_case(0, 16, 1);
    combine_case(0, 64, 8, true, true);
    combine_case(300, 2048, 8, true, true);
    combine_case(77, 333, 3, true, true);
    combine_case(10, 64, 20, false, true);
    combine_case(129, 260, 8, false, false);
}

int main(int argc, char **argv)
{
    bool small = argc > 1 && !strcmp(argv[1], "--small");
    int devices = 0;

    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("1..0 # SKIP no GPU\n");
        return 0;
    }
    dispatch_cases(small ? 300 : 4096);
    if (argc > 1 && !strcmp(argv[1], "--time"))
        time_all();
    printf("1..%d\n", passed + failed);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
