// SPDX-License-Identifier: Apache-2.0
// report/comment: what nodes and steps write into one text, how it is cut, and what others may do
// to it.
#include "unit/check.h"

#include "report/comment.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// The entry of a node that holds ranks [first, last) of tasks; rank failed (or -1) was killed.
static json_t *entry_of(uint32_t node, uint32_t tasks, uint32_t first, uint32_t last, int failed)
{
    struct comment_node about = {.key = {77, 0, 0}, .node = node, .tasks = tasks};
    struct record *record;
    struct fl_error e;
    json_t *entry;
    int fd;

    check_ok(record_create(tasks, &record, &fd, &e), &e);
    for (uint32_t rank = first; rank < last; rank++) {
        struct record_rank slot = {
            .rank = rank,
            .state = RANK_DONE,
            .gpu = "GPU-01234567-89ab-cdef-0123-456789abcdef",
            .planned_total = UINT64_C(4600) << 20,
            .peak_total = (UINT64_C(4700) + rank) << 20,
            .rss_peak = UINT64_C(9) << 30,
            .tokens_per_second = 1234.5678,
            .loss = 1.25,
        };
        snprintf(slot.node, sizeof slot.node, "node%u", node);
        slot.peak[MEMORY_WEIGHTS] = slot.peak_total;
        if ((int)rank == failed) {
            slot.state = RANK_FAILED;
            slot.exit_code = 9;
            slot.loss = NAN;
            snprintf(slot.cause, sizeof slot.cause, "said \"no\" | {\\x}");
            record_abort(record, rank, 9);
            about.failed_ms = 1000 + node;
        }
        record_write(record, &slot);
    }
    entry = comment_entry(&about, record);
    record_close(record);
    close(fd);
    return entry;
}

static char *merged(const char *old, struct comment_key key, json_t *entry, size_t limit)
{
    struct fl_error e;
    char *text;

    check_ok(comment_merge(old, &key, entry, limit, &text, &e), &e);
    assert_true(strlen(text) <= limit);
    assert_null(strchr(text, '\n'));
    assert_true(comment_has(text, &key, entry));
    return text;
}

static json_t *step_of(const char *text, const char *key)
{
    struct fl_error e;
    json_t *steps = comment_parse(text, &e), *step;

    if (!steps)
        fail_msg("%s: %s", e.text, text);
    step = json_incref(json_object_get(steps, key));
    json_decref(steps);
    return step;
}

static void nodes_and_steps_merge(void **state)
{
    json_t *a = entry_of(0, 4, 0, 2, -1), *b = entry_of(1, 4, 2, 4, -1), *step;
    struct comment_key first = {77, 0, 0}, second = {77, 1, 2};
    char *one, *two, *again, *three;
    (void)state;
    one = merged(NULL, first, a, COMMENT_LIMIT);
    assert_false(comment_has(one, &first, b));
    assert_non_null(strstr(one, "step 0: 4 ranks, peak 4.59 GiB (rank 1), 2 of 4 done {"));
    two = merged(one, first, b, COMMENT_LIMIT);
    assert_ptr_equal(strstr(two, "fp8-lora v1 step 0: 4 ranks, peak 4.59 GiB (rank 3), done {"),
                     two);
    again = merged(two, first, a, COMMENT_LIMIT);
    assert_string_equal(two, again);
    step = step_of(two, "77.0.0");
    assert_int_equal(json_array_size(json_object_get(step, "ranks")), 4);
    assert_int_equal(json_array_size(json_object_get(step, "nodes")), 2);
    for (size_t i = 0; i < 4; i++) // in order, whoever came first
        assert_int_equal(json_integer_value(json_object_get(
                             json_array_get(json_object_get(step, "ranks"), i), "rank")),
                         i);
    json_decref(step);
    three = merged(two, second, a, COMMENT_LIMIT);
    assert_non_null(strstr(three, "done; step 1 restart 2: 4 ranks"));
    step = step_of(three, "77.0.0");
    assert_int_equal(json_array_size(json_object_get(step, "ranks")), 4);
    json_decref(step);
    free(one);
    free(two);
    free(again);
    free(three);
    json_decref(a);
    json_decref(b);
}

// Of several nodes' failures the earliest counts, in whatever order they are written.
// A node holds what the ranks of others told it, and may write after their own daemon did.
static void own_node_knows_best(void **state)
{
    struct comment_key key = {77, 0, 0};
    json_t *first = entry_of(0, 4, 0, 2, 1), *last = entry_of(1, 4, 0, 4, -1), *row, *step;
    char *once, *twice, *swapped;
    (void)state;
    for (size_t rank = 0; rank < 2; rank++)
        json_object_set_new(json_array_get(json_object_get(last, "ranks"), rank), "exit",
                            json_null());
    once = merged(NULL, key, first, COMMENT_LIMIT);
    twice = merged(once, key, last, COMMENT_LIMIT);
    step = step_of(twice, "77.0.0");
    row = json_array_get(json_object_get(step, "ranks"), 1);
    assert_int_equal(json_integer_value(json_object_get(row, "exit")), 9);
    assert_string_equal(json_string_value(json_object_get(row, "state")), "failed");
    assert_int_equal(json_array_size(json_object_get(step, "ranks")), 4);
    json_decref(step);
    free(once);
    free(twice);
    once = merged(NULL, key, last, COMMENT_LIMIT);
    swapped = merged(once, key, first, COMMENT_LIMIT);
    step = step_of(swapped, "77.0.0");
    row = json_array_get(json_object_get(step, "ranks"), 1);
    assert_int_equal(json_integer_value(json_object_get(row, "exit")), 9);
    json_decref(step);
    free(once);
    free(swapped);
    json_decref(first);
    json_decref(last);
}

// Ranks of other nodes are shown, and counted by their own node.
static void others_ranks_are_not_counted(void **state)
{
    struct comment_node about = {.key = {77, 0, 0}, .node = 1, .tasks = 2};
    struct record *record;
    json_t *entry, *node;
    struct fl_error e;
    int fd;
    (void)state;
    check_ok(record_create(2, &record, &fd, &e), &e);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct record_rank slot = {.rank = rank,
                                   .state = RANK_DONE,
                                   .peak_total = UINT64_C(8) >> rank,
                                   .exit_code = rank ? 0 : RECORD_EXIT_UNKNOWN};
        record_write(record, &slot);
    }
    entry = comment_entry(&about, record);
    node = json_array_get(json_object_get(entry, "nodes"), 0);
    assert_int_equal(json_array_size(json_object_get(entry, "ranks")), 2);
    assert_int_equal(json_integer_value(json_array_get(node, 1)), 1);
    assert_int_equal(json_integer_value(json_array_get(node, 2)), 1);
    assert_int_equal(json_integer_value(json_array_get(node, 3)), 4);
    json_decref(entry);
    record_close(record);
    close(fd);
}

// The watch's word counts more than the rank's, for the head, the node's peak and what is cut.
static void measured_counts(void **state)
{
    struct comment_node about = {.key = {77, 0, 0}, .node = 0, .tasks = 2};
    struct record *record;
    struct fl_error e;
    json_t *entry, *other = entry_of(1, 4, 2, 4, -1), *step, *watch, *ranks;
    char *one, *two;
    int fd;
    (void)state;
    check_ok(record_create(2, &record, &fd, &e), &e);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct record_rank slot = {.rank = rank,
                                   .state = RANK_DONE,
                                   .peak_total = UINT64_C(9) << 30,
                                   .measured = (UINT64_C(11) - rank) << 30,
                                   .watch = WATCH_LIMITS,
                                   .members = MEMBERS_CGROUP};
        record_write(record, &slot);
    }
    entry = comment_entry(&about, record);
    one = merged(NULL, about.key, entry, COMMENT_LIMIT);
    assert_non_null(strstr(one, "step 0: 2 ranks, peak 11.00 GiB (rank 0), done {"));
    two = merged(one, about.key, other, COMMENT_LIMIT);
    step = step_of(two, "77.0.0");
    watch = json_object_get(step, "watch");
    assert_int_equal(json_array_size(watch), 1); // the other node had none
    assert_string_equal(json_string_value(json_array_get(json_array_get(watch, 0), 1)), "limit");
    assert_string_equal(json_string_value(json_array_get(json_array_get(watch, 0), 2)), "cgroup");
    ranks = json_object_get(step, "ranks");
    assert_int_equal(json_integer_value(json_object_get(json_array_get(ranks, 1), "measured")),
                     10LL << 30);
    assert_null(json_object_get(json_array_get(ranks, 2), "measured"));
    json_decref(step);
    free(one);
    free(two);
    json_decref(entry);
    json_decref(other);
    record_close(record);
    close(fd);
}

static void earliest_failure_counts(void **state)
{
    json_t *a = entry_of(0, 4, 0, 2, 1), *b = entry_of(1, 4, 2, 4, 3), *step, *failed;
    struct comment_key key = {77, 0, 0};
    (void)state;
    for (int order = 0; order < 2; order++) {
        char *one = merged("", key, order ? a : b, COMMENT_LIMIT);
        char *two = merged(one, key, order ? b : a, COMMENT_LIMIT);
        assert_non_null(strstr(two, "failed at rank 1 {"));
        step = step_of(two, "77.0.0");
        failed = json_object_get(step, "failed");
        assert_int_equal(json_integer_value(json_object_get(failed, "rank")), 1);
        assert_string_equal(json_string_value(json_object_get(failed, "cause")),
                            "said 'no' ' ''x'");
        assert_true(json_is_null(
            json_object_get(json_array_get(json_object_get(step, "ranks"), 1), "loss")));
        json_decref(step);
        free(one);
        free(two);
    }
    json_decref(a);
    json_decref(b);
}

static void text_of_others_stays(void **state)
{
    json_t *a = entry_of(0, 2, 0, 2, -1);
    struct comment_key key = {77, 0, 0};
    static const char *const others[] = {"JS1:{\"nodes\": 3}", "fp8-lora v1 cut {\"steps\":{\"77",
                                         "a\tb"};
    struct fl_error e;
    char *text, *longer, *twice;
    (void)state;
    for (int i = 0; i < 3; i++) {
        text = merged(others[i], key, a, COMMENT_LIMIT);
        assert_ptr_equal(strstr(text, others[i]), text);
        assert_true(asprintf(&longer, "%s; energy=5J", text) > 0);
        twice = merged(longer, key, a, COMMENT_LIMIT);
        assert_string_equal(twice, longer);
        free(twice);
        free(longer);
        free(text);
    }
    char *big = malloc(9000);
    memset(big, 'x', 8999);
    big[8999] = 0;
    check_error(comment_merge(big, &key, a, COMMENT_LIMIT, &text, &e), &e,
                "others' text of 9000 bytes leaves no room");
    free(big);
    json_decref(a);
}

// What has no room goes in the promised order; the totals and the failed rank stay.
static void large_steps_are_cut(void **state)
{
    struct comment_key key = {77, 1, 0}, earlier = {77, 0, 0};
    json_t *small = entry_of(0, 4, 0, 4, -1), *step, *rows, *row;
    char *text = merged("", earlier, small, COMMENT_LIMIT), *next;
    bool found = false;
    size_t i;
    (void)state;
    for (uint32_t node = 0; node < 16; node++) {
        json_t *entry = entry_of(node, 128, node * 8, node * 8 + 8, node == 3 ? 25 : -1);
        next = merged(text, key, entry, COMMENT_LIMIT);
        free(text);
        text = next;
        json_decref(entry);
    }
    step = step_of(text, "77.1.0");
    rows = json_object_get(step, "ranks");
    assert_int_equal(json_array_size(json_object_get(step, "nodes")), 16);
    assert_true(json_array_size(rows) > 16 && json_array_size(rows) < 128);
    json_array_foreach(rows, i, row) found |=
        json_integer_value(json_object_get(row, "rank")) == 25;
    assert_true(found);
    row = json_array_get(rows, json_array_size(rows) - 1);
    assert_int_equal(json_integer_value(json_object_get(row, "rank")), 127);
    assert_non_null(strstr(text, "step 1: 128 ranks, peak 4.71 GiB (rank 127), failed at rank 25"));
    assert_non_null(strstr(text, "step 0: 4 ranks, peak 4.59 GiB (rank 3), done"));
    json_decref(step);
    step = step_of(text, "77.0.0");
    assert_null(json_object_get(step, "ranks"));
    json_decref(step);
    free(text);
    json_decref(small);
}

static void many_steps_are_cut(void **state)
{
    json_t *entry = entry_of(0, 8, 0, 8, -1);
    char *text = strdup("others "), *next;
    (void)state;
    for (uint32_t s = 0; s < 300; s++) {
        struct comment_key key = {77, s, 0};
        next = merged(text, key, entry, COMMENT_LIMIT);
        free(text);
        text = next;
    }
    assert_ptr_equal(strstr(text, "others fp8-lora v1 "), text);
    free(text);
    json_decref(entry);
}

static void hostile_texts(void **state)
{
    static const char *const texts[] = {
        "",
        "fp8-lora v1 ",
        "fp8-lora v1 {",
        "fp8-lora v1 {}",
        "fp8-lora v1 {\"steps\":[]}",
        "fp8-lora v1 {\"steps\":{\"77.0.0\":[1,2]}}",
        "fp8-lora v1 {\"steps\":{\"77.0.0\":{\"nodes\":{},\"ranks\":7,\"failed\":\"x\"}}}",
        "fp8-lora v1 {\"steps\":{\"77.0.0\":{\"nodes\":[1,[],[\"a\"]],\"ranks\":[1,null,[]]}}}",
        "fp8-lora v1 {\"steps\":{\"%n%s\":{\"tasks\":-9e99}}}",
        "\xff\xfe fp8-lora v1 {\"steps\":\xff}",
    };
    json_t *a = entry_of(0, 2, 0, 2, -1), *step;
    struct comment_key key = {77, 0, 0};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char *text = merged(texts[i], key, a, COMMENT_LIMIT);
        step = step_of(text, "77.0.0");
        assert_true(json_array_size(json_object_get(step, "ranks")) >= 2);
        json_decref(step);
        free(text);
    }
    // every truncation of a good text is a readable error, never a crash
    char *good = merged("", key, a, COMMENT_LIMIT);
    for (size_t length = strlen(good); length-- > 0;) {
        struct fl_error e;
        char saved = good[length];
        good[length] = 0;
        assert_null(comment_parse(good, &e));
        assert_true(e.code == -EBADMSG || e.code == -ENOENT);
        good[length] = saved;
    }
    srand(2);
    for (int round = 0; round < 2000; round++) {
        struct fl_error e;
        char *copy = strdup(good), *out;
        for (int flips = rand() % 6; flips >= 0; flips--)
            copy[(size_t)rand() % strlen(good)] = (char)(1 + rand() % 255);
        if (!comment_merge(copy, &key, a, COMMENT_LIMIT, &out, &e)) {
            assert_true(strlen(out) <= COMMENT_LIMIT && comment_has(out, &key, a));
            free(out);
        }
        free(copy);
    }
    free(good);
    json_decref(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_node_knows_best),   cmocka_unit_test(others_ranks_are_not_counted),
        cmocka_unit_test(nodes_and_steps_merge), cmocka_unit_test(earliest_failure_counts),
        cmocka_unit_test(measured_counts),       cmocka_unit_test(text_of_others_stays),
        cmocka_unit_test(large_steps_are_cut),   cmocka_unit_test(many_steps_are_cut),
        cmocka_unit_test(hostile_texts),
    };
    return cmocka_run_group_tests_name("admin_comment", tests, NULL, NULL);
}
