// SPDX-License-Identifier: Apache-2.0
// Device memory behind an arena: virtual address reservations, physical granules mapped on demand.
#include "mem/device.h"

#include "base/memory.h"
#include "mem/arena.h"

#include <errno.h>
#include <stdlib.h>

#define OUT_OF_MEMORY 2 // CUDA_ERROR_OUT_OF_MEMORY
#define RESERVE_LEAST ((size_t)1 << 36)

struct device {
    struct backing backing; // first
    const struct device_driver *driver;
    char *base;
    size_t granules;
    uint64_t *handles; // [granules] physical memory, 0 where none is mapped
};

static struct device *device_of(struct backing *backing)
{
    return (struct device *)backing;
}

static int fail(const struct device *d, int result, const char *doing, size_t bytes,
                struct fl_error *e)
{
    return error_set(e, result == OUT_OF_MEMORY ? -ENOMEM : -EIO,
                     "GPU memory: cannot %s %zu bytes: %s", doing, bytes, d->driver->text(result));
}

static int device_reserve(struct backing *backing, size_t *bytes, void **base, struct fl_error *e)
{
    struct device *d = device_of(backing);
    uint64_t address;
    int result;

    do {
        result = d->driver->reserve(&address, *bytes);
    } while (result && (*bytes /= 2) >= RESERVE_LEAST);
    if (result)
        return fail(d, result, "reserve addresses for", RESERVE_LEAST, e);
    d->base = *base = (void *)(uintptr_t)address;
    d->granules = *bytes / ARENA_GRANULE;
    d->handles = memory_zeroed(d->granules, sizeof *d->handles);
    return 0;
}

static void granule_unmap(struct device *d, size_t granule)
{
    d->driver->unmap((uint64_t)(uintptr_t)d->base + granule * ARENA_GRANULE, ARENA_GRANULE);
    d->driver->release(d->handles[granule]);
    d->handles[granule] = 0;
}

// One physical allocation a granule, so that any of them can be given back alone.
static int device_map(struct backing *backing, void *at, size_t bytes, struct fl_error *e)
{
    struct device *d = device_of(backing);
    size_t first = (size_t)((char *)at - d->base) / ARENA_GRANULE, count = bytes / ARENA_GRANULE;
    int result = 0;

    for (size_t i = 0; i < count; i++) {
        size_t g = first + i;
        uint64_t handle;
        result = d->driver->create(&handle, ARENA_GRANULE);
        if (result == 0) {
            result = d->driver->map((uint64_t)(uintptr_t)d->base + g * ARENA_GRANULE, ARENA_GRANULE,
                                    handle);
            if (result)
                d->driver->release(handle);
            else
                d->handles[g] = handle;
        }
        if (result) {
            while (i-- > 0)
                granule_unmap(d, first + i);
            return fail(d, result, "map", bytes, e);
        }
    }
    return 0;
}

static void device_unmap(struct backing *backing, void *at, size_t bytes)
{
    struct device *d = device_of(backing);
    size_t first = (size_t)((char *)at - d->base) / ARENA_GRANULE;

    d->driver->finish(); // queued kernels may still use them
    for (size_t i = 0; i < bytes / ARENA_GRANULE; i++)
        granule_unmap(d, first + i);
}

static int device_zero(struct backing *backing, void *at, size_t bytes, struct fl_error *e)
{
    struct device *d = device_of(backing);
    int result = bytes ? d->driver->zero((uint64_t)(uintptr_t)at, bytes) : 0;

    return result ? fail(d, result, "clear", bytes, e) : 0;
}

static void device_destroy(struct backing *backing, void *base, size_t bytes)
{
    struct device *d = device_of(backing);

    if (base)
        d->driver->unreserve((uint64_t)(uintptr_t)base, bytes);
    free(d->handles);
    free(d);
}

struct backing *backing_device(const struct device_driver *driver)
{
    struct device *d = memory_zeroed(1, sizeof *d);

    d->driver = driver;
    d->backing = (struct backing){
        .reserve = device_reserve,
        .map = device_map,
        .unmap = device_unmap,
        .zero = device_zero,
        .destroy = device_destroy,
    };
    return &d->backing;
}
