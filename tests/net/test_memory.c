// SPDX-License-Identifier: Apache-2.0
// The plan and the dry run beside what the arena really gave, category by category. The batches are
// full and the routing sends rank 0 all it can get: there both are right to the byte, and no rank
// takes more. Rank 0 speaks TAP. Usage:
// test_memory RANKS, with 1, 2 or 4.
#include "base/memory.h"
#include "comm/comm.h"
#include "job/plan.h"
#include "net/net.h"
#include "ops/dry/routing.h"
#include "train/dry_run.h"
#include "train/optimizer.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct fl_error error;

static const struct model tiny = {.layers = 4,
                                  .hidden = 256,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .head_dim = 128,
                                  .experts = 16,
                                  .top_k = 4,
                                  .expert_width = 128,
                                  .vocab = 4096,
                                  .rms_eps = 1e-6,
                                  .rope_theta = 1e4,
                                  .norm_topk_prob = true,
                                  .fp8 = true};

static const struct model odd = {.layers = 2,
                                 .hidden = 192,
                                 .heads = 3,
                                 .kv_heads = 1,
                                 .head_dim = 48,
                                 .experts = 8,
                                 .top_k = 4, // more than an EP rank's two experts
                                 .expert_width = 200,
                                 .vocab = 61,
                                 .rms_eps = 1e-6,
                                 .rope_theta = 1e4,
                                 .fp8 = true};

static const struct model wordy = {.layers = 1,
                                   .hidden = 64,
                                   .heads = 2,
                                   .kv_heads = 2,
                                   .head_dim = 32,
                                   .experts = 4,
                                   .top_k = 1,
                                   .expert_width = 32,
                                   .vocab = 20011,
                                   .rms_eps = 1e-6,
                                   .rope_theta = 1e4,
                                   .tied_embeddings = true,
                                   .fp8 = true};

static const struct {
    const struct model *model;
    int threads;
    const char *job;
} cases[] = {
    {&tiny, 1, "max_length: 64\nlora_rank: 8\nval_dataset: v\n"},
    {&tiny, 2, "max_length: 100\nmicro_batch_size: 3\nlora_rank: 100\nlora_dropout: 0\n"},
    {&tiny, 1, "max_length: 1024\nnumerics: exact\nlora_rank: 1\n"},
    {&tiny, 4, "max_length: 128\nmicro_batch_size: 2\nmoe_expert_capacity_factor: 0.8\n"},
    {&tiny, 2,
     "max_length: 90\nmicro_batch_size: 2\nmoe_expert_capacity_factor: 0.3\nval_dataset: v\n"},
    {&odd, 1, "max_length: 333\nlora_rank: 12\nval_dataset: v\n"},
    {&odd, 3, "max_length: 50\nmicro_batch_size: 5\ntarget_modules: [q_proj, k_proj, o_proj]\n"},
    {&odd, 1, "max_length: 129\ntarget_modules: [linear_fc2]\nmoe_expert_capacity_factor: 0.5\n"},
    {&wordy, 2, "max_length: 40\nmicro_batch_size: 7\nval_dataset: v\n"},
    {&wordy, 1, "max_length: 700\ntarget_modules: [linear_qkv]\nnumerics: exact\n"},
};

#define CASES (int)(sizeof cases / sizeof *cases)

// One rank at work on one case.
struct run {
    const struct model *model;
    struct spec *spec;
    struct plan plan;
    struct dry_result dry;
    struct comm *world, *ep, *replicas;
    struct arena *arena;
    struct ops *ops;
    struct model_weights *weights;
    struct adapters *adapters;
    struct net *net;
    struct optimizer *optimizer;
    struct batch *batch;
    int32_t *routing;
    uint8_t *kept;
};

static int job_plan(struct run *r, int index)
{
    char text[512];
    int n = snprintf(text, sizeof text,
                     "model: m\ndataset: d\noutput_dir: o\nbackend: cpu\nglobal_batch_size: 840\n"
                     "expert_model_parallel_size: %d\n%s",
                     comm_size(r->world), cases[index].job);
    int rc = spec_parse_yaml(text, (size_t)n, "test", &r->spec, &error);

    r->model = cases[index].model;
    if (rc == 0)
        rc = plan_make_threads(r->spec, r->model, comm_size(r->world), cases[index].threads, 0,
                               &r->plan, &error);
    if (rc == 0)
        rc = dry_run(&(struct dry_job){r->spec, r->model, &r->plan.layout, true,
                                       cases[index].threads, ROUTING_WORST},
                     &r->dry, &error);
    if (rc == 0)
        rc = layout_make(r->spec, r->model, comm_size(r->world), comm_rank(r->world),
                         &r->plan.layout, &error);
    return rc;
}

static void batch_fill(struct run *r)
{
    int samples = r->spec->micro_batch_size, length = r->spec->max_length;
    struct batch *b = r->batch = batch_create((size_t)(samples * length), (size_t)samples);

    b->tokens = samples * length;
    b->samples = samples;
    b->starts[0] = 0;
    for (int s = 0; s < samples; s++)
        b->starts[s + 1] = (s + 1) * length;
    for (int t = 0; t < b->tokens; t++) {
        b->ids[t] = t % r->model->vocab;
        b->targets[t] = (t * 7) % r->model->vocab;
        b->positions[t] = t % length;
        b->keys[t] = (uint64_t)t;
    }
    b->target_count = b->tokens;
}

// All choices to the first rank's experts, as far as it has enough of them; with a capacity
// (factor above 0), more to every expert than it takes.
static void routing_fill(struct run *r, double factor)
{
    const struct model *m = r->model;
    int tokens = r->batch->tokens, local = r->plan.layout.experts_local;
    size_t layer = (size_t)(tokens * m->top_k);
    int64_t *taken = memory_zeroed((size_t)m->experts, sizeof *taken);
    int64_t most = factor > 0 ? (int64_t)ceil(tokens * m->top_k * factor / m->experts) : INT64_MAX;

    free(r->routing);
    free(r->kept);
    r->routing = memory_zeroed((size_t)m->layers * layer, sizeof *r->routing);
    r->kept = memory_zeroed((size_t)m->layers * layer, 1);
    for (int t = 0; t < tokens; t++)
        for (int k = 0; k < m->top_k; k++) {
            size_t slot = (size_t)(t * m->top_k + k);
            int expert = factor > 0         ? (t * m->top_k + k) % m->experts
                         : m->top_k > local ? k
                                            : (t + k) % local;
            r->routing[slot] = expert;
            r->kept[slot] = taken[expert]++ < most;
        }
    for (int l = 1; l < m->layers; l++) {
        memcpy(r->routing + (size_t)l * layer, r->routing, layer * sizeof *r->routing);
        memcpy(r->kept + (size_t)l * layer, r->kept, layer);
    }
    free(taken);
    net_probe_set(r->net, &(struct net_probe){.routing = r->routing, .kept = r->kept});
}

// The weights stay zero: their values move no byte.
static int run_open(struct run *r, int index)
{
    const struct layout *layout = &r->plan.layout;
    int rc = job_plan(r, index);

    if (rc < 0)
        return rc;
    omp_set_num_threads(cases[index].threads);
    if ((rc = comm_split(r->world, layout->ep_group, layout->ep_rank, &r->ep, &error)) < 0 ||
        (rc = comm_split(r->world, layout->ep_rank, layout->ep_group, &r->replicas, &error)) < 0 ||
        (rc = arena_create_host(0, &r->arena, &error)) < 0 ||
        (rc = ops_cpu_create(r->model, r->spec->numerics, r->arena, &r->ops, &error)) < 0 ||
        (rc = model_weights_create(r->model, layout, r->arena, &r->weights, &error)) < 0 ||
        (rc = adapters_create(r->spec, r->model, layout, r->arena, &r->adapters, &error)) < 0 ||
        (rc = net_create(&(struct net_config){.spec = r->spec,
                                              .model = r->model,
                                              .layout = layout,
                                              .ops = r->ops,
                                              .arena = r->arena,
                                              .ep_comm = r->ep,
                                              .weights = r->weights,
                                              .adapters = r->adapters},
                         &r->net, &error)) < 0)
        return rc;
    return optimizer_create(
        &(struct optimizer_config){r->spec, r->adapters, r->ops, r->arena, r->world, r->replicas},
        &r->optimizer, &error);
}

static int step_run(struct run *r)
{
    struct net_loss loss;
    double norm;
    int rc;

    batch_fill(r);
    routing_fill(r, r->spec->capacity_factor);
    if ((rc = optimizer_clear(r->optimizer, &error)) < 0 ||
        (rc = net_train(r->net, r->batch, 0, 1e-3, 1, &loss, &error)) < 0 ||
        (rc = optimizer_reduce(r->optimizer, &norm, &error)) < 0 ||
        (rc = optimizer_step(r->optimizer, 1e-4, norm, &error)) < 0)
        return rc;
    if (!spec_evaluates(r->spec))
        return 0;
    routing_fill(r, 0); // no capacity limits an evaluation
    return net_evaluate(r->net, r->batch, &loss, &error);
}

static void run_close(struct run *r)
{
    free(r->kept);
    free(r->routing);
    batch_destroy(r->batch);
    optimizer_destroy(r->optimizer);
    net_destroy(r->net);
    adapters_destroy(r->adapters);
    model_weights_destroy(r->weights);
    ops_destroy(r->ops);
    arena_destroy(r->arena);
    comm_destroy(r->replicas);
    comm_destroy(r->ep);
    spec_destroy(r->spec);
}

// One number of the plan: never less than the real one, on the first rank, which got all, the same.
static bool right(const struct run *r, const char *what, uint64_t planned, uint64_t measured)
{
    bool right = comm_rank(r->world) == 0 ? planned == measured : planned >= measured;

    if (!right)
        printf("# rank %d, %s: %llu bytes planned, %llu measured\n", comm_rank(r->world), what,
               (unsigned long long)planned, (unsigned long long)measured);
    return right;
}

static uint64_t plan_compare(const struct run *r)
{
    struct arena_stats stats;
    uint64_t wrong = 0;

    arena_stats_get(r->arena, &stats);
    for (int c = 0; c < MEMORY_CATEGORIES; c++) {
        const char *name = memory_category_name((enum memory_category)c);
        wrong += !right(r, name, r->plan.bytes[c], stats.peak[c]);
        wrong += !right(r, name, r->dry.peak[c], stats.peak[c]);
    }
    wrong += !right(r, "total", r->dry.sight.peak_total, stats.peak_total);
    wrong += !right(r, "mapped", r->dry.sight.mapped, stats.mapped_total);
    wrong += !right(r, "largest transient", r->dry.sight.largest, stats.largest);
    if (comm_rank(r->world) == 0 && (memcmp(r->dry.at_peak, stats.at_peak, sizeof stats.at_peak) ||
                                     r->dry.sight.largest_category != stats.largest_category)) {
        printf("# categories at the peak of the total, or the largest transient's, differ\n");
        wrong++;
    }
    return wrong;
}

int main(int argc, char **argv)
{
    struct comm *world = NULL;
    int size = argc > 1 ? atoi(argv[1]) : 1, failures = 0;
    int rc = size > 1 ? comm_mpi_create(size, &world, &error) : comm_self_create(&world, &error);

    for (int i = 0; i < CASES && rc == 0; i++) {
        struct run r = {.world = world};
        uint64_t wrong = 0;
        rc = run_open(&r, i);
        if (rc == 0)
            rc = step_run(&r);
        if (rc == 0)
            wrong = plan_compare(&r);
        if (rc == 0)
            rc = comm_all_reduce(world, &wrong, 1, COMM_U64, COMM_SUM, &error);
        failures += wrong > 0;
        if (rc == 0 && comm_rank(world) == 0)
            printf("%sok %d - %d ranks, job %d: planned as measured\n", wrong ? "not " : "", i + 1,
                   size, i + 1);
        run_close(&r);
    }
    if (rc == 0 && comm_rank(world) == 0)
        printf("1..%d\n", CASES);
    if (rc < 0)
        fprintf(stderr, "%s\n", error.text);
    comm_destroy(world);
    return rc < 0 || failures;
}
