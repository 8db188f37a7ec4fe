// SPDX-License-Identifier: Apache-2.0
// Places, start and refusals of the LoRA parameters.
#include "unit/check.h"

#include "job/spec.h"
#include "net/adapters.h"

#include <math.h>
#include <stdlib.h>

static const struct model shape = {.layers = 2,
                                   .hidden = 10,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .head_dim = 8,
                                   .experts = 4,
                                   .top_k = 2,
                                   .expert_width = 6,
                                   .vocab = 16};

static void setup(struct spec *spec, struct layout *layout, int ep, int rank)
{
    struct fl_error e;

    *spec = (struct spec){.source = (char *)"job.yaml",
                          .lora_targets = LORA_ALL_LINEAR,
                          .lora_rank = 3,
                          .lora_alpha = 6,
                          .tensor_parallel = 1,
                          .expert_parallel = ep,
                          .micro_batch_size = 1,
                          .global_batch_size = ep};
    check_ok(layout_make(spec, &shape, ep, rank, layout, &e), &e);
}

static void places(void **state)
{
    struct fl_error e;
    struct spec spec;
    struct layout layout;
    struct arena *arena;
    struct arena_stats stats;
    struct adapters *a;
    struct adapter *fc1;
    (void)state;
    setup(&spec, &layout, 2, 1);
    check_ok(arena_create_host(0, &arena, &e), &e);
    check_ok(adapters_create(&spec, &shape, &layout, arena, &a, &e), &e);
    // qkv: A [3, 10], B [64, 3]; proj: A [3, 32], B [10, 3]
    assert_int_equal(a->replicated, 2 * 3 * (10 + 64 + 32 + 10));
    // fc1: A [3, 10], B [12, 3]; fc2: A [3, 6], B [10, 3]; two local experts
    assert_int_equal(a->expert, 2 * 2 * 3 * (10 + 12 + 6 + 10));
    assert_int_equal(a->count, 2 * (2 + 2 * 2));
    assert_true(a->scale == 2);
    fc1 = adapters_find(a, 1, LORA_FC1, 3);
    assert_non_null(fc1);
    assert_int_equal(fc1->a, adapters_find(a, 1, LORA_FC1, 2)->a + 3 * 10);
    assert_int_equal(fc1->b, adapters_find(a, 1, LORA_FC1, 2)->b + 12 * 3);
    assert_int_equal(adapters_find(a, 1, LORA_FC1, 2)->b, fc1->a + 3 * 10);
    assert_null(adapters_find(a, 1, LORA_FC1, 1)); // another rank's
    assert_null(adapters_find(a, 0, LORA_Q, -1));
    arena_stats_get(arena, &stats);
    assert_true(stats.used[MEMORY_ADAPTERS] >= (a->replicated + a->expert) * sizeof(real));
    assert_int_equal(stats.used[MEMORY_ADAPTERS], stats.used[MEMORY_GRADIENTS]);
    adapters_destroy(a);
    adapters_destroy(NULL);
    arena_destroy(arena);
}

static void start_by_expert(void **state)
{
    struct fl_error e;
    struct spec spec;
    struct layout all, half;
    struct arena *arena;
    struct adapters *a, *b;
    double squares = 0;
    (void)state;
    check_ok(arena_create_host(0, &arena, &e), &e);
    setup(&spec, &all, 1, 0);
    check_ok(adapters_create(&spec, &shape, &all, arena, &a, &e), &e);
    setup(&spec, &half, 2, 1);
    check_ok(adapters_create(&spec, &shape, &half, arena, &b, &e), &e);
    adapters_init(a, 42);
    adapters_init(b, 42);
    for (int i = 0; i < b->count; i++) {
        const struct adapter *mine = &b->list[i];
        const struct adapter *same = adapters_find(a, mine->layer, mine->target, mine->expert);
        size_t count = (size_t)mine->rank * (size_t)mine->in;
        assert_memory_equal(b->params + mine->a, a->params + same->a, count * sizeof(real));
        for (size_t j = 0; j < count; j++) {
            assert_true(fabs((double)b->params[mine->a + j]) <= 1 / sqrt(mine->in));
            squares += pow((double)b->params[mine->a + j], 2) * mine->in / (double)count;
        }
        for (size_t j = 0; j < (size_t)mine->rank * (size_t)mine->out; j++)
            assert_true(b->params[mine->b + j] == 0);
    }
    assert_true(fabs(squares / b->count - 1.0 / 3) < 0.05); // variance of a uniform: bound^2 / 3
    assert_memory_not_equal(a->params + adapters_find(a, 0, LORA_FC1, 0)->a,
                            a->params + adapters_find(a, 0, LORA_FC1, 1)->a, 30 * sizeof(real));
    adapters_init(b, 43);
    assert_memory_not_equal(a->params, b->params, 30 * sizeof(real));
    adapters_destroy(b);
    adapters_destroy(a);
    arena_destroy(arena);
}

static void refusals(void **state)
{
    struct fl_error e;
    struct spec spec;
    struct layout layout;
    struct arena *arena;
    struct adapters *a;
    (void)state;
    check_ok(arena_create_host(ARENA_GRANULE, &arena, &e), &e);
    setup(&spec, &layout, 1, 0);
    spec.lora_rank = 0;
    check_error(adapters_create(&spec, &shape, &layout, arena, &a, &e), &e,
                "job.yaml: lora_rank 0: must be at least 1");
    setup(&spec, &layout, 1, 0);
    spec.lora_targets |= LORA_V;
    check_error(adapters_create(&spec, &shape, &layout, arena, &a, &e), &e,
                "job.yaml: target_modules: linear_qkv and its q, k or v alone: choose one form");
    setup(&spec, &layout, 1, 0);
    spec.lora_rank = 1 << 16;
    check_error(adapters_create(&spec, &shape, &layout, arena, &a, &e), &e, "for adapters would");
    assert_null(a);
    arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places),
        cmocka_unit_test(start_by_expert),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("adapters", tests, NULL, NULL);
}
