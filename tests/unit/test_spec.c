// SPDX-License-Identifier: Apache-2.0
// job/spec: the old trainer's command lines, job files, and that both give the same job.
#include "unit/check.h"

#include "base/file.h"
#include "base/philox.h"
#include "job/flags.h"
#include "unit/seed_jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int parse_yaml(const char *text, struct spec **spec, struct fl_error *e)
{
    return spec_parse_yaml(text, strlen(text), "job.yaml", spec, e);
}

static bool noted(const struct spec *spec, const char *name)
{
    for (size_t i = 0; i < spec->note_count; i++)
        if (!strncmp(spec->notes[i], name, strlen(name)) && spec->notes[i][strlen(name)] == ':')
            return true;
    return false;
}

static void seed_job_1_word_for_word(void **state)
{
    struct spec *s;
    struct fl_error e;
    (void)state;
    check_ok(spec_load(SEED_WORDS(seed_job_1), &s, &e), &e);
    assert_string_equal(s->source, "command line");
    assert_string_equal(s->model, "/test/weights/Qwen3-Coder-30B-A3B-Instruct-FP8");
    assert_int_equal(s->dataset_count, 1);
    assert_string_equal(s->datasets[0], "/test/ml/CodeAlpaca-20k.jsonl");
    assert_string_equal(s->output_dir, "megatron_output/Qwen3-Coder-30B-A3B-Instruct-FP8-result");
    assert_int_equal(s->lora_targets, LORA_ALL_LINEAR);
    assert_true(s->lora_rank == 16 && s->lora_alpha == 32 && s->lora_dropout == 0.05);
    assert_true(s->tensor_parallel == 1 && s->expert_parallel == 8);
    assert_true(s->micro_batch_size == 2 && s->global_batch_size == 16 && s->max_length == 2048);
    assert_true(s->aux_loss_coeff == 1e-6 && s->capacity_factor == 2);
    assert_true(s->lr == 1e-5 && s->min_lr == 1e-6 && s->lr_warmup_fraction == 0.05);
    assert_true(s->epochs == 1 && s->eval_interval == 200 && s->save_interval == 200);
    assert_true(s->threads == 8 && s->nproc_per_node == 8);
    assert_true(s->main_params == STORAGE_FP16 && s->main_grads == STORAGE_FP32);
    assert_true(s->exp_avg == STORAGE_BF16 && s->exp_avg_sq == STORAGE_BF16);
    assert_true(s->recompute == RECOMPUTE_FULL && !s->shard_frozen && !s->optimizer_offload);
    assert_int_equal(s->note_count, 19);
    assert_true(noted(s, "fp8_recipe") && noted(s, "model_author") && noted(s, "NPROC_PER_NODE"));
    assert_true(noted(s, "moe_shared_expert_overlap") && !noted(s, "exp_avg_dtype"));
    assert_false(noted(s, "lora_rank") || noted(s, "train_type") || noted(s, "merge_lora"));
    spec_destroy(s);
}

// A second moment in bf16 that decays by less than its rounding is told.
static void moments_that_stand_still(void **state)
{
    static const char slow[] = "model: m\ndataset: d\nexp_avg_sq_dtype: bf16\nadam_beta2: 0.999\n";
    static const char quick[] = "model: m\ndataset: d\nexp_avg_sq_dtype: bf16\nadam_beta2: 0.95\n";
    struct spec *s;
    struct fl_error e;
    (void)state;
    check_ok(spec_parse_yaml(slow, strlen(slow), "job.yaml", &s, &e), &e);
    assert_true(noted(s, "exp_avg_sq_dtype"));
    spec_destroy(s);
    check_ok(spec_parse_yaml(quick, strlen(quick), "job.yaml", &s, &e), &e);
    assert_false(noted(s, "exp_avg_sq_dtype"));
    spec_destroy(s);
}

static void seed_job_2_word_for_word(void **state)
{
    struct spec *s;
    struct fl_error e;
    (void)state;
    check_ok(spec_load(SEED_WORDS(seed_job_2), &s, &e), &e);
    assert_string_equal(s->model, "/test/weights/Qwen3-Coder-480B-A35B-Instruct-FP8");
    assert_true(s->lora_rank == 128 && s->lora_alpha == 256);
    assert_true(s->tensor_parallel == 2 && s->expert_parallel == 8 && s->micro_batch_size == 4);
    assert_false(noted(s, "main_params_dtype"));
    spec_destroy(s);
}

static void command_line_forms(void **state)
{
    static const char *const words[] = {"FOO=bar",
                                        "--model=m",
                                        "--dataset",
                                        "a.json",
                                        "b.json",
                                        "c.json",
                                        "--lora-rank",
                                        "4",
                                        "--lora_rank=12",
                                        "--finetune",
                                        "--lr",
                                        "1e-3",
                                        "--moe_grouped_gemm",
                                        "0",
                                        "--target_modules",
                                        "linear_qkv",
                                        "linear_proj"};
    struct spec *s;
    struct fl_error e;
    (void)state;
    check_ok(spec_parse_flags(SEED_WORDS(words), &s, &e), &e);
    assert_string_equal(s->model, "m");
    assert_int_equal(s->dataset_count, 3);
    assert_string_equal(s->datasets[2], "c.json");
    assert_int_equal(s->lora_rank, 12); // the last one
    assert_int_equal(s->lora_targets, LORA_QKV | LORA_PROJ);
    assert_int_equal(s->nproc_per_node, 0);
    assert_int_equal(s->eval_interval, s->save_interval);
    assert_true(noted(s, "FOO") && noted(s, "moe_grouped_gemm"));
    spec_destroy(s);
    spec_destroy(NULL);
}

static void command_line_refusals(void **state)
{
    static const struct {
        const char *words[8], *message;
    } cases[] = {
        {{"sft", "--lora_rnak", "4"}, "unknown flag '--lora_rnak', did you mean '--lora_rank'?"},
        {{"sft", "--lora_rnak=4"}, "unknown flag '--lora_rnak', did you mean '--lora_rank'?"},
        {{"sft", "--frobnicate"}, "unknown flag '--frobnicate': `fp8-lora plan --help-flags`"},
        {{"pt", "--model", "m"}, "unexpected word 'pt': give `sft` and then --flag value pairs"},
        {{"sft", "--model", "m", "n"}, "unexpected word 'n'"},
        {{"sft", "--model", "m", "A=1"}, "unexpected word 'A=1'"},
        {{"sft", "--model"}, "--model: has no value"},
        {{"sft", "--model="}, "--model: has an empty value"},
        {{"sft", "--lora_rank", "--model", "m"}, "--lora_rank: has no value"},
        {{"sft", "--lora_rank", "0"}, "--lora_rank: '0' is not in [1, 65536]"},
        {{"sft", "--tuner_type", "full"}, "--train_type: 'full' is not supported: use lora"},
        {{"sft", "--finetune", "maybe"}, "--finetune: 'maybe' is neither true nor false"},
        {{"NPROC_PER_NODE=0", "sft"}, "NPROC_PER_NODE: '0' is not in [1, 65536]"},
        {{"NPROC_PER_NODE=8x", "sft"}, "NPROC_PER_NODE: '8x' is not in [1, 65536]"},
        {{"NPROC_PER_NODE=", "sft"}, "NPROC_PER_NODE: '' is not in [1, 65536]"},
        {{"sft", "--dataset", "d"}, "command line: model is missing"},
        {{"sft", "--model", "m"}, "command line: dataset is missing"},
        {{"sft", "--"}, "unexpected word '--'"},
    };
    struct spec *s;
    struct fl_error e;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int count = 0;
        while (cases[i].words[count])
            count++;
        check_error(spec_parse_flags(count, (char *const *)cases[i].words, &s, &e), &e,
                    cases[i].message);
        assert_null(s);
    }
    check_error(spec_parse_flags(0, NULL, &s, &e), &e, "command line: model is missing");
}

static void job_file_refusals(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"model: m\ndataset: d\n\nlora_rnak: 4\n",
         "job.yaml:4: unknown key 'lora_rnak', did you mean 'lora_rank'?"},
        {"frobnicate: 4\n", "job.yaml:1: unknown key 'frobnicate': `fp8-lora plan --help-flags`"},
        {"model: m\nlora_rank: 0\n", "job.yaml:2: lora_rank: '0' is not in [1, 65536]"},
        {"model: m\nlora_rank: .nan\n", "job.yaml:2: lora_rank: '.nan' is not a whole number"},
        {"model: m\nlr: .inf\n", "job.yaml:2: lr: '.inf' is not a number"},
        {"lr: [1, 2]\n", "job.yaml:1: lr: takes one value, not 2"},
        {"dataset: []\n", "job.yaml:1: dataset: has no value"},
        {"model: ''\n", "job.yaml:1: model: has an empty value"},
        {"lora_rank: 4\n--lora-rank: 5\n", "job.yaml:2: '--lora-rank' is already set on line 1"},
        {"save: a\n\noutput_dir: b\n", "job.yaml:3: 'output_dir' is already set on line 1"},
        {"merge_lora: true\n", "job.yaml:1: merge_lora: 'true' is not supported: use false"},
        {"model: m\n", "job.yaml: dataset is missing: give a JSON or JSONL file"},
        {"dataset: d\n", "job.yaml: model is missing: give a folder in Hugging Face layout"},
        {"model: m\ndataset: d\nlr: 1e-5\nmin_lr: 1e-4\n", "job.yaml: min_lr 0.0001 is above lr"},
        {"model: m\ndataset: d\nval_dataset: v\neval_interval: 0\n",
         "job.yaml: val_dataset is never evaluated: set eval_interval above 0"},
        {"model: m\ndataset: d\nsplit_dataset_ratio: 0.1\neval_interval: 0\n",
         "job.yaml: what split_dataset_ratio keeps is never evaluated"},
        {"model: m\ndataset: d\nsplit_dataset_ratio: 0.1\nval_dataset: v\n",
         "job.yaml: split_dataset_ratio beside val_dataset: give one of them"},
        {"model: m\ndataset: d\nnumerics: exact\nbackend: cuda\n",
         "job.yaml: numerics exact needs the CPU: set backend cpu"},
        {"model: m\ndataset: d\nmicro_batch_size: 65536\nmax_length: 65536\n",
         "job.yaml: micro_batch_size 65536 x max_length 65536 is above 2147483647 tokens"},
    };
    struct spec *s;
    struct fl_error e;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_error(parse_yaml(cases[i].text, &s, &e), &e, cases[i].message);
        assert_null(s);
    }
}

static int load(const char *word, struct spec **spec, struct fl_error *e)
{
    return spec_load(1, (char *const *)&word, spec, e);
}

static void load_takes_files(void **state)
{
    char path[] = "/tmp/fl-spec-XXXXXX";
    struct spec *s;
    struct fl_error e;
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    close(fd);
    check_ok(file_write(path, "model: m\ndataset: d\n", 20, &e), &e);
    check_ok(load(path, &s, &e), &e);
    assert_string_equal(s->source, path);
    assert_string_equal(s->model, "m");
    spec_destroy(s);
    unlink(path);
    check_error(load("/tmp/fl-spec/none.yaml", &s, &e), &e,
                "/tmp/fl-spec/none.yaml: cannot open: No such file or directory");
    check_error(load("/tmp", &s, &e), &e, "/tmp: not a regular file");
    check_error(load("--model=m", &s, &e), &e, "dataset is missing");
}

// The sample a user starts from is a job.
static void sample_job(void **state)
{
    struct spec *s;
    struct fl_error e;
    (void)state;
    check_ok(load(FL_SOURCE_DIR "/slurm/job.yaml", &s, &e), &e);
    assert_int_equal(s->lora_rank, 16);
    assert_int_equal(s->note_count, 0); // every line of it has its effect
    spec_destroy(s);
}

static uint32_t chance(uint32_t *counter, uint32_t below)
{
    uint32_t out[4];

    philox4x32((uint32_t[]){(*counter)++, 0, 0, 0}, (uint32_t[]){42, 7}, out);
    return out[0] % below;
}

// Some value of a row, valid or not.
static void value_pick(const struct flag *flag, uint32_t *counter, char value[64])
{
    static const char *const numbers[] = {"1", "2", "16", "0.5", "1e-3", "0", "-1", "70000", "x"};
    static const char *const words[] = {"a/b", "with space", "colon: x", "#hash", "it's", "true"};

    if (flag->type == FLAG_BOOL) {
        snprintf(value, 64, "%s", (const char *[]){"true", "false", "1", "0"}[chance(counter, 4)]);
    } else if (flag->type == FLAG_WORD || flag->type == FLAG_LIST) {
        snprintf(value, 64, "%s", words[chance(counter, 6)]);
    } else if (flag->choices) {
        uint32_t skip = chance(counter, 4);
        const char *choice = flag->choices;
        while (skip-- && strchr(choice, ' '))
            choice = strchr(choice, ' ') + 1;
        snprintf(value, 64, "%.*s", (int)strcspn(choice, " "), choice);
    } else {
        snprintf(value, 64, "%s", numbers[chance(counter, 9)]);
    }
}

static void lists_equal(char **a, size_t a_count, char **b, size_t b_count)
{
    assert_int_equal(a_count, b_count);
    for (size_t i = 0; i < a_count; i++)
        assert_string_equal(a[i], b[i]);
}

static void specs_equal(const struct spec *a, const struct spec *b)
{
    size_t count;
    const struct flag *rows = flags_table(&count);

    for (size_t i = 0; i < count; i++) {
        const char *x, *y;
        static const size_t sizes[] = {
            [FLAG_BOOL] = sizeof(bool),        [FLAG_INT] = sizeof(int),
            [FLAG_INT64] = sizeof(int64_t),    [FLAG_UINT64] = sizeof(uint64_t),
            [FLAG_REAL] = sizeof(double),      [FLAG_CHOICE] = sizeof(int),
            [FLAG_TARGETS] = sizeof(unsigned),
        };
        if (rows[i].offset == FLAG_NOWHERE)
            continue;
        x = (const char *)a + rows[i].offset;
        y = (const char *)b + rows[i].offset;
        if (rows[i].type == FLAG_WORD)
            assert_string_equal(*(char *const *)x, *(char *const *)y);
        else if (rows[i].type == FLAG_LIST)
            lists_equal(
                *(char **const *)x, *(const size_t *)((const char *)a + rows[i].count_offset),
                *(char **const *)y, *(const size_t *)((const char *)b + rows[i].count_offset));
        else
            assert_memory_equal(x, y, sizes[rows[i].type]);
    }
    lists_equal(a->notes, a->note_count, b->notes, b->note_count);
}

// What a message says behind its place.
static const char *remedy(const struct fl_error *e, const char *place)
{
    const char *at = e->text;

    if (!strncmp(at, "job.yaml:", 9))
        at = strchr(at + 9, ' ') + 1;
    else if (!strncmp(at, place, strlen(place)))
        at += strlen(place);
    return at;
}

static void both_forms_agree(void **state)
{
    static char words[256][64], yaml[16384];
    uint32_t counter = 0;
    int accepted = 0, refused = 0;
    size_t count;
    const struct flag *rows = flags_table(&count);
    (void)state;
    for (int round = 0; round < 3000; round++) {
        char *argv[256];
        int argc = 0;
        size_t used = 0;
        struct spec *a, *b;
        struct fl_error ea, eb;
        int ra, rb;
        for (size_t i = 0; i < count; i++) {
            const struct flag *flag = &rows[i];
            int values = 1;
            bool alias = flag->aliases[0] && chance(&counter, 2);
            if (i > 1 && chance(&counter, 12)) // model and dataset always, others seldom
                continue;
            if (flag->type == FLAG_LIST || flag->type == FLAG_TARGETS)
                values += (int)chance(&counter, 3);
            snprintf(words[argc], 64, "--%s", alias ? flag->aliases[0] : flag->name);
            used += (size_t)snprintf(yaml + used, sizeof yaml - used, "%s: ", words[argc] + 2);
            argc++;
            used += (size_t)snprintf(yaml + used, sizeof yaml - used, values > 1 ? "[" : "");
            for (int v = 0; v < values; v++, argc++) {
                value_pick(flag, &counter, words[argc]);
                used += (size_t)snprintf(yaml + used, sizeof yaml - used, "%s\"%s\"", v ? ", " : "",
                                         words[argc]);
            }
            used += (size_t)snprintf(yaml + used, sizeof yaml - used, values > 1 ? "]\n" : "\n");
        }
        for (int i = 0; i < argc; i++)
            argv[i] = words[i];
        ra = spec_parse_flags(argc, argv, &a, &ea);
        rb = parse_yaml(yaml, &b, &eb);
        assert_int_equal(ra, rb);
        if (ra) {
            const char *x = remedy(&ea, "command line: "), *y = remedy(&eb, "");
            assert_string_equal(x + strspn(x, "-"), y);
            refused++;
            continue;
        }
        specs_equal(a, b);
        spec_destroy(a);
        spec_destroy(b);
        accepted++;
    }
    assert_true(accepted > 100 && refused > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seed_job_1_word_for_word), cmocka_unit_test(seed_job_2_word_for_word),
        cmocka_unit_test(moments_that_stand_still), cmocka_unit_test(command_line_forms),
        cmocka_unit_test(command_line_refusals),    cmocka_unit_test(job_file_refusals),
        cmocka_unit_test(load_takes_files),         cmocka_unit_test(sample_job),
        cmocka_unit_test(both_forms_agree),
    };
    return cmocka_run_group_tests_name("spec", tests, NULL, NULL);
}
