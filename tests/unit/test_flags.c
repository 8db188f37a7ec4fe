// SPDX-License-Identifier: Apache-2.0
// job/flags: the table is sound, and every row takes what it says and refuses the rest by name.
#include "unit/check.h"

#include "base/bytes.h"
#include "base/memory.h"
#include "job/flags.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int set(struct spec *spec, const struct flag *flag, const char *value, struct fl_error *e)
{
    return flag_set(spec, flag, 1, &value, e);
}

static void table_is_sound(void **state)
{
    size_t count;
    const struct flag *rows = flags_table(&count);
    struct spec spec = {0};
    struct fl_error e;
    (void)state;
    for (size_t i = 0; i < count; i++) {
        const struct flag *f = &rows[i];
        assert_non_null(f->help);
        assert_ptr_equal(flag_find(f->name), f); // no earlier row has the name
        assert_null(f->aliases[FLAG_ALIASES - 1]);
        for (const char *const *alias = f->aliases; *alias; alias++)
            assert_ptr_equal(flag_find(*alias), f);
        if (f->preset)
            check_ok(set(&spec, f, f->preset, &e), &e);
        if (f->type == FLAG_CHOICE || f->type == FLAG_TARGETS)
            assert_non_null(f->choices);
        if (f->type == FLAG_INT || f->type == FLAG_INT64 || f->type == FLAG_REAL)
            assert_true(f->range || f->choices);
        if (f->offset == FLAG_NOWHERE) // it is refused or explained, never silently dropped
            assert_true(f->only || f->note);
    }
    flags_release(&spec);
}

static void names(void **state)
{
    (void)state;
    assert_string_equal(flag_find("lora_rank")->name, "lora_rank");
    assert_string_equal(flag_find("--lora_rank")->name, "lora_rank");
    assert_string_equal(flag_find("--lora-rank")->name, "lora_rank");
    assert_string_equal(flag_find("tuner_type")->name, "train_type");
    assert_string_equal(flag_find("num_train_epochs")->name, "max_epochs");
    assert_string_equal(flag_find("output-dir")->name, "save");
    assert_string_equal(flag_find("save_steps")->name, "save_interval");
    assert_string_equal(flag_find("eval_steps")->name, "eval_interval");
    assert_string_equal(flag_find("dataloader_num_workers")->name, "num_workers");
    assert_string_equal(flag_find("dataset_num_proc")->name, "threads");
    assert_null(flag_find("Lora_rank"));
    assert_null(flag_find(""));
    assert_string_equal(flag_nearest("--lora_rnak"), "lora_rank");
    assert_string_equal(flag_nearest("tuner_typ"), "tuner_type");
    assert_null(flag_nearest("frobnicate"));
}

static void presets(void **state)
{
    struct spec s = {0};
    (void)state;
    flags_preset(&s);
    assert_true(s.lora_rank == 8 && s.lora_alpha == 32 && s.lora_dropout == 0.05);
    assert_int_equal(s.lora_targets, LORA_ALL_LINEAR);
    assert_true(s.tensor_parallel == 1 && s.expert_parallel == 1);
    assert_true(s.micro_batch_size == 1 && s.global_batch_size == 16);
    assert_true(s.lr == 1e-4 && s.min_lr == 0 && s.lr_decay == DECAY_COSINE);
    assert_true(s.adam_beta1 == 0.9 && s.adam_beta2 == 0.95 && s.adam_eps == 1e-8);
    assert_true(s.weight_decay == 0.1 && s.clip_grad == 1 && s.seed == 42);
    assert_true(s.log_interval == 5 && s.save_interval == 500 && s.epochs == 1);
    assert_true(s.aux_loss_coeff == 0 && s.capacity_factor == 0);
    assert_true(s.backend == BACKEND_AUTO && s.numerics == NUMERICS_FP8 && s.threads == 1);
    flags_release(&s);
}

// Every number of the table refuses the same nonsense.
static void numbers_refuse_nonsense(void **state)
{
    static const char *const nonsense[] = {
        "nan", "NaN", "inf", "-inf", "1e999", "0x10", "1 ", " 1",     "1,5",
        "1x",  "one", "--1", "1..2", "1e",    "",     "-",  "1e-999", "99999999999999999999999"};
    size_t count;
    const struct flag *rows = flags_table(&count);
    struct spec spec = {0};
    struct fl_error e;
    (void)state;
    for (size_t i = 0; i < count; i++) {
        if (rows[i].type != FLAG_INT && rows[i].type != FLAG_INT64 && rows[i].type != FLAG_UINT64 &&
            rows[i].type != FLAG_REAL)
            continue;
        for (size_t n = 0; n < sizeof nonsense / sizeof *nonsense; n++) {
            if (rows[i].type == FLAG_REAL && n == sizeof nonsense / sizeof *nonsense - 1)
                continue; // a finite double
            if (set(&spec, &rows[i], nonsense[n], &e) == 0)
                fail_msg("%s takes '%s'", rows[i].name, nonsense[n]);
        }
    }
}

// Both ends of every range, and one beyond.
static void ranges_hold(void **state)
{
    size_t count;
    const struct flag *rows = flags_table(&count);
    struct spec spec = {0};
    struct fl_error e;
    (void)state;
    for (size_t i = 0; i < count; i++) {
        const struct flag *f = &rows[i];
        char text[64], *end;
        double bounds[2];
        if (!f->range)
            continue;
        bounds[0] = strtod(f->range + 1, &end);
        bounds[1] = strtod(end + 1, &end);
        assert_true(bounds[0] < bounds[1]);
        for (int high = 0; high < 2; high++) {
            bool closed = high ? *end == ']' : *f->range == '[';
            if (isinf(bounds[high]))
                continue;
            snprintf(text, sizeof text, "%.0f", bounds[high] + (high ? 1 : -1));
            check_error(set(&spec, f, text, &e), &e, text);
            snprintf(text, sizeof text, "%.0f", bounds[high]);
            if (!closed)
                check_error(set(&spec, f, text, &e), &e, f->range);
            else if (!f->only)
                check_ok(set(&spec, f, text, &e), &e);
        }
    }
    check_error(set(&spec, flag_find("lora_rank"), "0", &e), &e, "'0' is not in [1, 65536]");
    check_error(set(&spec, flag_find("lora_dropout"), "1", &e), &e, "'1' is not in [0, 1)");
    check_error(set(&spec, flag_find("lora_dropout"), "-0.1", &e), &e, "'-0.1' is not in [0, 1)");
    check_error(set(&spec, flag_find("lr"), "0", &e), &e, "'0' is not in (0, inf)");
    check_error(set(&spec, flag_find("lr_warmup_fraction"), "1.5", &e), &e, "is not in [0, 1]");
    check_error(set(&spec, flag_find("micro_batch_size"), "0", &e), &e, "'0' is not in [1, 65536]");
    check_error(set(&spec, flag_find("micro_batch_size"), "2.5", &e), &e, "not a whole number");
    check_error(set(&spec, flag_find("micro_batch_size"), "4294967297", &e), &e, "out of range");
    check_error(set(&spec, flag_find("seed"), "-1", &e), &e, "not a whole number of 0 or more");
    check_error(set(&spec, flag_find("seed"), "18446744073709551616", &e), &e, "is too large");
    check_ok(set(&spec, flag_find("seed"), "18446744073709551615", &e), &e);
    assert_true(spec.seed == UINT64_MAX);
}

static void choices_hold(void **state)
{
    struct spec spec = {0};
    struct fl_error e;
    (void)state;
    check_ok(set(&spec, flag_find("backend"), "cuda", &e), &e);
    assert_int_equal(spec.backend, BACKEND_CUDA);
    check_ok(set(&spec, flag_find("numerics"), "exact", &e), &e);
    assert_int_equal(spec.numerics, NUMERICS_EXACT);
    check_ok(set(&spec, flag_find("lr_decay_style"), "constant", &e), &e);
    assert_int_equal(spec.lr_decay, DECAY_CONSTANT);
    check_error(set(&spec, flag_find("backend"), "gpu", &e), &e,
                "'gpu' is not one of: auto cpu cuda");
    check_error(set(&spec, flag_find("fp8_recipe"), "block", &e), &e, "is not one of: delayed");
    check_error(set(&spec, flag_find("tensor_model_parallel_size"), "3", &e), &e,
                "'3' is not one of: 1 2 4 8");
    for (const char *const *ok = (const char *const[]){"true", "1", "True", "false", "0", NULL};
         *ok; ok++)
        check_ok(set(&spec, flag_find("moe_grouped_gemm"), *ok, &e), &e);
    check_error(set(&spec, flag_find("moe_grouped_gemm"), "yes", &e), &e,
                "'yes' is neither true nor false");
}

static void refused_values(void **state)
{
    static const char *const cases[][3] = {
        {"train_type", "full", "'full' is not supported: use lora"},
        {"merge_lora", "true", "'true' is not supported: use false"},
        {"merge_lora", "1", "'true' is not supported: use false"},
        {"load_safetensors", "false", "'false' is not supported: use true"},
        {"save_safetensors", "0", "'false' is not supported: use true"},
        {"finetune", "false", "'false' is not supported: use true"},
        {"fp8_param_gather", "false", "'false' is not supported: use true"},
        {"truncation_strategy", "left", "'left' is not supported: use delete"},
        {"fp16", "true", "'true' is not supported: use false"},
        {"deepspeed", "zero3", "'zero3' is not supported: use none"},
        {"load", "output", "'output' is not supported: use none"},
        {"streaming", "true", "'true' is not supported: use false"},
        {"loss_scale", "all", "'all' is not supported: use default"},
        {"use_rslora", "true", "'true' is not supported: use false"},
        {"use_dora", "1", "'true' is not supported: use false"},
        {"lora_bias", "all", "'all' is not supported: use none"},
        {"modules_to_save", "lm_head", "'lm_head' is not supported: use none"},
        {"moe_router_dtype", "fp64", "'fp64' is not supported: use fp32"},
        {"main_grads_dtype", "bf16", "'bf16' is not supported: use fp32"},
        {"recompute_method", "block", "'block' is not supported: use uniform"},
        {"recompute_num_layers", "2", "'2' is not supported: use 1"},
        {"pipeline_model_parallel_size", "2", "'2' is not supported: use 1"},
        {"context_parallel_size", "2", "'2' is not supported: use 1"},
        {"expert_tensor_parallel_size", "2", "'2' is not supported: use 1"},
    };
    struct spec spec = {0};
    struct fl_error e;
    size_t count, refusing = 0;
    const struct flag *rows = flags_table(&count);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_error(set(&spec, flag_find(cases[i][0]), cases[i][1], &e), &e, cases[i][2]);
    for (size_t i = 0; i < count; i++)
        refusing += rows[i].only != NULL;
    assert_int_equal(refusing, sizeof cases / sizeof *cases - 1); // each has its line above
}

static void targets(void **state)
{
    const struct flag *flag = flag_find("target_modules");
    struct spec spec = {0};
    struct fl_error e;
    (void)state;
    check_ok(flag_set(&spec, flag, 2, (const char *[]){"linear_qkv", "linear_fc2"}, &e), &e);
    assert_int_equal(spec.lora_targets, LORA_QKV | LORA_FC2);
    check_ok(flag_set(&spec, flag, 4, (const char *[]){"q_proj", "k_proj", "v_proj", "o_proj"}, &e),
             &e);
    assert_int_equal(spec.lora_targets, LORA_Q | LORA_K | LORA_V | LORA_PROJ);
    check_ok(flag_set(&spec, flag, 2, (const char *[]){"gate_up_proj", "down_proj"}, &e), &e);
    assert_int_equal(spec.lora_targets, LORA_FC1 | LORA_FC2);
    check_error(flag_set(&spec, flag, 2, (const char *[]){"all-linear", "q_proj"}, &e), &e,
                "give either it or q_proj, k_proj and v_proj");
    check_error(set(&spec, flag, "router", &e), &e, "router and output layer get no adapter");
    check_error(set(&spec, flag, "lm_head", &e), &e, "leave 'lm_head' out");
    check_error(set(&spec, flag, "linear", &e), &e, "'linear' is not one of: all-linear");
}

static void lists_and_words(void **state)
{
    const struct flag *dataset = flag_find("dataset");
    struct spec spec = {0};
    struct fl_error e;
    (void)state;
    check_ok(flag_set(&spec, dataset, 2, (const char *[]){"a", "b"}, &e), &e);
    check_ok(flag_set(&spec, dataset, 1, (const char *[]){"c"}, &e), &e);
    assert_int_equal(spec.dataset_count, 1);
    assert_string_equal(spec.datasets[0], "c");
    check_error(flag_set(&spec, dataset, 0, NULL, &e), &e, "has no value");
    check_error(flag_set(&spec, dataset, 2, (const char *[]){"a", ""}, &e), &e, "an empty value");
    check_error(flag_set(&spec, flag_find("lr"), 2, (const char *[]){"1", "2"}, &e), &e,
                "takes one value, not 2");
    flags_release(&spec);
}

static void help_names_every_row(void **state)
{
    size_t count, bytes;
    const struct flag *rows = flags_table(&count);
    char *text;
    FILE *out = open_memstream(&text, &bytes);
    (void)state;
    flags_print(out);
    fclose(out);
    for (size_t i = 0; i < count; i++) {
        char line[96];
        snprintf(line, sizeof line, "--%s ", rows[i].name);
        assert_non_null(strstr(text, line));
        assert_non_null(strstr(text, rows[i].help));
    }
    free(text);
}

static void amounts_of_memory(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"80GiB", 80ull << 30}, {"80G", 80ull << 30},  {"1.5 MiB", 3u << 19}, {"7", 7}, {"12B", 12},
        {"2kb", 2000},          {"1TB", 1000000000000}};
    static const char *const bad[] = {"",      "GiB",   "-1",  "1.", "1.5.2",
                                      "1 XiB", "1GiBx", "0x1", "nan"};
    char text[BYTES_TEXT];
    uint64_t bytes;
    struct fl_error e;
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        check_ok(bytes_parse(good[i].text, &bytes, &e), &e);
        assert_true(bytes == good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check_error(bytes_parse(bad[i], &bytes, &e), &e, "write it as 80GiB");
    check_error(bytes_parse("99999999999GiB", &bytes, &e), &e, "more memory than there is");
    assert_string_equal(bytes_format(1023, text), "1023 B");
    assert_string_equal(bytes_format(3ull << 29, text), "1.50 GiB");
    assert_string_equal(bytes_format(2048ull << 40, text), "2048.00 TiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_sound),    cmocka_unit_test(names),
        cmocka_unit_test(presets),           cmocka_unit_test(numbers_refuse_nonsense),
        cmocka_unit_test(ranges_hold),       cmocka_unit_test(choices_hold),
        cmocka_unit_test(refused_values),    cmocka_unit_test(targets),
        cmocka_unit_test(lists_and_words),   cmocka_unit_test(help_names_every_row),
        cmocka_unit_test(amounts_of_memory),
    };
    return cmocka_run_group_tests_name("flags", tests, NULL, NULL);
}
