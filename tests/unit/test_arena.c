// SPDX-License-Identifier: Apache-2.0
// mem/arena: categories, peaks, the stack, the cap and its message.
#include "unit/check.h"

#include "mem/arena.h"

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
    check_ok(arena_push(arena, MEMORY_WORKSPACE, 5, &again, &e), &e);
    assert_ptr_equal(again, first); // the stack's addresses repeat
    arena_destroy(arena);
    arena_destroy(NULL);
}

static void cap_is_hard(void **state)
{
    struct arena *arena;
    struct arena_stats s;
    struct arena_mark mark;
    struct fl_error e;
    void *p;
    (void)state;
    check_ok(arena_create_host(4 * ARENA_GRANULE, &arena, &e), &e);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(categories_and_peaks),
        cmocka_unit_test(cap_is_hard),
    };
    return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
