// SPDX-License-Identifier: Apache-2.0
// mem/arena: categories, peaks, the stack, the cap and its message.
#include "unit/check.h"

#include "mem/arena.h"
#include "mem/device.h"
#include "mem/dry.h"

#include <stdint.h>

static void categories_and_peaks(void **state)
{
    struct arena *arena;
    struct arena_stats s;
    struct arena_mark outer, inner;
    struct fl_error e;
    void *weights, *first, *second, *again;
    (void)state;
    check_ok(arena_create_host(0, &arena, &e), &e);
    check_ok(arena_alloc(arena, MEMORY_WEIGHTS, 1000, &weights, &e), &e);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(((char *)weights)[i], 0);
    outer = arena_mark(arena);
    check_ok(arena_push(arena, MEMORY_ACTIVATIONS, 3 << 20, &first, &e), &e);
    memset(first, 1, 3 << 20);
    inner = arena_mark(arena);
    check_ok(arena_push(arena, MEMORY_WORKSPACE, 1, &second, &e), &e);
    assert_int_equal((uintptr_t)second % ARENA_ALIGNMENT, 0);
    arena_stats_get(arena, &s);
    assert_int_equal(s.used[MEMORY_WEIGHTS], 1024);
    assert_int_equal(s.used[MEMORY_WORKSPACE], 256);
    assert_int_equal(s.used_total, 1024 + (3 << 20) + 256);
    assert_int_equal(s.mapped_total, 2 * ARENA_GRANULE + ARENA_GRANULE);
    arena_release(arena, inner);
    arena_release(arena, outer);
    arena_stats_get(arena, &s);
    assert_int_equal(s.used_total, 1024);
    assert_int_equal(s.peak_total, 1024 + (3 << 20) + 256);
    assert_int_equal(s.peak[MEMORY_ACTIVATIONS], 3 << 20);
    assert_int_equal(s.at_peak[MEMORY_ACTIVATIONS], 3 << 20);
    assert_int_equal(s.at_peak[MEMORY_WORKSPACE], 256);
    assert_int_equal(s.largest, 3 << 20);
    assert_int_equal(s.largest_category, MEMORY_ACTIVATIONS);
    check_ok(arena_push(arena, MEMORY_WORKSPACE, 5, &again, &e), &e);
    assert_ptr_equal(again, first); // the stack's addresses repeat
    check_ok(arena_push(arena, MEMORY_WORKSPACE, 1 << 20, &again, &e), &e);
    arena_stats_get(arena, &s);
    assert_int_equal(s.peak[MEMORY_WORKSPACE], 256 + (1 << 20)); // its own peak is later
    assert_int_equal(s.at_peak[MEMORY_WORKSPACE], 256);
    arena_destroy(arena);
    arena_destroy(NULL);
}

static void cap_hold(struct arena *arena)
{
    struct arena_stats s;
    struct arena_mark mark;
    struct fl_error e;
    void *p;

    check_ok(arena_alloc(arena, MEMORY_WEIGHTS, ARENA_GRANULE, &p, &e), &e);
    mark = arena_mark(arena);
    check_ok(arena_push(arena, MEMORY_WORKSPACE, 2 * ARENA_GRANULE, &p, &e), &e);
    check_error(arena_push(arena, MEMORY_ACTIVATIONS, ARENA_GRANULE + 1, &p, &e), &e,
                "2.0 MiB for activations would exceed the cap of 8.0 MiB; in use: workspace 4.0 "
                "MiB, weights 2.0 MiB");
    assert_null(p);
    check_error(arena_push(arena, MEMORY_ACTIVATIONS, SIZE_MAX, &p, &e), &e, "reserved addresses");
    check_ok(arena_push(arena, MEMORY_ACTIVATIONS, ARENA_GRANULE, &p, &e), &e);
    arena_release(arena, mark);
    check_ok(arena_push(arena, MEMORY_ACTIVATIONS, 3 * ARENA_GRANULE, &p, &e), &e);
    arena_stats_get(arena, &s);
    assert_int_equal(s.mapped_total, s.cap);
    arena_destroy(arena);
}

static void cap_is_hard(void **state)
{
    struct arena *arena;
    struct fl_error e;
    (void)state;
    check_ok(arena_create_host(4 * ARENA_GRANULE, &arena, &e), &e);
    cap_hold(arena);
}

// The same numbers and words where nothing is mapped, and more than any machine has.
static void dry_arena(void **state)
{
    struct arena *arena;
    struct arena_stats s;
    struct fl_error e;
    void *first, *second;
    (void)state;
    check_ok(arena_create_dry(4 * ARENA_GRANULE, &arena, &e), &e);
    cap_hold(arena);
    check_ok(arena_create_dry(0, &arena, &e), &e);
    check_ok(arena_alloc(arena, MEMORY_WEIGHTS, (size_t)1 << 50, &first, &e), &e);
    check_ok(arena_push(arena, MEMORY_WORKSPACE, 1, &second, &e), &e);
    assert_true(dry_address(first) && dry_address(second) && !dry_address(&arena));
    arena_stats_get(arena, &s);
    assert_true(s.mapped_total == ((uint64_t)1 << 50) + ARENA_GRANULE);
    arena_destroy(arena);
}

// A driver of 12 granules that holds every call to the rules of the real one.
#define STUB_BASE     0x700000000000u
#define STUB_GRANULES 12

static struct {
    int created, mapped, reserved, finished;
    int busy; // queued work uses handles up to this
    uint64_t size;
    uint64_t handle_of[64]; // by granule of the range
    bool live[256];         // by handle
    int next;
} stub;

static int stub_reserve(uint64_t *address, size_t bytes)
{
    if (bytes > (size_t)1 << 40)
        return 2; // the most is refused, less is granted
    *address = STUB_BASE;
    stub.size = bytes;
    stub.reserved++;
    return 0;
}

static int stub_unreserve(uint64_t address, size_t bytes)
{
    assert_true(address == STUB_BASE && bytes == stub.size && stub.mapped == 0);
    stub.reserved--;
    return 0;
}

static int stub_create(uint64_t *handle, size_t bytes)
{
    assert_int_equal(bytes, ARENA_GRANULE);
    if (stub.created == STUB_GRANULES)
        return 2;
    stub.created++;
    *handle = (uint64_t)++stub.next;
    stub.live[*handle] = true;
    return 0;
}

static int stub_release(uint64_t handle)
{
    assert_true(stub.live[handle]);
    stub.live[handle] = false;
    stub.created--;
    return 0;
}

// The two halves' granules stand in one short table.
static uint64_t *stub_slot(uint64_t address)
{
    uint64_t offset = address - STUB_BASE, half = stub.size / 2;
    uint64_t granule = offset % half / ARENA_GRANULE;

    assert_true(address >= STUB_BASE && offset < stub.size && offset % ARENA_GRANULE == 0);
    assert_true(granule < 32);
    return &stub.handle_of[granule + (offset >= half ? 32 : 0)];
}

static int stub_map(uint64_t address, size_t bytes, uint64_t handle)
{
    uint64_t *slot = stub_slot(address);

    assert_true(bytes == ARENA_GRANULE && *slot == 0 && stub.live[handle]);
    *slot = handle;
    stub.mapped++;
    return 0;
}

static int stub_unmap(uint64_t address, size_t bytes)
{
    uint64_t *slot = stub_slot(address);

    assert_true(bytes == ARENA_GRANULE && *slot != 0);
    assert_true(*slot > (uint64_t)stub.busy); // queued work may still use it
    *slot = 0;
    stub.mapped--;
    return 0;
}

static int stub_zero(uint64_t address, size_t bytes)
{
    for (uint64_t at = address / ARENA_GRANULE; at <= (address + bytes - 1) / ARENA_GRANULE; at++)
        assert_true(*stub_slot(at * ARENA_GRANULE) != 0);
    return 0;
}

static int stub_finish(void)
{
    stub.finished++;
    stub.busy = 0;
    return 0;
}

static const char *stub_text(int result)
{
    return result == 2 ? "out of memory" : "unknown error";
}

static const struct device_driver stub_driver = {
    stub_reserve, stub_unreserve, stub_create, stub_release, stub_map,
    stub_unmap,   stub_zero,      stub_finish, stub_text,
};

static void device_memory(void **state)
{
    struct arena *arena;
    struct arena_stats s;
    struct arena_mark mark;
    struct fl_error e;
    void *p;
    (void)state;
    check_ok(arena_create(backing_device(&stub_driver), 0, &arena, &e), &e);
    assert_int_equal(stub.reserved, 1);
    check_ok(arena_alloc(arena, MEMORY_WEIGHTS, 3 * ARENA_GRANULE, &p, &e), &e);
    mark = arena_mark(arena);
    check_ok(arena_push(arena, MEMORY_WORKSPACE, 8 * ARENA_GRANULE, &p, &e), &e);
    assert_int_equal(stub.mapped, 11);
    // Two more do not fit, and the failed mapping leaves nothing behind.
    check_error(arena_push(arena, MEMORY_ACTIVATIONS, 2 * ARENA_GRANULE, &p, &e), &e,
                "4.0 MiB for activations were refused (GPU memory: cannot map 4194304 bytes: out "
                "of memory); in use: workspace 16.0 MiB, weights 6.0 MiB");
    assert_int_equal(stub.mapped, 11);
    assert_int_equal(stub.created, 11);
    arena_release(arena, mark);
    // The idle stack gives way to a permanent allocation, after the queued work.
    stub.busy = stub.next;
    check_ok(arena_alloc(arena, MEMORY_OPTIMIZER, 6 * ARENA_GRANULE, &p, &e), &e);
    arena_stats_get(arena, &s);
    assert_int_equal(s.retries, 1);
    assert_int_equal(s.mapped_total, 9 * ARENA_GRANULE);
    assert_int_equal(stub.mapped, 9);
    assert_false(arena_trim(arena));
    check_ok(arena_push(arena, MEMORY_WORKSPACE, 2 * ARENA_GRANULE, &p, &e), &e);
    arena_destroy(arena);
    assert_int_equal(stub.created, 0);
    assert_int_equal(stub.mapped, 0);
    assert_int_equal(stub.reserved, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(categories_and_peaks),
        cmocka_unit_test(cap_is_hard),
        cmocka_unit_test(dry_arena),
        cmocka_unit_test(device_memory),
    };
    return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
