// SPDX-License-Identifier: Apache-2.0
// How many rows a rank sends to every expert in a dry run.
#include "ops/dry/routing.h"

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

// x rounded up, at most most; x may be infinite.
static int64_t limited(double x, int64_t most)
{
    return x >= (double)most ? most : (int64_t)ceil(x);
}

void dry_routing_count(const struct dry_routing *r, int64_t *counts)
{
    int64_t tokens = r->tokens, local = r->experts_local, others = r->experts - local;
    int64_t most = r->capacity > 0 ? smaller(r->capacity, tokens) : tokens; // of one expert
    double even = tokens ? (double)tokens * r->top_k / r->experts * r->skew : 0;
    int64_t each = limited(even, most), other;
    // A token has top_k different experts, so it chooses a local one at most so often.
    int64_t mine = smaller(tokens * smaller(r->top_k, local), local * most), rest;

    mine = limited(even * (double)local, mine);
    rest = smaller(tokens * r->top_k - mine, others * most);
    other = others ? (rest + others - 1) / others : 0;
    for (int i = 0; i < r->experts; i++) {
        int favoured = i >= r->expert_first && i < r->expert_first + local;
        counts[i] = smaller(favoured ? each : other, favoured ? mine : rest);
        *(favoured ? &mine : &rest) -= counts[i];
    }
}
