// SPDX-License-Identifier: Apache-2.0
// Batches: the order of the data, its independence of the ranks, packing, and bad sizes.
#include "unit/check.h"

#include "base/memory.h"
#include "data/loader.h"
#include "data/shuffle.h"

#include <stdlib.h>

// Sample i has 2 + i % 5 tokens; token p is 100 * i + p, and all but the first two count.
static struct dataset *numbered_dataset(size_t samples)
{
    struct dataset *d = memory_zeroed(1, sizeof *d);

    d->samples = d->records = samples;
    d->offsets = memory_zeroed(samples + 1, sizeof *d->offsets);
    for (size_t i = 0; i < samples; i++)
        d->offsets[i + 1] = d->offsets[i] + 2 + i % 5;
    d->ids = memory_zeroed(d->offsets[samples], sizeof *d->ids);
    d->loss = memory_zeroed(d->offsets[samples], 1);
    for (size_t i = 0; i < samples; i++)
        for (size_t p = 0; p < 2 + i % 5; p++) {
            d->ids[d->offsets[i] + p] = (int32_t)(100 * i + p);
            d->loss[d->offsets[i] + p] = p > 1;
        }
    d->longest = 6;
    return d;
}

static struct loader *loader_of(const struct dataset *d, bool validation, int mbs, int gbs,
                                int dp_rank, int dp_size)
{
    struct loader_options options = {.validation = validation,
                                     .seed = 42,
                                     .micro_batch_size = mbs,
                                     .global_batch_size = gbs,
                                     .dp_rank = dp_rank,
                                     .dp_size = dp_size,
                                     .max_length = 8};
    struct loader *l;
    struct fl_error e;
    check_ok(loader_create(d, &options, &l, &e), &e);
    return l;
}

static void shuffle_is_a_permutation(void **state)
{
    uint32_t order[1000], again[1000], other[1000];
    int seen[1000] = {0}, fixed = 0, same = 0;

    (void)state;
    shuffle_order(7, 3, order, 1000);
    shuffle_order(7, 3, again, 1000);
    shuffle_order(7, 4, other, 1000);
    assert_memory_equal(order, again, sizeof order);
    for (int i = 0; i < 1000; i++) {
        assert_true(order[i] < 1000);
        seen[order[i]]++;
        fixed += order[i] == (uint32_t)i;
        same += order[i] == other[i];
    }
    for (int i = 0; i < 1000; i++)
        assert_int_equal(seen[i], 1);
    assert_true(fixed < 10 && same < 10); // one is expected of each
    shuffle_order(8, 3, other, 1000);
    assert_memory_not_equal(order, other, sizeof order);
    shuffle_order(7, 3, order, 0);
    shuffle_order(7, 3, other, 1);
    assert_int_equal(other[0], 0);
}

// The 24 orders of 4 samples over 24000 epochs: chi-square with 23 degrees of freedom is below 49.7
// with probability 0.999; the seed is fixed, so that the test is too.
static void shuffle_is_uniform(void **state)
{
    int counts[256] = {0}, kinds = 0;
    double chi_square = 0;

    (void)state;
    for (uint64_t epoch = 0; epoch < 24000; epoch++) {
        uint32_t order[4];
        shuffle_order(42, epoch, order, 4);
        counts[order[0] << 6 | order[1] << 4 | order[2] << 2 | order[3]]++;
    }
    for (int i = 0; i < 256; i++)
        if (counts[i]) {
            kinds++;
            chi_square += (counts[i] - 1000.0) * (counts[i] - 1000.0) / 1000.0;
        }
    assert_int_equal(kinds, 24);
    assert_true(chi_square < 49.7);
}

static void packing(void **state)
{
    struct dataset *d = numbered_dataset(5); // 2, 3, 4, 5 and 6 tokens
    struct loader *l = loader_of(d, true, 2, 4, 0, 2);
    struct batch *b = loader_batch_create(l);

    (void)state;
    loader_fill(l, 0, 0, b);
    assert_int_equal(b->samples, 2);
    assert_int_equal(b->tokens, 5);
    assert_int_equal(b->target_count, 1);
    assert_memory_equal(b->ids, ((int32_t[]){0, 1, 100, 101, 102}), 5 * sizeof(int32_t));
    assert_memory_equal(b->targets, ((int32_t[]){-1, -1, -1, 102, -1}), 5 * sizeof(int32_t));
    assert_memory_equal(b->positions, ((int32_t[]){0, 1, 0, 1, 2}), 5 * sizeof(int32_t));
    assert_memory_equal(b->starts, ((int32_t[]){0, 2, 5}), 3 * sizeof(int32_t));
    assert_memory_equal(b->keys, ((uint64_t[]){0, 1, 8, 9, 10}), 5 * sizeof(uint64_t));
    batch_destroy(b);
    loader_destroy(l);
    dataset_destroy(d);
}

// What all ranks together saw of one iteration: for every token its id and key, in order of keys.
struct seen {
    uint64_t key;
    int32_t id, target;
};

static int seen_compare(const void *a, const void *b)
{
    const struct seen *x = a, *y = b;
    return (x->key > y->key) - (x->key < y->key);
}

static size_t iteration_seen(const struct dataset *d, bool validation, int mbs, int gbs,
                             int dp_size, int64_t iteration, struct seen *seen)
{
    size_t count = 0;
    int samples = 0;

    for (int rank = 0; rank < dp_size; rank++) {
        struct loader *l = loader_of(d, validation, mbs, gbs, rank, dp_size);
        struct batch *b = loader_batch_create(l);
        for (int a = 0; a < loader_rounds(l, iteration); a++) {
            int64_t targets = 0;
            loader_fill(l, iteration, a, b);
            assert_int_equal(b->starts[b->samples], b->tokens);
            for (int i = 0; i < b->tokens; i++) {
                seen[count++] = (struct seen){b->keys[i], b->ids[i], b->targets[i]};
                targets += b->targets[i] >= 0;
            }
            assert_int_equal(targets, b->target_count);
            samples += b->samples;
        }
        if (rank == dp_size - 1)
            assert_int_equal(samples, loader_samples(l, iteration));
        batch_destroy(b);
        loader_destroy(l);
    }
    qsort(seen, count, sizeof *seen, seen_compare);
    for (size_t i = 1; i < count; i++)
        assert_true(seen[i].key > seen[i - 1].key);
    return count;
}

static void order_is_independent_of_ranks(void **state)
{
    static const struct {
        int mbs, dp_size;
    } cases[] = {{1, 1}, {2, 1}, {1, 8}, {2, 4}, {4, 2}, {8, 1}, {1, 2}};
    struct dataset *d = numbered_dataset(50);
    struct seen expected[64], seen[64];

    (void)state;
    for (int validation = 0; validation < 2; validation++)
        for (int64_t iteration = 0; iteration < 14; iteration++) {
            size_t count = iteration_seen(d, validation, 1, 8, 1, iteration, expected);
            assert_true(count > 0);
            for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
                assert_int_equal(iteration_seen(d, validation, cases[i].mbs, 8, cases[i].dp_size,
                                                iteration, seen),
                                 count);
                assert_memory_equal(seen, expected, count * sizeof *seen);
            }
        }
    dataset_destroy(d);
}

// Every epoch sees every sample at most once, all but the samples left out, in another order.
static void epochs(void **state)
{
    struct dataset *d = numbered_dataset(50);
    struct loader *l = loader_of(d, false, 8, 8, 0, 1);
    struct batch *b = loader_batch_create(l);
    int32_t first[2][48];

    (void)state;
    assert_int_equal(loader_iterations(l), 6);
    assert_int_equal(loader_left_out(l), 2);
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        int seen[50] = {0}, count = 0;
        for (int64_t i = 0; i < 6; i++) {
            loader_fill(l, 6 * epoch + i, 0, b);
            assert_int_equal(b->samples, 8);
            for (int s = 0; s < 8; s++) {
                first[epoch][count] = b->ids[b->starts[s]] / 100;
                for (int t = b->starts[s]; t < b->starts[s + 1]; t++)
                    assert_int_equal(b->positions[t], t - b->starts[s]);
                assert_int_equal(b->keys[b->starts[s]], (uint64_t)(48 * epoch + count) * 8);
                assert_int_equal(seen[first[epoch][count++]]++, 0);
            }
        }
        assert_int_equal(count, 48);
    }
    assert_memory_not_equal(first[0], first[1], sizeof first[0]);
    loader_fill(l, 0, 0, b); // back to an earlier epoch, as after a restart
    assert_int_equal(b->ids[0] / 100, first[0][0]);
    batch_destroy(b);
    loader_destroy(l);
    dataset_destroy(d);
}

static void iterations_as_megatron(void **state)
{
    struct dataset *d = numbered_dataset(20022); // CodeAlpaca-20k
    struct loader *l = loader_of(d, false, 2, 16, 3, 8);

    (void)state;
    assert_int_equal(loader_iterations(l), 1251);
    assert_int_equal(loader_left_out(l), 6);
    assert_int_equal(loader_rounds(l, 1250), 1);
    assert_int_equal(loader_samples(l, 1250), 16);
    loader_destroy(l);
    dataset_destroy(d);
}

// 11 samples in batches of 8 on 2 ranks: the second batch has 3, so rank 1's second round is empty.
static void validation_ends_early(void **state)
{
    struct dataset *d = numbered_dataset(11);
    struct loader *l = loader_of(d, true, 2, 8, 1, 2);
    struct batch *b = loader_batch_create(l);

    (void)state;
    assert_int_equal(loader_iterations(l), 2);
    assert_int_equal(loader_left_out(l), 0);
    assert_int_equal(loader_rounds(l, 0), 2);
    assert_int_equal(loader_rounds(l, 1), 1);
    assert_int_equal(loader_samples(l, 1), 3);
    loader_fill(l, 1, 0, b);
    assert_int_equal(b->samples, 1);
    assert_int_equal(b->ids[0], 1000);
    loader_fill(l, 1, 1, b);
    assert_int_equal(b->samples, 0);
    assert_int_equal(b->tokens, 0);
    assert_int_equal(b->target_count, 0);
    assert_int_equal(b->starts[0], 0);
    batch_destroy(b);
    loader_destroy(l);
    dataset_destroy(d);
}

static void bad_sizes(void **state)
{
    static const struct {
        struct loader_options options;
        const char *words;
    } cases[] = {
        {{.micro_batch_size = 2, .global_batch_size = 16, .dp_size = 3, .max_length = 8},
         "global_batch_size 16: must be a multiple of micro_batch_size 2 x 3 data-parallel ranks; "
         "try 18"},
        {{.micro_batch_size = 0, .global_batch_size = 16, .dp_size = 1, .max_length = 8},
         "micro_batch_size 0 and global_batch_size 16"},
        {{.micro_batch_size = 1, .global_batch_size = 0, .dp_size = 1, .max_length = 8},
         "global_batch_size 0"},
        {{.micro_batch_size = 1,
          .global_batch_size = 8,
          .dp_size = 2,
          .dp_rank = 2,
          .max_length = 8},
         "data-parallel rank 2 of 2"},
        {{.micro_batch_size = 1, .global_batch_size = 32, .dp_size = 2, .max_length = 8},
         "has 20 samples, less than one global batch: lower global_batch_size 32 or add data"},
        {{.micro_batch_size = 1, .global_batch_size = 8, .dp_size = 2, .max_length = 5},
         "up to 6 tokens, max_length 5: too long"},
        {{.micro_batch_size = 1 << 30, .global_batch_size = 1 << 30, .dp_size = 1, .max_length = 8},
         "too long"},
    };
    struct dataset *d = numbered_dataset(20), *empty = numbered_dataset(0);
    struct loader *l;
    struct fl_error e;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_error(loader_create(d, &cases[i].options, &l, &e), &e, cases[i].words);
        assert_null(l);
    }
    struct loader_options small = {.validation = true,
                                   .micro_batch_size = 1,
                                   .global_batch_size = 32,
                                   .dp_size = 2,
                                   .max_length = 8};
    check_ok(loader_create(d, &small, &l, &e), &e);
    loader_destroy(l);
    check_error(loader_create(empty, &small, &l, &e), &e, "0 samples");
    dataset_destroy(d);
    dataset_destroy(empty);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shuffle_is_a_permutation),
        cmocka_unit_test(shuffle_is_uniform),
        cmocka_unit_test(packing),
        cmocka_unit_test(order_is_independent_of_ranks),
        cmocka_unit_test(epochs),
        cmocka_unit_test(iterations_as_megatron),
        cmocka_unit_test(validation_ends_early),
        cmocka_unit_test(bad_sizes),
    };
    return cmocka_run_group_tests_name("loader", tests, NULL, NULL);
}
