// SPDX-License-Identifier: Apache-2.0
// Memory of a rank: an address range reserved once and made usable granule by granule.
//
// The lower half of the range holds permanent allocations, the upper half the transient stack; both
// grow upwards, so that no address ever changes and the stack reuses its granules every step.
#include "mem/arena.h"
#include "mem/backing.h"

#include "base/memory.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RESERVE_MOST ((size_t)1 << 42)

enum half { PERMANENT, TRANSIENT, HALVES };

struct range {
    char *base;
    size_t size, top, mapped; // bytes
};

struct arena {
    struct backing *backing;
    struct range halves[HALVES];
    uint64_t used[MEMORY_CATEGORIES], peak[MEMORY_CATEGORIES], at_peak[MEMORY_CATEGORIES];
    uint64_t used_total, peak_total, cap, retries;
    uint64_t largest; // push
    enum memory_category largest_category;
};

int arena_create(struct backing *backing, unsigned long long cap_bytes, struct arena **out,
                 struct fl_error *e)
{
    struct arena *arena;
    size_t size = RESERVE_MOST;
    void *base = NULL;
    int rc = backing->reserve(backing, &size, &base, e);

    *out = NULL;
    if (rc < 0) {
        backing->destroy(backing, NULL, 0);
        return rc;
    }
    arena = memory_zeroed(1, sizeof *arena);
    arena->backing = backing;
    arena->cap = cap_bytes;
    arena->halves[PERMANENT] = (struct range){.base = base, .size = size / 2};
    arena->halves[TRANSIENT] = (struct range){.base = (char *)base + size / 2, .size = size / 2};
    *out = arena;
    return 0;
}

// Gives back the granules beyond what is in use. Returns whether there were any.
static bool range_trim(struct arena *arena, struct range *range)
{
    size_t keep = (range->top + ARENA_GRANULE - 1) / ARENA_GRANULE * ARENA_GRANULE;

    if (keep >= range->mapped)
        return false;
    arena->backing->unmap(arena->backing, range->base + keep, range->mapped - keep);
    range->mapped = keep;
    return true;
}

bool arena_trim(struct arena *arena)
{
    bool any = false;

    for (int h = 0; h < HALVES; h++)
        any |= range_trim(arena, &arena->halves[h]);
    return any;
}

void arena_destroy(struct arena *arena)
{
    if (!arena)
        return;
    for (int h = 0; h < HALVES; h++)
        arena->halves[h].top = 0;
    arena_trim(arena);
    arena->backing->destroy(arena->backing, arena->halves[PERMANENT].base,
                            2 * arena->halves[PERMANENT].size);
    free(arena);
}

static uint64_t mapped_total(const struct arena *arena)
{
    return arena->halves[PERMANENT].mapped + arena->halves[TRANSIENT].mapped;
}

static int over(const struct arena *arena, enum memory_category category, size_t bytes,
                const char *why, struct fl_error *e)
{
    char consumers[256] = "";
    bool told[MEMORY_CATEGORIES] = {false};
    const double mib = 1 << 20;

    for (int place = 0; place < 3; place++) { // the three biggest, biggest first
        int biggest = -1;
        size_t used = strlen(consumers);
        for (int c = 0; c < MEMORY_CATEGORIES; c++)
            if (!told[c] && arena->used[c] &&
                (biggest < 0 || arena->used[c] > arena->used[biggest]))
                biggest = c;
        if (biggest < 0)
            break;
        told[biggest] = true;
        snprintf(consumers + used, sizeof consumers - used, "%s%s %.1f MiB", used ? ", " : "",
                 memory_category_name((enum memory_category)biggest),
                 (double)arena->used[biggest] / mib);
    }
    return error_set(e, -ENOMEM,
                     "out of memory: %.1f MiB for %s %s; in use: %s; %.1f MiB of the mapped are "
                     "free: use a smaller micro_batch_size, max_length or lora_rank, or more ranks",
                     (double)bytes / mib, memory_category_name(category), why,
                     consumers[0] ? consumers : "nothing",
                     (double)(mapped_total(arena) - arena->used_total) / mib);
}

static int range_map(struct arena *arena, struct range *range, enum memory_category category,
                     size_t bytes, struct fl_error *e)
{
    size_t need = range->top + bytes, grow;
    char why[FL_ERROR_TEXT];
    struct fl_error refused;

    if (need < bytes || need > range->size)
        return over(arena, category, bytes, "exceed the reserved addresses", e);
    if (need <= range->mapped)
        return 0;
    grow = (need - range->mapped + ARENA_GRANULE - 1) / ARENA_GRANULE * ARENA_GRANULE;
    // Idle granules of the other half may be what is missing.
    for (bool again = true; again; again = arena_trim(arena), arena->retries += again) {
        if (arena->cap && mapped_total(arena) + grow > arena->cap) {
            snprintf(why, sizeof why, "would exceed the cap of %.1f MiB",
                     (double)arena->cap / (1 << 20));
        } else if (arena->backing->map(arena->backing, range->base + range->mapped, grow,
                                       &refused) < 0) {
            snprintf(why, sizeof why, "were refused (%s)", refused.text);
        } else {
            range->mapped += grow;
            return 0;
        }
    }
    return over(arena, category, bytes, why, e);
}

static int take(struct arena *arena, enum half half, enum memory_category category, size_t bytes,
                void **out, struct fl_error *e)
{
    struct range *range = &arena->halves[half];
    size_t rounded = (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
    int rc;

    *out = NULL;
    if (rounded < bytes)
        return over(arena, category, bytes, "exceed the reserved addresses", e);
    rc = range_map(arena, range, category, rounded, e);
    if (rc < 0)
        return rc;
    *out = range->base + range->top;
    range->top += rounded;
    arena->used[category] += rounded;
    arena->used_total += rounded;
    if (arena->used[category] > arena->peak[category])
        arena->peak[category] = arena->used[category];
    if (arena->used_total > arena->peak_total) {
        arena->peak_total = arena->used_total;
        memcpy(arena->at_peak, arena->used, sizeof arena->at_peak);
    }
    if (arena->backing->opened)
        arena->backing->opened(*out, bytes);
    return 0;
}

int arena_alloc(struct arena *arena, enum memory_category category, size_t bytes, void **out,
                struct fl_error *e)
{
    int rc = take(arena, PERMANENT, category, bytes, out, e);

    return rc < 0 ? rc : arena->backing->zero(arena->backing, *out, bytes, e);
}

int arena_push(struct arena *arena, enum memory_category category, size_t bytes, void **out,
               struct fl_error *e)
{
    int rc = take(arena, TRANSIENT, category, bytes, out, e);

    if (rc == 0 && bytes > arena->largest) {
        arena->largest = bytes;
        arena->largest_category = category;
    }
    return rc;
}

struct arena_mark arena_mark(const struct arena *arena)
{
    struct arena_mark mark = {.top = arena->halves[TRANSIENT].top};

    memcpy(mark.used, arena->used, sizeof mark.used);
    return mark;
}

void arena_release(struct arena *arena, struct arena_mark mark)
{
    struct range *range = &arena->halves[TRANSIENT];

    arena->used_total -= range->top - mark.top;
    if (arena->backing->closed && range->top > mark.top)
        arena->backing->closed(range->base + mark.top, range->top - mark.top);
    range->top = mark.top;
    memcpy(arena->used, mark.used, sizeof mark.used);
}

void arena_stats_get(const struct arena *arena, struct arena_stats *stats)
{
    memcpy(stats->used, arena->used, sizeof stats->used);
    memcpy(stats->peak, arena->peak, sizeof stats->peak);
    memcpy(stats->at_peak, arena->at_peak, sizeof stats->at_peak);
    stats->used_total = arena->used_total;
    stats->peak_total = arena->peak_total;
    stats->mapped_total = mapped_total(arena);
    stats->cap = arena->cap;
    stats->retries = arena->retries;
    stats->largest = arena->largest;
    stats->largest_category = arena->largest_category;
}
