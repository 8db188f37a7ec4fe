// SPDX-License-Identifier: Apache-2.0
// train/: schedule, console lines, metrics, what the launcher says.
#include "unit/check.h"

#include "base/file.h"
#include "job/limits_file.h"
#include "train/console.h"
#include "train/launch.h"
#include "train/metrics.h"
#include "train/schedule.h"

#include <jansson.h>

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct schedule schedule_of(enum decay decay, double warmup, int64_t iterations)
{
    struct spec spec = {.lr = 1e-5,
                        .min_lr = 1e-6,
                        .lr_decay = decay,
                        .lr_warmup_fraction = warmup,
                        .global_batch_size = 16};
    return schedule_make(&spec, iterations);
}

// The old trainer's first line: 1.598721E-07 at iteration 1 of 1251.
static void schedule_warms_up_in_samples(void **state)
{
    struct schedule s = schedule_of(DECAY_COSINE, 0.05, 1251);
    char text[32];
    (void)state;
    snprintf(text, sizeof text, "%.6E", schedule_lr(&s, 16));
    assert_string_equal(text, "1.598721E-07");
    snprintf(text, sizeof text, "%.6E", schedule_lr(&s, 62 * 16));
    assert_string_equal(text, "9.912070E-06");
    assert_true(schedule_lr(&s, 63 * 16) < 1e-5 && schedule_lr(&s, 63 * 16) > 9.9999e-6);
}

static void schedule_decays(void **state)
{
    struct schedule cosine = schedule_of(DECAY_COSINE, 0.5, 100);
    struct schedule linear = schedule_of(DECAY_LINEAR, 0.5, 100);
    struct schedule constant = schedule_of(DECAY_CONSTANT, 0.5, 100);
    struct schedule cold = schedule_of(DECAY_COSINE, 0, 100);
    struct schedule warming = schedule_of(DECAY_COSINE, 1, 100);
    (void)state;
    assert_float_equal(schedule_lr(&cosine, 800), 1e-5, 1e-15);
    assert_float_equal(schedule_lr(&cosine, 1200), 5.5e-6, 1e-15);
    assert_float_equal(schedule_lr(&cosine, 1000), 1e-6 + 9e-6 * 0.5 * (1 + sqrt(0.5)), 1e-15);
    assert_float_equal(schedule_lr(&cosine, 1600), 1e-6, 1e-15);
    assert_float_equal(schedule_lr(&linear, 1000), 7.75e-6, 1e-15);
    assert_float_equal(schedule_lr(&linear, 1600), 1e-6, 1e-15);
    assert_float_equal(schedule_lr(&constant, 400), 5e-6, 1e-15);
    assert_float_equal(schedule_lr(&constant, 1600), 1e-5, 1e-15);
    assert_float_equal(schedule_lr(&cold, 800), 5.5e-6, 1e-15);
    assert_float_equal(schedule_lr(&warming, 800), 5e-6, 1e-15);
    assert_float_equal(schedule_lr(&warming, 1600), 1e-5, 1e-15);
}

static time_t seed_time(void)
{
    setenv("TZ", "UTC", 1);
    tzset();
    return 1765391674; // 2025-12-10 18:34:34 UTC
}

static struct progress seed_progress(void)
{
    return (struct progress){
        .now = seed_time(),
        .iteration = 1,
        .iterations = 1251,
        .consumed_samples = 16,
        .iteration_ms = 36464.72,
        .memory_gib = 12.5,
        .elapsed_s = 36.4647,
        .remaining_s = 36.4647 * 1250,
        .lr = 1.598721e-7,
        .global_batch_size = 16,
        .loss = 14.63566,
        .load_balancing_loss = 3.929863,
        .tokens_per_second = 100,
    };
}

static void iteration_line_field_for_field(void **state)
{
    struct progress p = seed_progress();
    char line[1024];
    (void)state;
    console_iteration_line(&p, line, sizeof line);
    assert_string_equal(
        line, "[2025-12-10 18:34:34] iteration 1/ 1251 | consumed samples: 16 | elapsed time per "
              "iteration (ms): 36464.7 | memory(GiB): 12.5 | elapsed time: 36s | remaining time: "
              "12h 39m 40s | learning rate: 1.598721E-07 | global batch size: 16 | lm loss: "
              "1.463566E+01 | load_balancing_loss: 3.929863E+00 | loss scale: 1.0 | grad norm: "
              "0.000 | number of skipped iterations: 0 | number of nan iterations: 0 |");
    p.memory_gib = 0.034;
    p.loss = NAN;
    p.grad_norm = 1.23456;
    p.skipped = 2;
    p.nan = 1;
    console_iteration_line(&p, line, sizeof line);
    assert_non_null(strstr(line, "| memory(GiB): 0.03 |"));
    assert_non_null(strstr(line, "| lm loss: NAN |"));
    assert_non_null(strstr(line, "| grad norm: 1.235 | number of skipped iterations: 2 | number "
                                 "of nan iterations: 1 |"));
}

static void durations(void **state)
{
    char text[48];
    (void)state;
    console_duration(0.9, text, sizeof text);
    assert_string_equal(text, "0s");
    console_duration(61, text, sizeof text);
    assert_string_equal(text, "1m 1s");
    console_duration(2 * 86400 + 5, text, sizeof text);
    assert_string_equal(text, "2d 0h 0m 5s");
    console_duration(NAN, text, sizeof text);
    assert_string_equal(text, "0s");
}

static void validation_line(void **state)
{
    struct validation v = {.now = seed_time(),
                           .iteration = 200,
                           .iterations = 1251,
                           .loss = 1.5,
                           .targets = 4321,
                           .elapsed_s = 3};
    char line[512];
    (void)state;
    console_validation_line(&v, line, sizeof line);
    assert_string_equal(line, "[2025-12-10 18:34:34] validation loss at iteration 200/ 1251 | lm "
                              "loss value: 1.500000E+00 | lm loss PPL: 4.481689E+00 | tokens: 4321 "
                              "| elapsed time: 3s |");
}

static void metrics_are_json_lines(void **state)
{
    char folder[] = "/tmp/fl-train-XXXXXX", path[64], *text, *line, *rest;
    char model[] = "m\"odel";
    struct spec spec = {.model = model, .global_batch_size = 16};
    struct plan plan = {.layout = {.world = 4, .ep = 2}, .trainable_params_total = 99};
    struct progress p = seed_progress();
    struct validation v = {.iteration = 1, .loss = 2.5, .targets = 7};
    const char *const events[] = {"start", "train", "train", "validation", "end"};
    struct metrics *m, *second;
    struct fl_error e;
    json_t *o;
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    check_ok(file_write(path, "old\n", 4, &e), &e);
    check_ok(metrics_create(folder, &m, &e), &e);
    check_error(metrics_create(folder, &second, &e), &e,
                "metrics.jsonl: another job writes into this folder: choose another output_dir");
    check_ok(metrics_start(m, &spec, &plan, 100, 6, &e), &e);
    check_ok(metrics_train(m, &p, &e), &e);
    p.loss = NAN;
    check_ok(metrics_train(m, &p, &e), &e);
    check_ok(metrics_validation(m, &v, &e), &e);
    check_ok(metrics_end(m, 6, "done", &e), &e);
    metrics_destroy(m);
    check_ok(file_read(path, 10000, &text, NULL, &e), &e);
    line = strtok_r(text, "\n", &rest);
    for (int i = 0; i < 5; i++, line = strtok_r(NULL, "\n", &rest)) {
        assert_non_null(line);
        o = json_loads(line, 0, NULL);
        assert_non_null(o);
        assert_string_equal(json_string_value(json_object_get(o, "event")), events[i]);
        if (i == 0)
            assert_string_equal(json_string_value(json_object_get(o, "model")), "m\"odel");
        if (i == 1)
            assert_float_equal(json_real_value(json_object_get(o, "lm_loss")), 14.63566, 1e-6);
        if (i == 2)
            assert_true(json_is_null(json_object_get(o, "lm_loss")));
        if (i == 3)
            assert_float_equal(json_real_value(json_object_get(o, "lm_loss")), 2.5, 1e-9);
        json_decref(o);
    }
    assert_null(line);
    free(text);
    unlink(path);
    rmdir(folder);
    check_error(metrics_create(folder, &m, &e), &e, "metrics.jsonl: cannot create");
}

static void launcher_environment(void **state)
{
    static const char *const names[] = {
        "FP8_LORA_WORLD",       "FP8_LORA_ARGV0", "FP8_LORA_CAP",
        "SLURM_NTASKS",         "SLURM_PROCID",   "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK", "SLURM_STEP_ID",  "SLURM_LOCALID"};
    char core[] = "core", yaml[] = "job.yaml", x[] = "X", lr[] = "--lr", one[] = "1";
    char *by_hand[] = {core, yaml, NULL}, *flags[] = {core, x, lr, one, NULL};
    struct launch launch;
    struct fl_error e;
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
    check_ok(launch_read(2, by_hand, &launch, &e), &e);
    assert_true(launch.world == 1 && launch.word_count == 1 && launch.cap == 0);
    assert_string_equal(launch.words[0], "job.yaml");
    launch_clear(&launch);

    setenv("SLURM_NTASKS", "8", 1); // a batch script, not a task of a step
    check_ok(launch_read(2, by_hand, &launch, &e), &e);
    assert_int_equal(launch.world, 1);
    launch_clear(&launch);

    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_PROCID", "3", 1);
    setenv("SLURM_LOCALID", "1", 1);
    setenv("FP8_LORA_ARGV0", "--model", 1);
    setenv("FP8_LORA_CAP", "123456789012", 1);
    check_ok(launch_read(4, flags, &launch, &e), &e);
    assert_true(launch.world == 8 && launch.rank == 3 && launch.local_rank == 1);
    assert_true(launch.cap == 123456789012u && launch.word_count == 4);
    assert_string_equal(launch.words[0], "--model");
    assert_string_equal(launch.words[1], "X");
    launch_clear(&launch);

    setenv("FP8_LORA_WORLD", "4", 1);
    check_ok(launch_read(4, flags, &launch, &e), &e);
    assert_int_equal(launch.world, 4);
    launch_clear(&launch);
    setenv("FP8_LORA_CAP", "5GiB", 1);
    check_error(launch_read(4, flags, &launch, &e), &e,
                "environment: FP8_LORA_CAP='5GiB' is not a number");
}

// What the site limits comes through the descriptor; the environment adds a wish below it.
static void launcher_limits(void **state)
{
    const struct limits limits = {.device = {1000, "policy.yaml:1"}, .action = POLICY_KILL};
    char core[] = "core", yaml[] = "job.yaml", *words[] = {core, yaml, NULL};
    struct limits warns = limits;
    struct launch launch;
    struct fl_error e;
    int fd;
    (void)state;

    if (geteuid()) { // only root's are taken
        skip();
        return;
    }
    unsetenv("FP8_LORA_CAP");
    setenv("FP8_LORA_CAP_SOURCE", "mine", 1);
    check_ok(limits_file_create(&limits, LIMITS_FD, &fd, &e), &e);
    check_ok(launch_read(2, words, &launch, &e), &e);
    assert_true(launch.cap == 1000 && launch.limits.action == POLICY_KILL);
    assert_string_equal(launch.cap_source, "policy.yaml:1");
    assert_true(fcntl(LIMITS_FD, F_GETFD) < 0);
    launch_clear(&launch);
    setenv("FP8_LORA_CAP", "999999", 1);
    check_ok(limits_file_create(&limits, LIMITS_FD, &fd, &e), &e);
    check_ok(launch_read(2, words, &launch, &e), &e);
    assert_int_equal(launch.cap, 1000);
    launch_clear(&launch);
    setenv("FP8_LORA_CAP", "900", 1);
    check_ok(limits_file_create(&limits, LIMITS_FD, &fd, &e), &e);
    check_ok(launch_read(2, words, &launch, &e), &e);
    assert_true(launch.cap == 900 && !launch.cap_source);
    launch_clear(&launch);
    unsetenv("FP8_LORA_CAP");
    warns.action = POLICY_WARN;
    check_ok(limits_file_create(&warns, LIMITS_FD, &fd, &e), &e);
    check_ok(launch_read(2, words, &launch, &e), &e);
    assert_true(launch.cap == 0 && launch.limits.device.value == 1000);
    launch_clear(&launch);
    fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(dup2(fd, LIMITS_FD), LIMITS_FD);
    check_error(launch_read(2, words, &launch, &e), &e,
                "limits: descriptor 200 is not a sealed file");
    launch_clear(&launch);
    close(LIMITS_FD);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedule_warms_up_in_samples),
        cmocka_unit_test(schedule_decays),
        cmocka_unit_test(iteration_line_field_for_field),
        cmocka_unit_test(durations),
        cmocka_unit_test(validation_line),
        cmocka_unit_test(metrics_are_json_lines),
        cmocka_unit_test(launcher_environment),
        cmocka_unit_test(launcher_limits),
    };
    return cmocka_run_group_tests_name("train", tests, NULL, NULL);
}
