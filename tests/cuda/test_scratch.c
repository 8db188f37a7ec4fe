// SPDX-License-Identifier: Apache-2.0
// The GPU backend's real operations, with launchers that launch nothing, beside the dry run's: one
// allocates after the other what the other does, whatever the job.
#include "unit/check.h"

#include "comm/dry.h"
#include "mem/backing.h"
#include "net/net.h"
#include "ops/dry/routing.h"
#include "train/dry_run.h"
#include "train/optimizer.h"
#include "unit/random_jobs.h"

#include <stdio.h>
#include <stdlib.h>

#define JOBS 3000

// Every allocation of a run: where and how much.
struct trace {
    struct taken {
        void *at;
        size_t bytes;
    } * list;
    size_t count, room;
};

// A rank of a job, on the GPU that does nothing or on the dry backend.
struct run {
    struct spec *spec;
    struct model model;
    struct layout layout;
    double skew;
    int64_t capacity;
    struct comm *world, *ep, *replicas;
    struct arena *arena;
    struct ops *ops;
    struct ops real; // of ops, before its routing is forced
    struct model_weights *weights;
    struct adapters *adapters;
    struct net *net;
    struct optimizer *optimizer;
    struct fl_error e;
};

static struct run run;
static struct trace *trace; // of the run

static void taken(void *at, size_t bytes)
{
    if (trace->count == trace->room)
        trace->list =
            memory_resize(trace->list, trace->room = 2 * trace->room + 1000, sizeof *trace->list);
    trace->list[trace->count++] = (struct taken){at, bytes};
}

static int router_forward(struct ops *ops, const void *h, const float *weight, int tokens,
                          int64_t capacity, bool replay, struct routing *routing,
                          struct fl_error *e)
{
    run.capacity = capacity;
    return run.real.router_forward(ops, h, weight, tokens, capacity, replay, routing, e);
}

// The routing of the dry run's scenario.
static int dispatch_plan(struct ops *ops, const struct routing *routing, int tokens, int32_t *order,
                         int32_t *position, int64_t *counts, struct fl_error *e)
{
    int rc = run.real.dispatch_plan(ops, routing, tokens, order, position, counts, e);

    dry_routing_count(&(struct dry_routing){.tokens = tokens,
                                            .top_k = run.model.top_k,
                                            .experts = run.model.experts,
                                            .experts_local = run.layout.experts_local,
                                            .expert_first = run.layout.expert_first,
                                            .capacity = run.capacity,
                                            .skew = run.skew},
                      counts);
    return rc;
}

static void ops_open(bool dry)
{
    if (dry) {
        check_ok(ops_dry_create(&(struct ops_dry_config){.model = &run.model,
                                                         .layout = &run.layout,
                                                         .arena = run.arena,
                                                         .skew = run.skew},
                                &run.ops, &run.e),
                 &run.e);
        return;
    }
    check_ok(ops_cuda_create(&run.model, run.arena, &run.ops, &run.e), &run.e);
    run.real = *run.ops;
    run.ops->router_forward = router_forward;
    run.ops->dispatch_plan = dispatch_plan;
}

static void run_open(bool dry)
{
    struct run *r = &run;
    const struct layout *l = &r->layout;
    struct backing *backing = backing_dry();

    check_ok(comm_dry_create(l->rank, l->world, &r->world, &r->e), &r->e);
    check_ok(comm_dry_create(l->ep_rank, l->ep, &r->ep, &r->e), &r->e);
    check_ok(comm_dry_create(l->ep_group, l->replicas, &r->replicas, &r->e), &r->e);
    backing->opened = taken;
    check_ok(arena_create(backing, 0, &r->arena, &r->e), &r->e);
    ops_open(dry);
    check_ok(model_weights_create(&r->model, l, r->arena, &r->weights, &r->e), &r->e);
    check_ok(adapters_create(r->spec, &r->model, l, r->arena, &r->adapters, &r->e), &r->e);
    check_ok(net_create(&(struct net_config){.spec = r->spec,
                                             .model = &r->model,
                                             .layout = l,
                                             .ops = r->ops,
                                             .arena = r->arena,
                                             .ep_comm = r->ep,
                                             .weights = r->weights,
                                             .adapters = r->adapters},
                        &r->net, &r->e),
             &r->e);
    check_ok(optimizer_create(&(struct optimizer_config){r->spec, r->adapters, r->ops, r->arena,
                                                         r->world, r->replicas},
                              &r->optimizer, &r->e),
             &r->e);
}

static void run_steps(void)
{
    struct run *r = &run;
    int samples = r->spec->micro_batch_size, length = r->spec->max_length;
    struct batch *batch = batch_create((size_t)(samples * length), (size_t)samples);
    struct net_loss loss;
    double norm;

    batch->samples = samples;
    batch->tokens = samples * length;
    for (int s = 0; s <= samples; s++)
        batch->starts[s] = s * length;
    check_ok(optimizer_clear(r->optimizer, &r->e), &r->e);
    check_ok(net_train(r->net, batch, 0, 1, 1, &loss, &r->e), &r->e);
    check_ok(optimizer_reduce(r->optimizer, &norm, &r->e), &r->e);
    check_ok(optimizer_step(r->optimizer, 1e-4, norm, &r->e), &r->e);
    if (spec_evaluates(r->spec))
        check_ok(net_evaluate(r->net, batch, &loss, &r->e), &r->e);
    batch_destroy(batch);
}

static void run_close(void)
{
    optimizer_destroy(run.optimizer);
    net_destroy(run.net);
    adapters_destroy(run.adapters);
    model_weights_destroy(run.weights);
    ops_destroy(run.ops);
    arena_destroy(run.arena);
    comm_destroy(run.replicas);
    comm_destroy(run.ep);
    comm_destroy(run.world);
}

// Runs the job and leaves what it took, and the arena's word on it.
static void run_trace(bool dry, struct trace *to, struct arena_stats *stats)
{
    *to = (struct trace){0};
    trace = to;
    run_open(dry);
    run_steps();
    arena_stats_get(run.arena, stats);
    run_close();
}

static void traces_compare(int number, const char *text, const struct trace *dry,
                           const struct trace *ours)
{
    for (size_t i = 0; i < dry->count && i < ours->count; i++)
        if (dry->list[i].at != ours->list[i].at || dry->list[i].bytes != ours->list[i].bytes)
            fail_msg("job %d: allocation %zu: %zu bytes at %p in the dry run, %zu at %p of the "
                     "operations\n%s",
                     number, i, dry->list[i].bytes, dry->list[i].at, ours->list[i].bytes,
                     ours->list[i].at, text);
    assert_int_equal(dry->count, ours->count);
}

static void same(int number, const char *text, const char *what, uint64_t dry, uint64_t ours)
{
    if (dry != ours)
        fail_msg("job %d: %s: %llu bytes in the dry run, %llu of the operations\n%s", number, what,
                 (unsigned long long)dry, (unsigned long long)ours, text);
}

static void the_same_allocations(void **state)
{
    (void)state;
    for (int i = 0; i < JOBS; i++) {
        int ep = drawn(1, 8), world = ep * drawn(1, 2);
        char *text = job_draw(ep, "backend: cuda");
        struct dry_result dry;
        struct arena_stats stats;
        struct trace ours, dry_trace;
        struct dry_job job;
        run = (struct run){.model = model_draw(ep), .skew = ROUTING_WORST};
        if (drawn(0, 1))
            run.skew = drawn(1, 6);
        check_ok(spec_parse_yaml(text, strlen(text), "job.yaml", &run.spec, &run.e), &run.e);
        check_ok(layout_make(run.spec, &run.model, world, drawn(0, world - 1), &run.layout, &run.e),
                 &run.e);
        job = (struct dry_job){run.spec, &run.model, &run.layout, false, 1, run.skew};
        check_ok(dry_run(&job, &dry, &run.e), &run.e);
        run_trace(true, &dry_trace, &stats);
        run_trace(false, &ours, &stats);
        traces_compare(i, text, &dry_trace, &ours);
        for (int c = 0; c < MEMORY_CATEGORIES; c++) {
            const char *name = memory_category_name((enum memory_category)c);
            same(i, text, name, dry.peak[c], stats.peak[c]);
            same(i, text, name, dry.at_peak[c], stats.at_peak[c]);
        }
        same(i, text, "total", dry.sight.peak_total, stats.peak_total);
        same(i, text, "mapped", dry.sight.mapped, stats.mapped_total);
        same(i, text, "largest transient", dry.sight.largest, stats.largest);
        free(ours.list);
        free(dry_trace.list);
        spec_destroy(run.spec);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_allocations)};

    return cmocka_run_group_tests_name("cuda scratch", tests, NULL, NULL);
}
