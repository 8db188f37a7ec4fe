// SPDX-License-Identifier: Apache-2.0
// The same loss and gradients with the experts on 1, 2 and 4 ranks; rank 0 speaks TAP. Every rank
// computes the reference alone, four micro-batches one after another, then its own share with the
// others. Usage: test_ranks RANKS, with 1, 2 or 4.
#include "base/memory.h"
#include "base/philox.h"
#include "net/net.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECKPOINT    FL_SOURCE_DIR "/tests/data/tiny-qwen3-moe-fp8"
#define MICRO_BATCHES 4
#define TOKENS        60 // of the largest

// Samples of a micro-batch; the third is empty.
static const int lengths[MICRO_BATCHES][3] = {{30, 1, 29}, {17, 0, 0}, {0, 0, 0}, {5, 40, 0}};

static struct fl_error error;

// One way to run the four micro-batches.
struct run {
    struct spec spec;
    struct layout layout;
    struct arena *arena;
    struct ops *ops;
    struct model_weights *weights;
    struct adapters *adapters;
    struct net *net;
    double loss_sum, aux_loss;
};

static uint32_t hash(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    uint32_t out[4];

    philox4x32((uint32_t[]){a, b, c, d}, (uint32_t[]){5, 6}, out);
    return out[0];
}

// B is zero at the start of a training: then A would have no gradient.
static void params_fill(struct adapters *adapters)
{
    adapters_init(adapters, 3);
    for (const struct adapter *a = adapters->list; a < adapters->list + adapters->count; a++)
        for (uint32_t i = 0; i < (uint32_t)(a->rank * a->out); i++)
            adapters->params[a->b + i] =
                0.1f * philox_uniform(
                           hash(i, (uint32_t)a->layer, (uint32_t)a->target, (uint32_t)a->expert)) -
                0.05f;
}

static int run_open(struct run *r, const struct model *model, int world, int rank, int ep,
                    struct comm *ep_comm)
{
    r->spec = (struct spec){.source = (char *)"test",
                            .numerics = NUMERICS_EXACT,
                            .lora_targets = LORA_ALL_LINEAR,
                            .lora_rank = 4,
                            .lora_alpha = 8,
                            .lora_dropout = 0.1,
                            .aux_loss_coeff = 0.01,
                            .capacity_factor = 1.5,
                            .tensor_parallel = 1,
                            .expert_parallel = ep,
                            .micro_batch_size = 1,
                            .global_batch_size = MICRO_BATCHES,
                            .seed = 1234};
    int rc;

    if ((rc = layout_make(&r->spec, model, world, rank, &r->layout, &error)) < 0 ||
        (rc = arena_create_host(0, &r->arena, &error)) < 0 ||
        (rc = ops_cpu_create(model, NUMERICS_EXACT, r->arena, &r->ops, &error)) < 0 ||
        (rc = model_weights_create(model, &r->layout, r->arena, &r->weights, &error)) < 0 ||
        (rc = model_weights_load(r->weights, CHECKPOINT, model, &r->layout, 1, NULL, NULL, &error)) < 0 ||
        (rc = adapters_create(&r->spec, model, &r->layout, r->arena, &r->adapters, &error)) < 0)
        return rc;
    params_fill(r->adapters);
    return net_create(&(struct net_config){.spec = &r->spec,
                                           .model = model,
                                           .layout = &r->layout,
                                           .ops = r->ops,
                                           .arena = r->arena,
                                           .ep_comm = ep_comm,
                                           .weights = r->weights,
                                           .adapters = r->adapters},
                      &r->net, &error);
}

static void run_close(struct run *r)
{
    net_destroy(r->net);
    adapters_destroy(r->adapters);
    model_weights_destroy(r->weights);
    ops_destroy(r->ops);
    arena_destroy(r->arena);
}

static int micro_batch_run(struct run *r, const struct model *model, int micro)
{
    int32_t ids[TOKENS], targets[TOKENS], positions[TOKENS], starts[4] = {0};
    uint64_t keys[TOKENS];
    struct batch b = {.samples = 3,
                      .ids = ids,
                      .targets = targets,
                      .positions = positions,
                      .starts = starts,
                      .keys = keys};
    struct net_loss loss;
    int rc;

    for (int s = 0; s < 3; s++) {
        for (int i = 0; i < lengths[micro][s]; i++, b.tokens++) {
            uint32_t random = hash((uint32_t)micro, (uint32_t)b.tokens, 77, 0);
            ids[b.tokens] = (int32_t)(random % (uint32_t)model->vocab);
            targets[b.tokens] = i % 3 ? (int32_t)(random / 7 % (uint32_t)model->vocab) : -1;
            positions[b.tokens] = i;
            keys[b.tokens] = (uint64_t)(micro * 1000 + b.tokens);
            b.target_count += targets[b.tokens] >= 0;
        }
        starts[s + 1] = b.tokens;
    }
    rc = net_train(r->net, &b, 9, 0.02, 1.0 / MICRO_BATCHES, &loss, &error);
    r->loss_sum += loss.loss_sum;
    r->aux_loss += loss.aux_loss;
    return rc;
}

static double relative(double ours, double theirs)
{
    return fabs(ours - theirs) / fabs(theirs);
}

// The worst relative distance of this rank's gradients to the reference's.
static double gradients_compare(const struct run *r, const struct run *reference)
{
    double worst = 0;

    for (const struct adapter *a = r->adapters->list; a < r->adapters->list + r->adapters->count;
         a++) {
        const struct adapter *b =
            adapters_find(reference->adapters, a->layer, a->target, a->expert);
        for (int half = 0; half < 2; half++) {
            const real *ours = r->adapters->grads + (half ? a->b : a->a);
            const real *theirs = reference->adapters->grads + (half ? b->b : b->a);
            double difference = 0, norm = 0;
            for (int i = 0; i < a->rank * (half ? a->out : a->in); i++) {
                difference += pow((double)ours[i] - (double)theirs[i], 2);
                norm += pow((double)theirs[i], 2);
            }
            worst = fmax(worst, norm > 0 ? sqrt(difference / norm) : difference > 0);
        }
    }
    return worst;
}

// Sets worst[0 .. 3): loss, aux, gradients.
static int ranks_compare(struct comm *world, const struct model *model, int ep,
                         const struct run *reference, double worst[3])
{
    int size = comm_size(world), rank = comm_rank(world), rc;
    struct comm *ep_comm = NULL, *replicas = NULL;
    struct run r = {0};

    if ((rc = comm_split(world, rank / ep, rank, &ep_comm, &error)) < 0 ||
        (rc = comm_split(world, rank % ep, rank, &replicas, &error)) < 0 ||
        (rc = run_open(&r, model, size, rank, ep, ep_comm)) < 0)
        goto out;
    for (int micro = rank; micro < MICRO_BATCHES && rc == 0; micro += size)
        rc = micro_batch_run(&r, model, micro);
    if (rc < 0 || (rc = comm_all_reduce(world, &r.loss_sum, 1, COMM_F64, COMM_SUM, &error)) < 0 ||
        (rc = comm_all_reduce(world, &r.aux_loss, 1, COMM_F64, COMM_SUM, &error)) < 0 ||
        (rc = comm_all_reduce(world, r.adapters->grads, r.adapters->replicated, COMM_F32, COMM_SUM,
                              &error)) < 0 ||
        (rc = comm_all_reduce(replicas, r.adapters->grads + r.adapters->replicated,
                              r.adapters->expert, COMM_F32, COMM_SUM, &error)) < 0)
        goto out;
    worst[0] = relative(r.loss_sum, reference->loss_sum);
    worst[1] = relative(r.aux_loss, reference->aux_loss);
    worst[2] = gradients_compare(&r, reference);
    rc = comm_all_reduce(world, worst, 3, COMM_F64, COMM_MAX, &error);
out:
    run_close(&r);
    comm_destroy(replicas);
    comm_destroy(ep_comm);
    return rc;
}

int main(int argc, char **argv)
{
    struct comm *self = NULL, *world = NULL;
    struct run reference = {0};
    struct model model;
    int size = argc > 1 ? atoi(argv[1]) : 1, tests = 0, failures = 0, rc;

    if ((rc = size > 1 ? comm_mpi_create(size, &world, &error) : comm_self_create(&world, &error)) <
            0 ||
        (rc = comm_self_create(&self, &error)) < 0 ||
        (rc = model_load(CHECKPOINT, &model, &error)) < 0 ||
        (rc = run_open(&reference, &model, 1, 0, 1, self)) < 0)
        goto out;
    for (int micro = 0; micro < MICRO_BATCHES; micro++)
        if ((rc = micro_batch_run(&reference, &model, micro)) < 0)
            goto out;
    for (int ep = 1; ep <= size; ep *= 2) {
        double worst[3];
        bool right;
        if ((rc = ranks_compare(world, &model, ep, &reference, worst)) < 0)
            goto out;
        right = worst[0] <= 1e-6 && worst[1] <= 1e-6 && worst[2] <= 1e-5;
        failures += !right;
        tests++;
        if (comm_rank(world) == 0)
            printf("%s %d - %d ranks, experts on %d: loss off by %.1e, aux %.1e, gradients %.1e\n",
                   right ? "ok" : "not ok", tests, size, ep, worst[0], worst[1], worst[2]);
    }
    if (comm_rank(world) == 0)
        printf("1..%d\n", tests);
out:
    if (rc < 0)
        fprintf(stderr, "%s\n", error.text);
    run_close(&reference);
    comm_destroy(self);
    comm_destroy(world);
    return rc < 0 || failures;
}
