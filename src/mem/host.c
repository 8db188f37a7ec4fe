// SPDX-License-Identifier: Apache-2.0
// Host memory behind an arena: reserved without access, opened granule by granule.
#include "mem/arena.h"
#include "mem/backing.h"

#include "base/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define ARENA_CHECKED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_CHECKED 1
#endif
#endif
#ifdef ARENA_CHECKED
#include <sanitizer/asan_interface.h>
#endif

#define RESERVE_LEAST ((size_t)1 << 32)

// An address-space limit (ulimit -v) may refuse the most.
static int host_reserve(struct backing *backing, size_t *bytes, void **base, struct fl_error *e)
{
    (void)backing;
    do {
        *base = mmap(NULL, *bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    } while (*base == MAP_FAILED && (*bytes /= 2) >= RESERVE_LEAST);
    if (*base == MAP_FAILED)
        return error_set(e, -errno, "arena: cannot reserve %zu bytes of addresses: raise ulimit -v",
                         RESERVE_LEAST);
    return 0;
}

static int host_map(struct backing *backing, void *at, size_t bytes, struct fl_error *e)
{
    (void)backing;
    if (mprotect(at, bytes, PROT_READ | PROT_WRITE) < 0)
        return error_set(e, -ENOMEM, "host memory: %s", strerror(errno));
#ifdef ARENA_CHECKED
    ASAN_POISON_MEMORY_REGION(at, bytes);
#endif
    return 0;
}

static void host_unmap(struct backing *backing, void *at, size_t bytes)
{
    (void)backing;
#ifdef ARENA_CHECKED
    ASAN_UNPOISON_MEMORY_REGION(at, bytes);
#endif
    madvise(at, bytes, MADV_DONTNEED);
    mprotect(at, bytes, PROT_NONE);
}

static int host_zero(struct backing *backing, void *at, size_t bytes, struct fl_error *e)
{
    (void)backing;
    (void)e;
    memset(at, 0, bytes);
    return 0;
}

#ifdef ARENA_CHECKED
// Fresh places hold NaN, so that a value nobody wrote shows.
static void host_opened(void *at, size_t bytes)
{
    ASAN_UNPOISON_MEMORY_REGION(at, bytes);
    memset(at, 0xff, bytes);
}

static void host_closed(void *at, size_t bytes)
{
    ASAN_POISON_MEMORY_REGION(at, bytes);
}
#endif

static void host_destroy(struct backing *backing, void *base, size_t bytes)
{
    if (base)
        munmap(base, bytes);
    free(backing);
}

struct backing *backing_host(void)
{
    struct backing *backing = memory_zeroed(1, sizeof *backing);

    *backing = (struct backing){
        .reserve = host_reserve,
        .map = host_map,
        .unmap = host_unmap,
        .zero = host_zero,
#ifdef ARENA_CHECKED
        .opened = host_opened,
        .closed = host_closed,
#endif
        .destroy = host_destroy,
    };
    return backing;
}

int arena_create_host(uint64_t cap_bytes, struct arena **out, struct fl_error *e)
{
    return arena_create(backing_host(), cap_bytes, out, e);
}
