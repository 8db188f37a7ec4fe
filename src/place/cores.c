// SPDX-License-Identifier: Apache-2.0
// Cores shared evenly among those who want to be near the same things.
#include "place/cores.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

static hwloc_obj_t core_next(hwloc_topology_t topology, hwloc_obj_t core)
{
    bool told = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0;

    return hwloc_get_next_obj_by_type(topology, told ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU, core);
}

int cores_within(hwloc_topology_t topology, hwloc_const_bitmap_t set)
{
    int count = 0;

    for (hwloc_obj_t c = NULL; (c = core_next(topology, c));)
        count += hwloc_bitmap_intersects(c->cpuset, set);
    return count;
}

// Adds cores [first, last) of those that meet set.
static void cores_take(hwloc_topology_t topology, hwloc_const_bitmap_t set, int first, int last,
                       hwloc_bitmap_t cpus)
{
    int index = 0;

    for (hwloc_obj_t c = NULL; (c = core_next(topology, c));)
        if (hwloc_bitmap_intersects(c->cpuset, set)) {
            if (index >= first && index < last)
                hwloc_bitmap_or(cpus, cpus, c->cpuset);
            index++;
        }
    hwloc_bitmap_and(cpus, cpus, set);
}

// Deals what is left of the wish of chosen to all who have the same.
static int wish_deal(hwloc_topology_t topology, hwloc_bitmap_t *wishes, int count, int chosen,
                     hwloc_bitmap_t left, bool *done, hwloc_bitmap_t *cpus)
{
    hwloc_bitmap_t usable = hwloc_bitmap_dup(wishes[chosen]);
    int sharers = 0, cores, number = 0, rc = -ENOMEM;

    if (!usable)
        return rc;
    hwloc_bitmap_and(usable, usable, left);
    cores = cores_within(topology, usable);
    for (int i = chosen; i < count; i++)
        sharers += !done[i] && hwloc_bitmap_isequal(wishes[i], wishes[chosen]);
    for (int i = chosen; i < count; i++) {
        if (done[i] || !hwloc_bitmap_isequal(wishes[i], wishes[chosen]))
            continue;
        done[i] = true;
        if (cores < sharers)
            continue;
        cpus[i] = hwloc_bitmap_alloc();
        if (!cpus[i])
            goto out;
        cores_take(topology, usable, cores * number / sharers, cores * (number + 1) / sharers,
                   cpus[i]);
        number++;
    }
    if (number)
        hwloc_bitmap_andnot(left, left, usable);
    rc = 0;
out:
    hwloc_bitmap_free(usable);
    return rc;
}

int cores_share(hwloc_topology_t topology, hwloc_const_bitmap_t allowed,
                const hwloc_const_bitmap_t *near, int count, hwloc_bitmap_t *cpus)
{
    hwloc_bitmap_t *wishes = calloc((size_t)count, sizeof *wishes);
    hwloc_bitmap_t left = hwloc_bitmap_dup(allowed);
    bool *done = calloc((size_t)count, sizeof *done);
    int rc = -ENOMEM;

    for (int i = 0; i < count; i++)
        cpus[i] = NULL;
    if (!wishes || !left || !done)
        goto out;
    for (int i = 0; i < count; i++) {
        wishes[i] = hwloc_bitmap_dup(near[i]);
        if (!wishes[i])
            goto out;
        hwloc_bitmap_and(wishes[i], wishes[i], allowed);
    }
    for (;;) {
        int smallest = -1;
        for (int i = 0; i < count; i++)
            if (!done[i] && (smallest < 0 || hwloc_bitmap_weight(wishes[i]) <
                                                 hwloc_bitmap_weight(wishes[smallest])))
                smallest = i;
        if (smallest < 0)
            break;
        rc = wish_deal(topology, wishes, count, smallest, left, done, cpus);
        if (rc)
            goto out;
    }
    rc = 0;
out:
    for (int i = 0; i < count && rc; i++) {
        hwloc_bitmap_free(cpus[i]);
        cpus[i] = NULL;
    }
    for (int i = 0; wishes && i < count; i++)
        hwloc_bitmap_free(wishes[i]);
    free(wishes);
    hwloc_bitmap_free(left);
    free(done);
    return rc;
}
