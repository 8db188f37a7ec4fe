// SPDX-License-Identifier: Apache-2.0
// train/dry_run: the closed form beside it over random jobs, the models of the two seed jobs, and
// the routing it assumes.
#include "unit/check.h"

#include "base/file.h"
#include "comm/dry.h"
#include "job/plan.h"
#include "mem/arena.h"
#include "ops/dry/routing.h"
#include "train/dry_run.h"
#include "train/planned.h"
#include "unit/random_jobs.h"
#include "unit/seed_jobs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define JOBS 10000

static struct spec *spec_of(const char *text)
{
    struct spec *spec;
    struct fl_error e;

    check_ok(spec_parse_yaml(text, strlen(text), "job.yaml", &spec, &e), &e);
    return spec;
}

static struct dry_result dry_of(const struct spec *spec, const struct model *model,
                                const struct plan *plan, int threads, double skew)
{
    const struct dry_job job = {spec, model, &plan->layout, plan->cpu, threads, skew};
    struct dry_result result;
    struct fl_error e;

    check_ok(dry_run(&job, &result, &e), &e);
    return result;
}

static void plans_compare(int number, const char *text, const struct model *m,
                          const struct plan *plan, const struct dry_result *dry)
{
    for (int c = 0; c < MEMORY_CATEGORIES; c++) {
        if (plan->bytes[c] == dry->peak[c])
            continue;
        for (int i = 0; i < plan->term_count; i++)
            if ((int)plan->terms[i].category == c)
                print_message("%s: %s: %llu\n", plan->terms[i].name, plan->terms[i].formula,
                              (unsigned long long)plan->terms[i].bytes);
        fail_msg("job %d: %s: %llu bytes in closed form, %llu in the dry run\n%s"
                 "layers %d hidden %d heads %d/%d x %d experts %d/%d x %d vocab %d; the dry run's "
                 "largest: %llu at %s",
                 number, memory_category_name((enum memory_category)c),
                 (unsigned long long)plan->bytes[c], (unsigned long long)dry->peak[c], text,
                 m->layers, m->hidden, m->heads, m->kv_heads, m->head_dim, m->top_k, m->experts,
                 m->expert_width, m->vocab, (unsigned long long)dry->sight.largest,
                 dry->sight.largest_where);
    }
}

// The same bytes in every category, to the last one.
static void closed_form_beside_dry_run(void **state)
{
    (void)state;
    for (int i = 0; i < JOBS; i++) {
        int ep = drawn(1, 8), world = ep * drawn(1, 2), threads = drawn(1, 5);
        struct model model = model_draw(ep);
        char *text = job_draw(ep, backend_draw());
        struct spec *spec = spec_of(text);
        struct dry_result dry;
        struct plan plan;
        struct fl_error e;
        uint64_t sum = 0;
        check_ok(plan_make_threads(spec, &model, world, threads, 0, &plan, &e), &e);
        dry = dry_of(spec, &model, &plan, threads, ROUTING_WORST);
        plans_compare(i, text, &model, &plan, &dry);
        for (int c = 0; c < MEMORY_CATEGORIES; c++) {
            sum += dry.at_peak[c];
            assert_true(dry.at_peak[c] <= dry.peak[c]);
        }
        assert_true(sum == dry.sight.peak_total);
        assert_true(dry.sight.mapped >= sum && dry.sight.mapped % ARENA_GRANULE == 0);
        spec_destroy(spec);
        free(text);
    }
}

static struct model model_of(const char *name)
{
    char path[512], *text;
    size_t bytes;
    struct model model;
    struct fl_error e;

    snprintf(path, sizeof path, FL_SOURCE_DIR "/tests/data/configs/%s", name);
    check_ok(file_read(path, 1 << 20, &text, &bytes, &e), &e);
    check_ok(model_parse(text, bytes, path, &model, &e), &e);
    free(text);
    return model;
}

static double cpu_seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

// Large models take no longer than a person notices.
static void seed_jobs(void **state)
{
    struct model model = model_of("qwen3-30b-a3b.json");
    struct spec *spec;
    struct dry_result dry;
    struct plan plan;
    struct fl_error e;
    double start;
    (void)state;
    check_ok(spec_parse_flags(SEED_WORDS(seed_job_1), &spec, &e), &e);
    start = cpu_seconds();
    check_ok(planned_make(spec, &model, 8, 1, 0, &plan, &e), &e);
    print_message("# 30B, EP 8: %.1f ms\n", (cpu_seconds() - start) * 1e3);
    assert_true(cpu_seconds() - start < 1);
    assert_true(plan.dry && !plan.cpu);
    assert_string_equal(plan.peak_where, "layer 47 backward: fc1_backward");
    // The experts' output, 8 ranks x 16 experts x 512 rows under the capacity, comes first.
    assert_true(plan.largest_bytes == 65536ull * 2048 * 2);
    assert_int_equal(plan.largest_category, MEMORY_ACTIVATIONS);
    assert_string_equal(plan.largest_where, "layer 0 forward: fc2_forward");
    spec_destroy(spec);
    model = model_of("qwen3-coder-480b.json");
    check_ok(spec_parse_flags(SEED_WORDS(seed_job_2), &spec, &e), &e);
    spec->tensor_parallel = 1;
    spec->micro_batch_size = 2;
    start = cpu_seconds();
    check_ok(planned_make(spec, &model, 8, 1, 0, &plan, &e), &e);
    print_message("# 480B, EP 8: %.1f ms\n", (cpu_seconds() - start) * 1e3);
    assert_true(cpu_seconds() - start < 1);
    assert_true(plan.dry);
    assert_string_equal(plan.peak_where, "layer 61 backward: fc1_backward");
    // Less skew, less memory.
    plan.total_bytes = 0;
    for (double skew = ROUTING_BALANCED; skew <= 2; skew *= 2) {
        dry = dry_of(spec, &model, &plan, 1, skew);
        assert_true(dry.sight.peak_total > plan.total_bytes);
        plan.total_bytes = dry.sight.peak_total;
    }
    dry = dry_of(spec, &model, &plan, 1, ROUTING_WORST);
    assert_true(dry.sight.peak_total > plan.total_bytes); // the capacity is rounded up
    spec_destroy(spec);
}

// A head beyond every layer, an evaluation beyond every training pass.
static void places(void **state)
{
    struct model model = model_of("qwen3-30b-a3b.json");
    struct spec *spec = spec_of("model: m\ndataset: d\nval_dataset: v\nmax_length: 1024\n"
                                "moe_expert_capacity_factor: 0.1\n"
                                "expert_model_parallel_size: 8\nlora_rank: 1\n");
    struct plan plan;
    struct fl_error e;
    (void)state;
    check_ok(planned_make(spec, &model, 8, 1, 0, &plan, &e), &e);
    assert_string_equal(plan.peak_where, "layer 0 forward: rows_scatter");
    spec->capacity_factor = 0;
    spec->max_length = 16;
    model.expert_width = 8;
    check_ok(planned_make(spec, &model, 8, 1, 0, &plan, &e), &e);
    assert_string_equal(plan.peak_where, "head_backward");
    assert_string_equal(plan.largest_where, "head_forward");
    spec_destroy(spec);
}

static void what_a_rank_sends(void **state)
{
    static const double skews[] = {ROUTING_BALANCED, 1.5, 3, ROUTING_WORST};
    (void)state;
    for (int i = 0; i < 5000; i++) {
        int ep = drawn(1, 8), local = drawn(1, 9);
        struct dry_routing r = {.tokens = drawn(0, 300),
                                .experts = ep * local,
                                .top_k = drawn(1, ep * local),
                                .experts_local = local,
                                .expert_first = drawn(0, ep - 1) * local,
                                .capacity = drawn(0, 1) ? drawn(1, 200) : 0};
        int64_t counts[8 * 9], before = 0, most = r.capacity ? r.capacity : r.tokens;
        for (size_t s = 0; s < sizeof skews / sizeof *skews; s++) {
            int64_t mine = 0, all = 0, slots = (int64_t)r.tokens * r.top_k;
            r.skew = skews[s];
            dry_routing_count(&r, counts);
            for (int x = 0; x < r.experts; x++) {
                assert_true(counts[x] >= 0 && counts[x] <= most && counts[x] <= r.tokens);
                all += counts[x];
                if (x >= r.expert_first && x < r.expert_first + local)
                    mine += counts[x];
            }
            assert_true(all <= slots);
            if (!r.capacity)
                assert_true(all == slots); // nothing is dropped
            assert_true(mine >= before);   // more skew, more rows
            assert_true(mine <= (int64_t)r.tokens * (r.top_k < local ? r.top_k : local));
            before = mine;
        }
    }
}

// Peers are like this rank; what is only an address stays one.
static void peers_alike(void **state)
{
    int64_t send[6] = {10, 11, 20, 21, 30, 31}, recv[6] = {0};
    size_t bytes[3] = {8, 16, 24};
    struct comm *comm, *half;
    struct arena *arena;
    struct fl_error e;
    double sum = 3;
    void *device;
    (void)state;
    check_ok(comm_dry_create(1, 3, &comm, &e), &e);
    assert_int_equal(comm_rank(comm), 1);
    assert_int_equal(comm_size(comm), 3);
    check_ok(comm_all_to_all(comm, send, recv, 16, &e), &e);
    for (int r = 0; r < 3; r++)
        assert_true(recv[2 * r] == 20 && recv[2 * r + 1] == 21);
    check_ok(comm_all_gather(comm, send, recv, 16, &e), &e);
    for (int r = 0; r < 3; r++)
        assert_true(recv[2 * r] == 10 && recv[2 * r + 1] == 11);
    check_ok(comm_all_reduce(comm, &sum, 1, COMM_F64, COMM_SUM, &e), &e);
    check_ok(comm_broadcast(comm, &sum, sizeof sum, 2, &e), &e);
    check_ok(comm_barrier(comm, &e), &e);
    assert_true(sum == 3);
    check_ok(arena_create_dry(0, &arena, &e), &e);
    check_ok(arena_push(arena, MEMORY_COMMUNICATION, 1 << 20, &device, &e), &e);
    check_ok(comm_all_to_all_v(comm, device, bytes, device, bytes, &e), &e);
    check_ok(comm_all_reduce(comm, device, 100, COMM_F32, COMM_SUM, &e), &e);
    arena_destroy(arena);
    check_error(comm_split(comm, 0, 0, &half, &e), &e, "a dry group of 3 ranks cannot be split");
    assert_false(comm_alive(comm));
    comm_destroy(comm);
}

// The cap is held against what would be mapped; jobs the trainer refuses keep the closed form.
static void caps_and_refusals(void **state)
{
    struct model model = model_of("qwen3-30b-a3b.json");
    struct spec *spec = spec_of("model: m\ndataset: d\nmicro_batch_size: 2\n"
                                "expert_model_parallel_size: 2\n");
    struct plan plan, closed;
    struct fl_error e;
    (void)state;
    check_ok(planned_make(spec, &model, 2, 1, 0, &plan, &e), &e);
    check_ok(plan_make(spec, &model, 2, 0, &closed, &e), &e);
    assert_memory_equal(plan.bytes, closed.bytes, sizeof plan.bytes);
    assert_true(plan.total_bytes < closed.total_bytes); // not all peak at once
    assert_true(plan.mapped_bytes - plan.total_bytes < 2 * ARENA_GRANULE);
    check_ok(planned_make(spec, &model, 2, 1, plan_need(&plan), &plan, &e), &e);
    check_error(planned_make(spec, &model, 2, 1, plan_need(&plan) - 1, &plan, &e), &e,
                "job.yaml: the plan of ");
    assert_int_equal(e.code, -ENOSPC);
    assert_non_null(strstr(e.text, "; it fits with "));
    assert_true(plan.dry);
    spec->shard_frozen = true;
    check_ok(planned_make(spec, &model, 2, 1, 0, &plan, &e), &e);
    assert_false(plan.dry);
    spec->shard_frozen = false;
    spec->max_length = 1 << 24;
    spec->micro_batch_size = 8;
    check_error(
        planned_make(spec, &model, 2, 1, 0, &plan, &e), &e,
        "job.yaml: micro_batch_size 8 x max_length 16777216 tokens of 2 ranks are more rows "
        "than a layer can count");
    spec->max_length = 16;
    model.layers = 1025;
    check_error(planned_make(spec, &model, 2, 1, 0, &plan, &e), &e,
                "job.yaml: 1025 layers of 64 experts a rank: no plan is made beyond 1024 layers");
    spec_destroy(spec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_form_beside_dry_run),
        cmocka_unit_test(seed_jobs),
        cmocka_unit_test(places),
        cmocka_unit_test(what_a_rank_sends),
        cmocka_unit_test(peers_alike),
        cmocka_unit_test(caps_and_refusals),
    };
    return cmocka_run_group_tests_name("dry_run", tests, NULL, NULL);
}
