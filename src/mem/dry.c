// SPDX-License-Identifier: Apache-2.0
// Nothing behind an arena: addresses are numbers, and what would be mapped is only counted.
#include "mem/dry.h"

#include "base/memory.h"
#include "mem/arena.h"
#include "mem/backing.h"

#include <stdlib.h>

static int dry_reserve(struct backing *backing, size_t *bytes, void **base, struct fl_error *e)
{
    (void)backing, (void)e;
    *bytes = DRY_BYTES;
    *base = (void *)(uintptr_t)DRY_BASE;
    return 0;
}

static int dry_map(struct backing *backing, void *at, size_t bytes, struct fl_error *e)
{
    (void)backing, (void)at, (void)bytes, (void)e;
    return 0;
}

static void dry_unmap(struct backing *backing, void *at, size_t bytes)
{
    (void)backing, (void)at, (void)bytes;
}

static int dry_zero(struct backing *backing, void *at, size_t bytes, struct fl_error *e)
{
    return dry_map(backing, at, bytes, e);
}

static void dry_destroy(struct backing *backing, void *base, size_t bytes)
{
    (void)base, (void)bytes;
    free(backing);
}

struct backing *backing_dry(void)
{
    struct backing *backing = memory_zeroed(1, sizeof *backing);

    *backing = (struct backing){
        .reserve = dry_reserve,
        .map = dry_map,
        .unmap = dry_unmap,
        .zero = dry_zero,
        .destroy = dry_destroy,
    };
    return backing;
}

int arena_create_dry(uint64_t cap_bytes, struct arena **out, struct fl_error *e)
{
    return arena_create(backing_dry(), cap_bytes, out, e);
}
