// SPDX-License-Identifier: Apache-2.0
// Inside the plan: the numbers its terms are made of, and the functions that add them.
#ifndef FL_JOB_PLAN_PARTS_H
#define FL_JOB_PLAN_PARTS_H

#include "job/plan.h"

#define ALIGNMENT 256 // ARENA_ALIGNMENT of mem/arena.h, which the plugin does not see
#define HEAD_ROWS 256 // of one chunk of logits: NET_HEAD_CHUNK of net/net.h

typedef unsigned long long amount; // as %llu prints it

// What the terms are made of.
struct sizes {
    amount layers, hidden, heads, q, kv, width, experts, experts_local, top_k, vocab;
    amount longest;       // tokens of a sample
    amount tokens, whole; // of a full micro-batch: this rank's part of them, and all its group's
    amount tp, shards;    // ranks that share heads and vocabulary; that share frozen weights
    amount sent, rows;    // tokens x expert that leave this rank, and that its experts get, at most
    amount mine, most;    // of rows, from one rank; and at most for one expert
    amount rank;
};

static inline amount aligned(amount bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static inline amount blocks(amount n)
{
    return (n + FP8_BLOCK - 1) / FP8_BLOCK;
}

static inline amount smaller(amount a, amount b)
{
    return a < b ? a : b;
}

static inline amount larger(amount a, amount b)
{
    return a > b ? a : b;
}

// Of one row as the network keeps it: stream rows between operations, quantised rows as inputs of
// base products. The CPU backend holds both in fp32; the GPU pads values, and scales, to 16 bytes.
static inline amount padded(amount bytes)
{
    return (bytes + 15) / 16 * 16;
}

static inline amount stream(const struct plan *plan, amount cols)
{
    return plan->cpu ? cols * 4 : padded(cols * 2);
}

static inline amount quantised(const struct plan *plan, amount cols)
{
    return plan->cpu ? cols * 4 : padded(cols) + padded(blocks(cols) * 4);
}

// One allocation of rows.
static inline amount of(amount rows, amount bytes)
{
    return aligned(rows * bytes);
}

// The same of a layer's attention, which is sharded whole.
static inline amount attention_bytes(const struct sizes *s)
{
    amount qkv = s->q + 2 * s->kv, h = s->hidden;

    return aligned(qkv * h) + aligned(h * s->q) +
           aligned((blocks(s->q) + 2 * blocks(s->kv)) * blocks(h) * 4) +
           aligned(blocks(h) * blocks(s->q) * 4);
}

// Adds a line to the plan.
void plan_term_add(struct plan *plan, enum memory_category category, const char *name, amount bytes,
                   const char *formula, ...) __attribute__((format(printf, 5, 6)));

// The same to what is in host memory (HOST), or on the device beside the arena (OUTSIDE).
enum plan_list { PLAN_HOST, PLAN_OUTSIDE };
void plan_beside_add(struct plan *plan, enum plan_list list, const char *name, amount bytes,
                     const char *formula, ...) __attribute__((format(printf, 5, 6)));

// Weights, adapters, gradients, optimizer; and what of them is in host memory.
void plan_resident(const struct spec *spec, struct plan *plan, const struct model *model,
                   const struct sizes *sizes);
// What a micro-batch keeps, in host memory too. evaluated: of the evaluation, which no capacity
// limits; NULL: none.
void plan_activations(const struct spec *spec, struct plan *plan, const struct model *model,
                      const struct sizes *sizes, const struct sizes *evaluated);
// Both moments of so many parameters.
amount plan_states_bytes(const struct spec *spec, amount params);
// Scratch of operations.
void plan_scratch(const struct spec *spec, struct plan *plan, const struct sizes *sizes,
                  const struct sizes *evaluated, int threads);
// Send and receive buffers.
void plan_communication(struct plan *plan, const struct sizes *sizes);

#endif
