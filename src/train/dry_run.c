// SPDX-License-Identifier: Apache-2.0
// A rank's memory found by running its training on nothing.
#include "train/dry_run.h"

#include "base/memory.h"
#include "comm/dry.h"
#include "net/net.h"
#include "train/optimizer.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS_MOST  1024
#define MODULES_MOST (1 << 20)

// What core.c makes, for one rank without its peers.
struct run {
    const struct dry_job *job;
    struct comm *world, *ep, *replicas;
    struct arena *arena;
    struct ops *ops;
    struct model_weights *weights;
    struct adapters *adapters;
    struct net *net;
    struct optimizer *optimizer;
    struct batch batch; // nobody reads its tokens
};

static int ranks_make(struct run *r, struct fl_error *e)
{
    const struct layout *l = r->job->layout;
    int rc = comm_dry_create(l->rank, l->world, &r->world, e);

    if (rc == 0)
        rc = comm_dry_create(l->ep_rank, l->ep, &r->ep, e);
    return rc < 0 ? rc : comm_dry_create(l->ep_group, l->replicas, &r->replicas, e);
}

static int network_make(struct run *r, struct fl_error *e)
{
    const struct dry_job *job = r->job;
    const struct ops_dry_config ops = {
        .model = job->model,
        .layout = job->layout,
        .arena = r->arena,
        .cpu = job->cpu,
        .numerics = job->spec->numerics,
        .threads = job->threads,
        .skew = job->skew,
    };
    int rc;

    if ((rc = ops_dry_create(&ops, &r->ops, e)) < 0 ||
        (rc = model_weights_create(job->model, job->layout, r->arena, &r->weights, e)) < 0 ||
        (rc = adapters_create(job->spec, job->model, job->layout, r->arena, &r->adapters, e)) < 0)
        return rc;
    ops_dry_weights(r->ops, r->weights);
    return net_create(&(struct net_config){.spec = job->spec,
                                           .model = job->model,
                                           .layout = job->layout,
                                           .ops = r->ops,
                                           .arena = r->arena,
                                           .ep_comm = r->ep,
                                           .weights = r->weights,
                                           .adapters = r->adapters},
                      &r->net, e);
}

static void batch_fill(struct run *r)
{
    const struct spec *spec = r->job->spec;
    struct batch *b = &r->batch;

    b->samples = spec->micro_batch_size;
    b->tokens = b->samples * spec->max_length;
    b->target_count = b->tokens;
    b->starts = memory_zeroed((size_t)b->samples + 1, sizeof *b->starts);
    for (int s = 0; s < b->samples; s++)
        b->starts[s + 1] = (s + 1) * spec->max_length;
}

static int steps_run(struct run *r, struct fl_error *e)
{
    const struct dry_job *job = r->job;
    const struct optimizer_config config = {
        .spec = job->spec,
        .adapters = r->adapters,
        .ops = r->ops,
        .arena = r->arena,
        .world = r->world,
        .replicas = r->replicas,
    };
    struct net_loss loss;
    double norm;
    int rc;

    batch_fill(r);
    if ((rc = optimizer_create(&config, &r->optimizer, e)) < 0 ||
        (rc = optimizer_clear(r->optimizer, e)) < 0 ||
        (rc = net_train(r->net, &r->batch, 0, 1, 1, &loss, e)) < 0 ||
        (rc = optimizer_reduce(r->optimizer, &norm, e)) < 0 ||
        (rc = optimizer_step(r->optimizer, job->spec->lr, norm, e)) < 0)
        return rc;
    return spec_evaluates(job->spec) ? net_evaluate(r->net, &r->batch, &loss, e) : 0;
}

static void result_take(struct run *r, struct dry_result *result)
{
    struct arena_stats stats;

    arena_stats_get(r->arena, &stats);
    memcpy(result->peak, stats.peak, sizeof result->peak);
    memcpy(result->at_peak, stats.at_peak, sizeof result->at_peak);
    ops_dry_sight(r->ops, &result->sight);
}

// The network counts rows in int, and nobody waits for a model of a million modules.
static int job_check(const struct dry_job *job, struct fl_error *e)
{
    const struct spec *spec = job->spec;
    const struct model *m = job->model;
    double rows = (double)spec->micro_batch_size * spec->max_length * m->top_k;

    if (rows * job->layout->ep > INT_MAX)
        return error_set(e, -ERANGE,
                         "%s: micro_batch_size %d x max_length %d tokens of %d ranks are more rows "
                         "than a layer can count: lower either",
                         spec->source, spec->micro_batch_size, spec->max_length, job->layout->ep);
    if (m->layers > LAYERS_MOST || (double)m->layers * job->layout->experts_local > MODULES_MOST)
        return error_set(e, -ERANGE,
                         "%s: %d layers of %d experts a rank: no plan is made beyond %d layers or "
                         "%d experts in all: check the model's config.json",
                         spec->source, m->layers, job->layout->experts_local, LAYERS_MOST,
                         MODULES_MOST);
    return 0;
}

int dry_run(const struct dry_job *job, struct dry_result *result, struct fl_error *e)
{
    struct run r = {.job = job};
    int rc;

    if ((rc = job_check(job, e)) < 0 || (rc = ranks_make(&r, e)) < 0 ||
        (rc = arena_create_dry(0, &r.arena, e)) < 0 || (rc = network_make(&r, e)) < 0 ||
        (rc = steps_run(&r, e)) < 0)
        goto out;
    result_take(&r, result);
out:
    free(r.batch.starts);
    optimizer_destroy(r.optimizer);
    net_destroy(r.net);
    adapters_destroy(r.adapters);
    model_weights_destroy(r.weights);
    ops_destroy(r.ops);
    arena_destroy(r.arena);
    comm_destroy(r.replicas);
    comm_destroy(r.ep);
    comm_destroy(r.world);
    return rc;
}
