// SPDX-License-Identifier: Apache-2.0
// All large memory of a rank: one reserved address range, mapped granule by granule, tagged by
// category, held under a hard cap.
//
// Two ends share the range: permanent allocations, and a stack of transient ones that is cut back
// to a mark. The steady state of training pushes and releases the same sequence every step.
#ifndef FL_MEM_ARENA_H
#define FL_MEM_ARENA_H

#include "base/category.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARENA_ALIGNMENT 256        // bytes, of every allocation
#define ARENA_GRANULE   (2u << 20) // bytes mapped at once

struct arena;
struct arena_mark {
    size_t top;
    uint64_t used[MEMORY_CATEGORIES];
};
struct arena_stats {
    uint64_t used[MEMORY_CATEGORIES], peak[MEMORY_CATEGORIES]; // bytes, rounded to the alignment
    uint64_t at_peak[MEMORY_CATEGORIES]; // used when used_total was peak_total for the first time
    uint64_t used_total, peak_total, mapped_total, cap;
    uint64_t retries; // of mappings after idle granules were given back
    uint64_t largest; // bytes of the largest transient allocation so far
    enum memory_category largest_category;
};

// Host memory. cap_bytes 0: none.
int arena_create_host(uint64_t cap_bytes, struct arena **out, struct fl_error *e);
// Memory of the calling thread's current CUDA device, in builds with CUDA.
int arena_create_device(uint64_t cap_bytes, struct arena **out, struct fl_error *e);
// Addresses that hold nothing and may not be touched (mem/dry.h): only the statistics are real.
int arena_create_dry(uint64_t cap_bytes, struct arena **out, struct fl_error *e);
// NULL-safe; unmaps everything.
void arena_destroy(struct arena *arena);

// Permanent, zeroed; lives as long as the arena. Over the cap: -ENOMEM with category, request,
// biggest consumers and the cap in one line.
int arena_alloc(struct arena *arena, enum memory_category category, size_t bytes, void **out,
                struct fl_error *e);

// Transient, not zeroed (poisoned with NaN under --enable-sanitizers); freed by arena_release.
int arena_push(struct arena *arena, enum memory_category category, size_t bytes, void **out,
               struct fl_error *e);
struct arena_mark arena_mark(const struct arena *arena);
// Nothing permanent may be allocated between a mark and its release.
void arena_release(struct arena *arena, struct arena_mark mark);

// Gives back the granules beyond what is in use, as a mapping that fails does by itself. Returns
// whether there were any.
bool arena_trim(struct arena *arena);

void arena_stats_get(const struct arena *arena, struct arena_stats *stats);

#endif
