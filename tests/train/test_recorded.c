// SPDX-License-Identifier: Apache-2.0
// Ranks under a record, as slurmstepd keeps one: what they write, and how they stop when one dies.
#include "unit/check.h"

#include "base/file.h"
#include "report/record.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS 4

static char work[] = "/tmp/fl-recorded-XXXXXX";

struct step {
    struct record *record;
    int fd;
    pid_t launcher;
};

static int setup(void **state)
{
    char path[64];
    FILE *file;

    (void)state;
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMP_NUM_THREADS", "1", 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1); // of the ranks: Open MPI's own
    assert_non_null(mkdtemp(work));
    snprintf(path, sizeof path, "%s/train.jsonl", work);
    file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < 8; i++)
        fprintf(file, "{\"instruction\": \"Return %d\", \"output\": \"return %d\"}\n", i, i);
    fclose(file);
    return 0;
}

static int teardown(void **state)
{
    char command[64];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", work);
    return system(command);
}

// Launchers close descriptors they do not know, so every rank opens the record anew.
static void step_start(struct step *step, int iterations, int rank_bytes_cap)
{
    const char *build = getenv("FL_BUILD_DIR");
    char path[64], job[1024], command[1024];
    struct fl_error e;

    check_ok(record_create(RANKS, &step->record, &step->fd, &e), &e);
    snprintf(path, sizeof path, "%s/job.yaml", work);
    snprintf(job, sizeof job,
             "model: %s/tests/data/tiny-qwen3-moe-fp8\ndataset: %s/train.jsonl\n"
             "output_dir: %s/out\nnumerics: exact\nmax_length: 64\nmicro_batch_size: 1\n"
             "global_batch_size: 4\nexpert_model_parallel_size: 4\ntrain_iters: %d\n"
             "log_interval: 1\n",
             FL_SOURCE_DIR, work, work, iterations);
    check_ok(file_write(path, job, strlen(job), &e), &e);
    snprintf(command, sizeof command,
             "exec 9<>/proc/%d/fd/%d; " RECORD_FD_ENV "=9 FP8_LORA_CAP=%d exec "
             "%s/fp8-lora-core %s",
             getpid(), step->fd, rank_bytes_cap, build ? build : ".", path);
    step->launcher = fork();
    assert_true(step->launcher >= 0);
    if (step->launcher == 0) {
        snprintf(path, sizeof path, "%s/err", work);
        dup2(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
        dup2(STDERR_FILENO, STDOUT_FILENO);
        execlp("mpirun", "mpirun", "--oversubscribe", "--bind-to", "none", "--mca",
               "orte_enable_recovery", "1", "-np", "4", "sh", "-c", command, NULL);
        _exit(127);
    }
}

static void step_end(struct step *step)
{
    record_close(step->record);
    close(step->fd);
}

static bool mpirun_missing(void)
{
    return system("command -v mpirun >/dev/null") != 0;
}

static char *output_read(void)
{
    char path[64], *text;
    struct fl_error e;

    snprintf(path, sizeof path, "%s/err", work);
    check_ok(file_read(path, 1 << 20, &text, NULL, &e), &e);
    return text;
}

static int count_of(const char *text, const char *words)
{
    int count = 0;

    for (; (text = strstr(text, words)); text += strlen(words))
        count++;
    return count;
}

static void ranks_fill_their_slots(void **state)
{
    struct record_rank slot;
    struct step step;
    int status;

    (void)state;
    if (mpirun_missing())
        skip();
    step_start(&step, 2, 1 << 30);
    assert_int_equal(waitpid(step.launcher, &status, 0), step.launcher);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(record_read(step.record, r, &slot), 0);
        assert_true(slot.rank == r && slot.local_rank == r && slot.ep_rank == r);
        assert_int_equal(slot.state, RANK_DONE);
        assert_true(slot.pid > 0 && slot.node[0] && strcmp(slot.gpu, "cpu") == 0);
        assert_int_equal(slot.cap, 1 << 30);
        assert_int_equal(slot.iterations, 2);
        assert_true(slot.tokens > 0 && slot.tokens_per_second > 0 && slot.loss > 0);
        assert_true(slot.peak[MEMORY_WEIGHTS] > 1 << 20 && slot.peak[MEMORY_OPTIMIZER] > 0);
        assert_true(slot.planned_total > 0 && slot.peak_total > 0 && slot.rss_peak > 0);
    }
    step_end(&step);
}

static void a_dead_rank_stops_the_others(void **state)
{
    struct timespec pause = {.tv_nsec = 50000000}, start, end;
    struct record_rank slot = {0};
    struct step step;
    char *text;
    int status;

    (void)state;
    if (mpirun_missing())
        skip();
    step_start(&step, 100000, 1 << 30);
    for (int i = 0; i < 1200 && slot.iterations < 2; i++) {
        nanosleep(&pause, NULL);
        if (record_read(step.record, 2, &slot) != 0)
            slot.iterations = 0;
    }
    assert_true(slot.iterations >= 2);
    clock_gettime(CLOCK_MONOTONIC, &start);
    assert_int_equal(kill(slot.pid, SIGKILL), 0);
    record_abort(step.record, 2, SIGKILL);
    assert_int_equal(waitpid(step.launcher, &status, 0), step.launcher);
    clock_gettime(CLOCK_MONOTONIC, &end);
    assert_true(end.tv_sec - start.tv_sec < 30);
    text = output_read();
    assert_int_equal(count_of(text, "died by signal 9: stopping"), 1);
    assert_int_equal(count_of(text, "fp8-lora: error: rank 2 ("), 1);
    free(text);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(record_read(step.record, r, &slot), 0);
        assert_int_equal(slot.state, r == 2 ? RANK_TRAINING : RANK_FAILED);
    }
    step_end(&step);
}

static void a_refusal_is_in_every_slot(void **state)
{
    struct record_rank slot;
    struct step step;
    char path[64], *text;
    int status;

    (void)state;
    if (mpirun_missing())
        skip();
    snprintf(path, sizeof path, "%s/train.jsonl", work);
    assert_int_equal(truncate(path, 0), 0);
    step_start(&step, 2, 1 << 30);
    assert_int_equal(waitpid(step.launcher, &status, 0), step.launcher);
    text = output_read();
    assert_int_equal(count_of(text, "fp8-lora: error: "), 1);
    free(text);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(record_read(step.record, r, &slot), 0);
        assert_int_equal(slot.state, RANK_FAILED);
        assert_non_null(strstr(slot.cause, "no samples"));
    }
    step_end(&step);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_fill_their_slots),
        cmocka_unit_test(a_dead_rank_stops_the_others),
        cmocka_unit_test(a_refusal_is_in_every_slot),
    };
    return cmocka_run_group_tests_name("recorded", tests, setup, teardown);
}
