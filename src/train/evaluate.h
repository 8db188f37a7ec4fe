// SPDX-License-Identifier: Apache-2.0
// The loss on held-out data.
#ifndef FL_TRAIN_EVALUATE_H
#define FL_TRAIN_EVALUATE_H

#include "comm/comm.h"
#include "data/loader.h"
#include "net/net.h"

struct evaluation {
    double loss; // per target token over all batches and ranks
    int64_t targets;
    int signal; // a rank was told to stop meanwhile: the loss is of part of the set; else 0
};

// Runs iterations global batches of loader (0: all of it). All ranks call together.
int evaluate(struct net *net, struct loader *loader, int64_t iterations, struct comm *world,
             struct evaluation *result, struct fl_error *e);

#endif
