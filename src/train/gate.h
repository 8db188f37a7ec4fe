// SPDX-License-Identifier: Apache-2.0
// The first-step gate: stops a job that would run for hours without training anything.
//
// It wants a finite loss not above ln(vocabulary) + 1, a nonzero gradient norm, and a nonzero
// gradient of lora_B in every adapted module that worked on a token the loss depends on. (That of
// lora_A is exactly zero while B is.)
#ifndef FL_TRAIN_GATE_H
#define FL_TRAIN_GATE_H

#include "comm/comm.h"
#include "net/net.h"

struct gate;

// Keeps references to model and adapters.
struct gate *gate_create(const struct model *model, const struct adapters *adapters);
void gate_destroy(struct gate *gate); // NULL-safe

// Before each forward pass of the first step: notes through net's probe where this batch's tokens
// go. A token counts for a layer when a target of its sample lies at or behind it, in the last
// layer when it has a target itself.
void gate_batch(struct gate *gate, struct net *net, const struct batch *batch);

// After the gradients were reduced; takes the probe out of net. All ranks get the verdict, that of
// the lowest one that finds fault. loss and norm are equal on all ranks.
int gate_check(struct gate *gate, struct net *net, double loss, double norm, struct ops *ops,
               struct comm *world, struct fl_error *e);

#endif
