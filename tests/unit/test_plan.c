// SPDX-License-Identifier: Apache-2.0
// job/plan: parameter counts to the digit, weights to the byte, and what moves each category.
#include "unit/check.h"

#include "base/file.h"
#include "job/params.h"
#include "job/plan.h"
#include "job/runnable.h"
#include "unit/seed_jobs.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

static struct model model_of(const char *name)
{
    char path[512], *text;
    size_t bytes;
    struct model model;
    struct fl_error e;

    snprintf(path, sizeof path, FL_SOURCE_DIR "/tests/data/%s", name);
    check_ok(file_read(path, 1 << 20, &text, &bytes, &e), &e);
    check_ok(model_parse(text, bytes, path, &model, &e), &e);
    free(text);
    return model;
}

static struct spec *spec_of(const char *text)
{
    struct spec *spec;
    struct fl_error e;
    char *all;

    assert_true(asprintf(&all, "model: m\ndataset: d\n%s", text) > 0);
    check_ok(spec_parse_yaml(all, strlen(all), "job.yaml", &spec, &e), &e);
    free(all);
    return spec;
}

static uint64_t term_bytes(const struct plan *plan, enum memory_category category, const char *name)
{
    for (int i = 0; i < plan->term_count; i++)
        if (plan->terms[i].category == category && !strcmp(plan->terms[i].name, name))
            return plan->terms[i].bytes;
    return 0;
}

// Terms add up to categories, categories to the total; terms come in the categories' order.
static void sums_check(const struct plan *plan)
{
    uint64_t bytes[MEMORY_CATEGORIES] = {0}, total = 0;

    for (int i = 0; i < plan->term_count; i++) {
        bytes[plan->terms[i].category] += plan->terms[i].bytes;
        assert_true(i == 0 || plan->terms[i].category >= plan->terms[i - 1].category);
        assert_true(strlen(plan->terms[i].formula) < PLAN_FORMULA - 1);
    }
    assert_memory_equal(bytes, plan->bytes, sizeof bytes);
    for (int c = 0; c < MEMORY_CATEGORIES; c++)
        total += bytes[c];
    assert_true(total == plan->total_bytes);
}

static void plan_of_seed_job_1(void **state)
{
    struct model model = model_of("configs/qwen3-30b-a3b.json");
    struct spec *spec;
    struct plan plan;
    struct fl_error e;
    char text[96];
    (void)state;
    check_ok(spec_parse_flags(SEED_WORDS(seed_job_1), &spec, &e), &e);
    check_ok(plan_make(spec, &model, 8, 0, &plan, &e), &e);
    assert_true(plan.base_params == 5164972032);
    assert_true(plan.trainable_params == 88866816);
    snprintf(text, sizeof text, "%.4fM Params (%.4fM Trainable [%.4f%%])",
             (double)(plan.base_params + plan.trainable_params) / 1e6,
             (double)plan.trainable_params / 1e6,
             100.0 * (double)plan.trainable_params /
                 (double)(plan.base_params + plan.trainable_params));
    assert_string_equal(text, "5253.8388M Params (88.8668M Trainable [1.6915%])");
    snprintf(text, sizeof text, "%.2f %.2f %.2f", (double)params_reported_block(&model) / 1e9,
             (double)params_reported_embedding(&model) / 1e9,
             (double)(params_reported_block(&model) + params_reported_embedding(&model)) / 1e9);
    assert_string_equal(text, "29.90 0.62 30.52");
    assert_true(plan.base_params_total == 30532122624);
    assert_true(plan.trainable_params_total == 48ull * (212992 + 128 * 102400));
    assert_true(plan.layout.dp == 8 && plan.layout.ep == 8 && plan.layout.experts_local == 16);
    assert_false(plan.cpu);
    // 128-blocks divide every dimension: bytes are parameters, a fp32 scale for each 16384 of them.
    assert_true(term_bytes(&plan, MEMORY_WEIGHTS, "experts") == 48ull * 16 * 4718592);
    assert_true(term_bytes(&plan, MEMORY_WEIGHTS, "scales of experts") ==
                48ull * 16 * 4718592 / 16384 * 4);
    assert_true(term_bytes(&plan, MEMORY_WEIGHTS, "attention") == 48ull * (10485760 + 8388608));
    assert_true(term_bytes(&plan, MEMORY_WEIGHTS, "routers") == 48ull * 262144 * 4);
    assert_true(term_bytes(&plan, MEMORY_WEIGHTS, "norms") == (48ull * 4352 + 2048) * 4);
    assert_true(term_bytes(&plan, MEMORY_WEIGHTS, "embedding") == 151936ull * 2048 * 2);
    assert_true(plan.bytes[MEMORY_ADAPTERS] == 88866816 * 4);
    assert_true(plan.bytes[MEMORY_GRADIENTS] == 88866816 * 4);
    assert_true(plan.bytes[MEMORY_OPTIMIZER] == 88866816ull * 4); // bf16, twice
    // Capacity: 512 rows of every expert and rank, coming back in bf16.
    assert_true(term_bytes(&plan, MEMORY_COMMUNICATION, "return") == 8 * 16 * 512 * 2048ull * 2);
    sums_check(&plan);
    spec_destroy(spec);
}

static void plan_of_seed_job_2(void **state)
{
    struct model model = model_of("configs/qwen3-coder-480b.json");
    struct spec *spec;
    struct plan plan;
    struct fl_error e;
    (void)state;
    check_ok(spec_parse_flags(SEED_WORDS(seed_job_2), &spec, &e), &e);
    check_ok(plan_make(spec, &model, 8, 0, &plan, &e), &e);
    // Half of the heads and of the vocabulary, one half of q k v's rows of B and of proj's columns.
    assert_true(plan.base_params == 62ull * (6144 * (48 + 4 + 4 + 48) * 128 + 160 * 6144 +
                                             2 * 6144 + 2 * 128 + 20 * 3 * 2560 * 6144) +
                                        151936ull * 6144 + 6144);
    assert_true(plan.trainable_params ==
                62ull * 128 *
                    (6144 + 56 * 128 + 48 * 128 + 6144 + 20 * (6144 + 5120 + 2560 + 6144)));
    assert_true(plan.layout.dp == 4);
    spec->tensor_parallel = 5;
    check_error(plan_make(spec, &model, 10, 0, &plan, &e), &e, "does not divide");
    spec->tensor_parallel = 1;
    spec->micro_batch_size = 2;
    check_ok(plan_make(spec, &model, 8, 0, &plan, &e), &e);
    assert_true(plan.trainable_params == 3478126592);
    assert_true(term_bytes(&plan, MEMORY_WEIGHTS, "experts") == 62ull * 20 * 3 * 2560 * 6144);
    assert_int_equal(plan_make(spec, &model, 8, 80ull << 30, &plan, &e), -ENOSPC);
    sums_check(&plan);
    spec_destroy(spec);
}

// The tiny checkpoint on the CPU: every allocation rounded to 256 bytes, fp32 activations.
static void cpu_backend(void **state)
{
    struct model model = model_of("tiny-qwen3-moe-fp8/config.json");
    struct spec *spec = spec_of("backend: cpu\nlora_rank: 8\nmax_length: 100\n"
                                "expert_model_parallel_size: 4\n");
    struct plan plan;
    struct fl_error e;
    (void)state;
    check_ok(plan_make(spec, &model, 4, 0, &plan, &e), &e);
    assert_true(plan.cpu);
    // 4 experts a rank; fc1's scales are [4, 1 + 1, 2] and fc2's [4, 2, 1] floats.
    assert_true(term_bytes(&plan, MEMORY_WEIGHTS, "experts") == 4 * 4 * 3 * 128 * 256);
    assert_true(term_bytes(&plan, MEMORY_WEIGHTS, "scales of experts") == 4 * (256 + 256));
    // qkv [4 + 2 + 2, 2] blocks, proj [2, 4] blocks.
    assert_true(term_bytes(&plan, MEMORY_WEIGHTS, "scales of attention") == 4 * (256 + 256));
    assert_true(term_bytes(&plan, MEMORY_WEIGHTS, "norms") == 4 * (2 * 1024 + 2 * 512) + 1024);
    assert_true(plan.trainable_params == 4ull * (8 * (256 + 1024) + 8 * (512 + 256) +
                                                 4 * (8 * (256 + 256) + 8 * (128 + 256))));
    assert_true(plan.bytes[MEMORY_ADAPTERS] == plan.trainable_params * 4);
    assert_true(plan.bytes[MEMORY_OPTIMIZER] == plan.trainable_params * 8);
    assert_true(term_bytes(&plan, MEMORY_ACTIVATIONS, "layer inputs") == 5 * 100 * 256 * 4);
    assert_true(term_bytes(&plan, MEMORY_COMMUNICATION, "dispatch") ==
                (100 * 4 + 4 * 100 * 4) * 256 * 4);
    sums_check(&plan);
    spec_destroy(spec);
    spec = spec_of("numerics: exact\n");
    check_ok(plan_make(spec, &model, 1, 0, &plan, &e), &e);
    assert_true(plan.cpu);
    assert_true(plan.bytes[MEMORY_COMMUNICATION] == 0); // nothing leaves the one rank
    spec_destroy(spec);
}

// Blocks restart with q, k, v and with gate, up, and are cut off at the end.
static void partial_blocks(void **state)
{
    struct model model = model_of("tiny-qwen3-moe-fp8/config.json");
    struct spec *spec = spec_of("");
    struct plan plan;
    struct fl_error e;
    (void)state;
    model.hidden = 5000;      // 40 blocks
    model.expert_width = 192; // 2 blocks
    model.head_dim = 40;      // q 160: 2 blocks, k and v 80: 1 block each
    check_ok(plan_make(spec, &model, 1, 0, &plan, &e), &e);
    assert_true(term_bytes(&plan, MEMORY_WEIGHTS, "scales of experts") ==
                4 * (16 * (2 + 2) * 40 * 4 + 16 * 40 * 2 * 4));
    assert_true(term_bytes(&plan, MEMORY_WEIGHTS, "scales of attention") == 4 * (768 + 512));
    spec_destroy(spec);
}

static void targets_and_ties(void **state)
{
    struct model model = model_of("tiny-qwen3-moe-fp8/config.json");
    struct spec *spec = spec_of("target_modules: [q_proj, k_proj, v_proj, o_proj]\n");
    struct fl_error e;
    struct plan plan, tied;
    (void)state;
    assert_true(params_trainable(spec, &model, 1, 16) ==
                4 * 8 * ((256 + 512) + 2 * (256 + 256) + (512 + 256)));
    check_ok(plan_make(spec, &model, 1, 0, &plan, &e), &e);
    model.tied_embeddings = true;
    check_ok(plan_make(spec, &model, 1, 0, &tied, &e), &e);
    assert_true(plan.base_params - tied.base_params == 4096 * 256);
    assert_true(plan.bytes[MEMORY_WEIGHTS] - tied.bytes[MEMORY_WEIGHTS] == 4096 * 256 * 2);
    spec_destroy(spec);
}

// Rows of the experts: every choice of every rank, or what the capacity lets pass, rounded up.
static void capacity_bounds_rows(void **state)
{
    struct model model = model_of("tiny-qwen3-moe-fp8/config.json");
    static const struct {
        const char *text;
        uint64_t rows, sent;
    } cases[] = {
        {"backend: cpu\nmax_length: 100\nexpert_model_parallel_size: 8\n", 8 * 100 * 2,
         400}, // 2 experts a rank
        {"backend: cpu\nmax_length: 100\nexpert_model_parallel_size: 4\n", 4 * 100 * 4,
         400}, // top 4 of 4
        {"backend: cpu\nmax_length: 100\nexpert_model_parallel_size: "
         "8\nmoe_expert_capacity_factor: 1\n",
         8 * 2 * 25, 400},
        {"backend: cpu\nmax_length: 99\nexpert_model_parallel_size: 8\nmoe_expert_capacity_factor: "
         "1\n",
         8 * 2 * 25, 396},
        {"backend: cpu\nmax_length: 100\nexpert_model_parallel_size: "
         "8\nmoe_expert_capacity_factor: 1e6\n",
         8 * 100 * 2, 400},
    };
    struct fl_error e;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct spec *spec = spec_of(cases[i].text);
        struct plan plan;
        check_ok(plan_make(spec, &model, 8, 0, &plan, &e), &e);
        assert_true(term_bytes(&plan, MEMORY_COMMUNICATION, "dispatch") ==
                    (cases[i].rows + cases[i].sent) * 256 * 4);
        sums_check(&plan);
        spec_destroy(spec);
    }
}

// The operation with the largest scratch gives the workspace, the larger of a layer and the head
// the activations.
static void the_widest_counts(void **state)
{
    struct model model = model_of("tiny-qwen3-moe-fp8/config.json");
    struct spec *spec = spec_of("backend: cpu\nlora_rank: 8\nmax_length: 300\n");
    struct plan plan, more;
    struct fl_error e;
    uint64_t scratch = 8 * (256 + 1024) + 256 * (3 * 256 + 1024 + 2 * 8); // A, B, rows, dy, S
    (void)state;
    check_ok(plan_make(spec, &model, 1, 0, &plan, &e), &e);
    assert_true(term_bytes(&plan, MEMORY_ACTIVATIONS, "logits") == 0);
    model.vocab = 100000;
    check_ok(plan_make(spec, &model, 1, 0, &plan, &e), &e);
    assert_true(term_bytes(&plan, MEMORY_ACTIVATIONS, "logits") == 256 * 100000 * 4);
    assert_true(term_bytes(&plan, MEMORY_ACTIVATIONS, "experts of a layer") == 0);
    model.vocab = 64;
    model.expert_width = 512;
    check_ok(plan_make(spec, &model, 1, 0, &plan, &e), &e);
    assert_true(term_bytes(&plan, MEMORY_WORKSPACE, "gate and up backward") ==
                (1200 * 2 * 1024 + 256 * 256 + scratch) * 4);
    check_ok(plan_make_threads(spec, &model, 1, 5, 0, &more, &e), &e);
    assert_true(more.bytes[MEMORY_WORKSPACE] - plan.bytes[MEMORY_WORKSPACE] ==
                4 * (256 * 256 + scratch) * 4);
    model.expert_width = 8;
    check_ok(plan_make(spec, &model, 1, 0, &plan, &e), &e);
    assert_true(term_bytes(&plan, MEMORY_WORKSPACE, "q k v backward") ==
                (300 * 1024 + 256 * 256 + scratch) * 4);
    sums_check(&plan);
    spec_destroy(spec);
}

static void cap_and_refusals(void **state)
{
    struct model model = model_of("tiny-qwen3-moe-fp8/config.json");
    struct spec *spec = spec_of("");
    struct plan plan, same;
    struct fl_error e;
    (void)state;
    check_ok(plan_make(spec, &model, 1, 0, &plan, &e), &e);
    assert_true(plan_need(&plan) == plan.total_bytes + (4 << 20) + plan.outside_bytes);
    check_ok(plan_make(spec, &model, 1, plan_need(&plan), &same, &e), &e);
    check_error(plan_make(spec, &model, 1, plan_need(&plan) - 1, &same, &e), &e,
                "job.yaml: the plan of ");
    assert_int_equal(e.code, -ENOSPC);
    assert_true(same.total_bytes == plan.total_bytes);
    check_error(plan_make(spec, &model, 1, 1 << 20, &same, &e), &e,
                "a rank, rounding and context included, is above the cap of 1.00 MiB: ");
    assert_non_null(strstr(e.text, "activations "));
    check_error(plan_make(spec, &model, 3, 0, &plan, &e), &e, "global_batch_size 16");
    model.layers = 1 << 24;
    model.hidden = 1 << 24;
    model.expert_width = 1 << 24;
    check_error(plan_make(spec, &model, 1, 0, &plan, &e), &e, "are beyond any machine: check both");
    spec_destroy(spec);
}

// What the GPU's kernels lack is refused by name, and only where the GPU is asked for by name.
static void shapes_of_the_gpu(void **state)
{
    static const struct {
        size_t member;
        int value;
        const char *words;
    } cases[] = {
        {offsetof(struct model, hidden), 2056, "hidden_size 2056 is not a multiple of 16"},
        {offsetof(struct model, expert_width), 760, "moe_intermediate_size 760 is not"},
        {offsetof(struct model, head_dim), 96, "head_dim 96 is not a multiple of 64 up to 128"},
        {offsetof(struct model, head_dim), 192, "head_dim 192"},
        {offsetof(struct model, experts), 513, "num_experts 513 is not a multiple of 1 up to 512"},
        {offsetof(struct model, top_k), 65, "num_experts_per_tok 65"},
        {offsetof(struct model, vocab), 393217, "vocab_size 393217"},
    };
    struct spec *spec = spec_of("backend: cuda\n");
    struct layout layout = {.experts_local = 128};
    struct fl_error e;
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model model = model_of("configs/qwen3-30b-a3b.json");
        check_ok(runnable_shapes(spec, &model, &layout, &e), &e);
        memcpy((char *)&model + cases[i].member, &cases[i].value, sizeof(int));
        check_error(runnable_shapes(spec, &model, &layout, &e), &e, cases[i].words);
        assert_int_equal(e.code, -ENOTSUP);
        spec->backend = BACKEND_CPU;
        check_ok(runnable_shapes(spec, &model, &layout, &e), &e);
        spec->backend = BACKEND_CUDA;
    }
    spec_destroy(spec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_of_seed_job_1), cmocka_unit_test(plan_of_seed_job_2),
        cmocka_unit_test(cpu_backend),        cmocka_unit_test(partial_blocks),
        cmocka_unit_test(targets_and_ties),   cmocka_unit_test(capacity_bounds_rows),
        cmocka_unit_test(the_widest_counts),  cmocka_unit_test(cap_and_refusals),
        cmocka_unit_test(shapes_of_the_gpu),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
