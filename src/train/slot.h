// SPDX-License-Identifier: Apache-2.0
// What this rank tells about itself: its slot in the step's record, and the slots of all ranks.
#ifndef FL_TRAIN_SLOT_H
#define FL_TRAIN_SLOT_H

#include "comm/comm.h"
#include "job/plan.h"
#include "mem/arena.h"
#include "report/record.h"

struct slot;

// Opens the record that RECORD_FD_ENV leads to; without one nothing is recorded, the rest works the
// same. The rank is RANK_LOADING from here on.
int slot_create(const struct plan *plan, int local_rank, uint64_t cap, struct slot **out,
                struct fl_error *e);
void slot_destroy(struct slot *slot); // NULL-safe

// cause: why, when state is RANK_FAILED; else NULL.
void slot_state(struct slot *slot, enum rank_state state, const char *cause);
// The GPU's UUID, or "cpu" as before this call.
void slot_gpu(struct slot *slot, const char *gpu);
// Peaks of the arena and of the process.
void slot_memory(struct slot *slot, const struct arena *arena);
// tokens: of this rank since the start of training; loss: the iteration's.
void slot_progress(struct slot *slot, int64_t iterations, int64_t tokens, double tokens_per_second,
                   double loss);

// Gathers all ranks' slots and, on the first rank of a node, records those of other nodes.
int slot_share(struct slot *slot, struct comm *world, struct fl_error *e);
// The fullest arena's peak at the last slot_share, bytes.
uint64_t slot_peak_most(const struct slot *slot);
// Of every category the greatest peak of a rank, likewise.
void slot_peaks(const struct slot *slot, uint64_t peaks[MEMORY_CATEGORIES]);

// A comm watch (context: struct slot): -ECONNABORTED once the record says that a rank of this node
// died. Its line is for the lowest surviving rank of the node; the others' text is empty.
int slot_watch(void *context, struct fl_error *e);
// After a call failed by itself because the group is dead: waits a few seconds for the record to
// tell of the rank that died, and then replaces e.
void slot_explain(struct slot *slot, struct fl_error *e);

#endif
