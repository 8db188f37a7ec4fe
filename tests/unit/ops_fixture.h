// SPDX-License-Identifier: Apache-2.0
// A reference backend of any shape for a test, random values, and comparison with fp64 results.
#ifndef FL_TESTS_UNIT_OPS_FIXTURE_H
#define FL_TESTS_UNIT_OPS_FIXTURE_H

#include "unit/check.h"

#include "base/memory.h"
#include "base/philox.h"
#include "ops/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>

struct fixture {
    struct fl_error e;
    struct model model;
    struct arena *arena;
    struct ops *ops;
};

static inline void fixture_open(struct fixture *f, const struct model *model,
                                enum numerics numerics)
{
    f->model = *model;
    check_ok(arena_create_host(0, &f->arena, &f->e), &f->e);
    check_ok(ops_cpu_create(&f->model, numerics, f->arena, &f->ops, &f->e), &f->e);
}

// Every operation has released its scratch.
static inline void fixture_close(struct fixture *f)
{
    struct arena_stats stats;

    arena_stats_get(f->arena, &stats);
    assert_int_equal(stats.used_total, 0);
    ops_destroy(f->ops);
    arena_destroy(f->arena);
}

// count values uniform in +-spread, the same for the same seed; free().
static inline real *random_reals(uint32_t seed, size_t count, double spread)
{
    real *x = memory_zeroed(count, sizeof *x);

    for (size_t i = 0; i < count; i++) {
        const uint32_t counter[4] = {(uint32_t)i, 0, 0, 0}, key[2] = {seed, 1};
        uint32_t random[4];
        philox4x32(counter, key, random);
        x[i] = (real)((2 * (double)philox_uniform(random[0]) - 1) * spread);
    }
    return x;
}

// Fails unless every value is within tolerance of the greatest expected one.
static inline void close_to(const char *what, const real *ours, const double *expected,
                            size_t count, double tolerance)
{
    double greatest = 0;

    for (size_t i = 0; i < count; i++)
        greatest = fmax(greatest, fabs(expected[i]));
    for (size_t i = 0; i < count; i++)
        if (!(fabs((double)ours[i] - expected[i]) <= tolerance * greatest))
            fail_msg("%s: value %zu is %.9g, not %.9g", what, i, (double)ours[i], expected[i]);
}

#endif
