// SPDX-License-Identifier: Apache-2.0
// Host memory of a rank: an address range reserved once and made usable granule by granule.
//
// The lower half of the range holds permanent allocations, the upper half the transient stack; both
// grow upwards, so that no address ever changes and the stack reuses its granules every step.
#include "mem/arena.h"

#include "base/memory.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define ARENA_POISON 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_POISON 1
#endif
#endif
#ifdef ARENA_POISON
#include <sanitizer/asan_interface.h>
#endif

#define RESERVE_MOST  ((size_t)1 << 42)
#define RESERVE_LEAST ((size_t)1 << 32)

enum half { PERMANENT, TRANSIENT, HALVES };

struct range {
    char *base;
    size_t size, top, mapped; // bytes
};

struct arena {
    struct range halves[HALVES];
    uint64_t used[MEMORY_CATEGORIES], peak[MEMORY_CATEGORIES];
    uint64_t used_total, peak_total, cap;
};

int arena_create_host(uint64_t cap_bytes, struct arena **out, struct fl_error *e)
{
    struct arena *arena;
    size_t size = RESERVE_MOST;
    void *base;

    // PROT_NONE memory costs nothing, but an address-space limit (ulimit -v) may refuse the most.
    do {
        base = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    } while (base == MAP_FAILED && (size /= 2) >= RESERVE_LEAST);
    *out = NULL;
    if (base == MAP_FAILED)
        return error_set(e, -errno, "arena: cannot reserve %zu bytes of addresses: raise ulimit -v",
                         RESERVE_LEAST);
    arena = memory_zeroed(1, sizeof *arena);
    arena->cap = cap_bytes;
    arena->halves[PERMANENT] = (struct range){.base = base, .size = size / 2};
    arena->halves[TRANSIENT] = (struct range){.base = (char *)base + size / 2, .size = size / 2};
    *out = arena;
    return 0;
}

void arena_destroy(struct arena *arena)
{
    if (!arena)
        return;
#ifdef ARENA_POISON
    for (int h = 0; h < HALVES; h++)
        ASAN_UNPOISON_MEMORY_REGION(arena->halves[h].base, arena->halves[h].mapped);
#endif
    munmap(arena->halves[PERMANENT].base, 2 * arena->halves[PERMANENT].size);
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
    char why[128];

    if (need < bytes || need > range->size)
        return over(arena, category, bytes, "exceed the reserved addresses", e);
    if (need <= range->mapped)
        return 0;
    grow = (need - range->mapped + ARENA_GRANULE - 1) / ARENA_GRANULE * ARENA_GRANULE;
    if (arena->cap && mapped_total(arena) + grow > arena->cap) {
        snprintf(why, sizeof why, "would exceed the cap of %.1f MiB",
                 (double)arena->cap / (1 << 20));
        return over(arena, category, bytes, why, e);
    }
    if (mprotect(range->base + range->mapped, grow, PROT_READ | PROT_WRITE) < 0)
        return over(arena, category, bytes, "were refused by the system", e);
    range->mapped += grow;
    return 0;
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
    if (arena->used_total > arena->peak_total)
        arena->peak_total = arena->used_total;
#ifdef ARENA_POISON
    ASAN_UNPOISON_MEMORY_REGION(*out, bytes);
    ASAN_POISON_MEMORY_REGION((char *)*out + bytes, rounded - bytes);
    if (half == TRANSIENT)
        memset(*out, 0xff, bytes);
#endif
    return 0;
}

int arena_alloc(struct arena *arena, enum memory_category category, size_t bytes, void **out,
                struct fl_error *e)
{
    return take(arena, PERMANENT, category, bytes, out, e); // fresh pages are zero
}

int arena_push(struct arena *arena, enum memory_category category, size_t bytes, void **out,
               struct fl_error *e)
{
    return take(arena, TRANSIENT, category, bytes, out, e);
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
#ifdef ARENA_POISON
    ASAN_POISON_MEMORY_REGION(range->base + mark.top, range->top - mark.top);
#endif
    range->top = mark.top;
    memcpy(arena->used, mark.used, sizeof mark.used);
}

void arena_stats_get(const struct arena *arena, struct arena_stats *stats)
{
    memcpy(stats->used, arena->used, sizeof stats->used);
    memcpy(stats->peak, arena->peak, sizeof stats->peak);
    stats->used_total = arena->used_total;
    stats->peak_total = arena->peak_total;
    stats->mapped_total = mapped_total(arena);
    stats->cap = arena->cap;
}
