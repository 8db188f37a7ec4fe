// SPDX-License-Identifier: Apache-2.0
// The loss on held-out data.
#include "train/evaluate.h"

#include "train/stop.h"

struct sums {
    double loss, targets;
};

static int batch_evaluate(struct net *net, struct loader *loader, int64_t iteration,
                          struct batch *batch, struct sums *sums, struct fl_error *e)
{
    for (int round = 0; round < loader_rounds(loader, iteration); round++) {
        struct net_loss loss;
        int rc;
        loader_fill(loader, iteration, round, batch);
        rc = net_evaluate(net, batch, &loss, e);
        if (rc < 0)
            return rc;
        sums->loss += loss.loss_sum;
        sums->targets += (double)loss.targets;
    }
    return 0;
}

int evaluate(struct net *net, struct loader *loader, int64_t iterations, struct comm *world,
             struct evaluation *result, struct fl_error *e)
{
    struct batch *batch = loader_batch_create(loader);
    struct sums sums = {0};
    int64_t all = loader_iterations(loader);
    int rc = 0;

    *result = (struct evaluation){0};
    if (iterations == 0 || iterations > all)
        iterations = all;
    // After every global batch the ranks agree whether one was told to stop.
    for (int64_t i = 0; rc == 0 && i < iterations && !result->signal; i++) {
        uint64_t signal = (uint64_t)stop_signal();
        rc = batch_evaluate(net, loader, i, batch, &sums, e);
        if (rc == 0)
            rc = comm_all_reduce(world, &signal, 1, COMM_U64, COMM_MAX, e);
        result->signal = (int)signal;
    }
    if (rc == 0)
        rc = comm_all_reduce(world, &sums, 2, COMM_F64, COMM_SUM, e);
    result->targets = (int64_t)sums.targets;
    result->loss = sums.loss / sums.targets;
    batch_destroy(batch);
    return rc;
}
