// SPDX-License-Identifier: Apache-2.0
// train/dry_run: the closed form beside it over random jobs, the models of the two seed jobs, and
// the routing it assumes.
#include "unit/check.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/philox.h"
#include "comm/dry.h"
#include "job/plan.h"
#include "mem/arena.h"
#include "ops/dry/routing.h"
#include "train/dry_run.h"
#include "train/planned.h"
#include "unit/seed_jobs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define JOBS 10000

static uint32_t draws;

// A number in [low, high], the same in every run.
static int drawn(int low, int high)
{
    const uint32_t counter[4] = {draws++, 0, 0, 0}, key[2] = {2026, 4};
    uint32_t random[4];

    philox4x32(counter, key, random);
    return low + (int)(random[0] % (uint32_t)(high - low + 1));
}

static const char *chosen(const char *const *list, int count)
{
    return list[drawn(0, count - 1)];
}
#define CHOSEN(list) chosen(list, (int)(sizeof list / sizeof *list))

static struct model model_draw(int ep)
{
    int kv_heads = drawn(1, 4), experts = ep * drawn(1, 12);

    return (struct model){
        .layers = drawn(1, 5),
        .hidden = drawn(16, drawn(0, 1) ? 300 : 7000),
        .heads = kv_heads * drawn(1, 4),
        .kv_heads = kv_heads,
        .head_dim = 2 * drawn(4, 70),
        .experts = experts,
        .top_k = drawn(1, experts < 10 ? experts : 10),
        .expert_width = drawn(1, drawn(0, 1) ? 100 : 3000),
        .vocab = drawn(2, drawn(0, 3) ? 3000 : 200000),
        .rms_eps = 1e-6,
        .rope_theta = 1e4,
        .norm_topk_prob = true,
        .tied_embeddings = drawn(0, 1),
        .fp8 = true,
    };
}

static char *job_draw(int ep)
{
    static const char *const targets[] = {"all-linear",
                                          "[linear_qkv]",
                                          "[linear_proj]",
                                          "[linear_fc1]",
                                          "[linear_fc2]",
                                          "[linear_qkv, linear_fc2]",
                                          "[q_proj]",
                                          "[k_proj]",
                                          "[v_proj, linear_fc1]",
                                          "[q_proj, k_proj, v_proj, o_proj]",
                                          "[q_proj, v_proj, linear_fc1, linear_fc2]"};
    static const char *const backends[] = {"backend: cpu\nnumerics: exact", "backend: cpu",
                                           "backend: cuda"};
    static const char *const capacities[] = {"", "", "moe_expert_capacity_factor: 0.3\n",
                                             "moe_expert_capacity_factor: 1\n",
                                             "moe_expert_capacity_factor: 2.5\n"};
    static const char *const data[] = {"", "val_dataset: v\n"};
    static const char *const dropouts[] = {"0", "0.05"};

    return memory_format("model: m\ndataset: d\nglobal_batch_size: 2882880\n%s\n"
                         "target_modules: %s\nlora_rank: %d\nlora_dropout: %s\n"
                         "micro_batch_size: %d\nmax_length: %d\n"
                         "expert_model_parallel_size: %d\n%s%s",
                         CHOSEN(backends), CHOSEN(targets), drawn(1, drawn(0, 2) ? 40 : 600),
                         CHOSEN(dropouts), drawn(1, 4), drawn(2, drawn(0, 2) ? 700 : 20000), ep,
                         CHOSEN(capacities), CHOSEN(data));
}

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
        char *text = job_draw(ep);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_form_beside_dry_run),
    };
    return cmocka_run_group_tests_name("dry_run", tests, NULL, NULL);
}
