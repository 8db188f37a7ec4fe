// SPDX-License-Identifier: Apache-2.0
// How many rows a rank sends to every expert in a dry run: what it assumes of the routing.
#ifndef FL_OPS_DRY_ROUTING_H
#define FL_OPS_DRY_ROUTING_H

#include <math.h>
#include <stdint.h>

// How many times its even share of the rows a rank's experts get, from every rank of the group:
// 1 or more, limited by what tokens, top_k and capacity allow.
#define ROUTING_BALANCED 1.0
#define ROUTING_WORST    ((double)INFINITY) // as many as possible: the most memory in all

struct dry_routing {
    int tokens, top_k, experts;
    int experts_local, expert_first; // those that get more than their share
    int64_t capacity;                // rows an expert takes of one rank; 0: any number
    double skew;
};

// counts [experts]: at most tokens and the capacity each, tokens * top_k together. The favoured
// experts are filled one after another, the others evenly with what is left.
void dry_routing_count(const struct dry_routing *routing, int64_t *counts);

#endif
