// SPDX-License-Identifier: Apache-2.0
// A small Slurm around the real fp8_lora.so: loads it, and calls its hooks in Slurm's order as
// srun, sbatch and slurmstepd do. What only a live cluster can show is in tests/slurm.
#include "unit/spank_host.h"

#include "report/record.h"

#include <fcntl.h>
#include <getopt.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define MODEL  FL_SOURCE_DIR "/tests/data/tiny-qwen3-moe-fp8"
#define CLIENT "TEST_CLIENT" // in the environment: this program is srun or sbatch

static char program[4096]; // this test's own file

// ---- srun and sbatch: this program again, with their words as its own

// WORDS...: parses as they do, and prints the stamp that the nodes would see.
static int client_main(int argc, char **argv)
{
    struct spank_handle spank = {.job = 77, .step = 0, .tasks = TASKS};
    struct option options[] = {{"fp8-lora", optional_argument, NULL, 'f'},
                               {"ntasks", required_argument, NULL, 'n'},
                               {"multi-prog", no_argument, NULL, 'x'},
                               {"bcast", optional_argument, NULL, 'x'},
                               {"het-group", required_argument, NULL, 'x'},
                               {"cpu-bind", required_argument, NULL, 'x'},
                               {"fp8-lora-show-placement", no_argument, NULL, 's'},
                               {NULL, 0, NULL, 0}};
    const char *inherited = getenv("SLURM_SPANK__SLURM_SPANK_OPTION_fp8_lora_fp8_lora");
    const char *shown = getenv("SLURM_SPANK__SLURM_SPANK_OPTION_fp8_lora_fp8_lora_show_placement");
    int found;

    host = &spank;
    spank.context = strcmp(getenv(CLIENT), "srun") ? S_CTX_ALLOCATOR : S_CTX_LOCAL;
    if (getenv("TEST_LAUNCH_PARAMS"))
        snprintf(launch_params, sizeof launch_params, "%s", getenv("TEST_LAUNCH_PARAMS"));
    plugin_load();
    if (init(&spank, 0, NULL) || strcmp(option.name, "fp8-lora") || option.has_arg != 2 ||
        strcmp(show_option.name, "fp8-lora-show-placement") || show_option.has_arg)
        return 97;
    while ((found = getopt_long(argc, argv, "+n:", options, NULL)) != -1)
        if (found == 'f' && option.cb(option.val, optarg, 0))
            return 96;
        else if (found == 's' && show_option.cb(show_option.val, NULL, 0))
            return 96;
    if (shown && show_option.cb(show_option.val, shown, 0))
        return 96;
    if (inherited && option.cb(option.val, inherited, 0))
        return 96;
    if (init_post_opt(&spank, 0, NULL))
        return 95;
    if (spank.context == S_CTX_LOCAL && local_user_init(&spank, 0, NULL))
        return 94;
    printf("stamp %s", getenv("SLURM_FP8_LORA_STEP") ? getenv("SLURM_FP8_LORA_STEP") : "none");
    fflush(stdout);
    return finish(&spank, 0, NULL);
}

// Runs words as a client in folder, env (or NULL) set; its output in text; returns its exit status.
static int client(const char *folder, const char *env, char *const *words, char text[1024])
{
    int fds[2], status;
    size_t used = 0;
    ssize_t got;
    pid_t child;

    assert_int_equal(pipe(fds), 0);
    child = fork();
    assert_true(child >= 0);
    if (!child) {
        dup2(fds[1], 1);
        dup2(fds[1], 2);
        close(fds[0]);
        close(fds[1]);
        if (env && putenv((char *)env))
            _exit(93);
        if (chdir(folder))
            _exit(92);
        setenv(CLIENT, words[0], 1);
        execv(program, words);
        _exit(91);
    }
    close(fds[1]);
    while ((got = read(fds[0], text + used, 1023 - used)) > 0)
        used += (size_t)got;
    text[used] = 0;
    close(fds[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 90;
}

static char folder[] = "/tmp/fl-spank-XXXXXX";

static int folder_make(void **state)
{
    static const char *const files[][2] = {
        {"job.yaml", "model: " MODEL "\ndataset: d.jsonl\nexpert_model_parallel_size: 2\n"
                     "micro_batch_size: 1\nglobal_batch_size: 8\n"},
        {"typo.yaml", "model: " MODEL "\ndatasett: d.jsonl\n"},
        {"gone.yaml", "model: /nonexistent\ndataset: d.jsonl\n"},
    };
    char path[64];
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i][0]);
        FILE *f = fopen(path, "w");
        if (!f || fputs(files[i][1], f) < 0 || fclose(f))
            return -1;
    }
    return 0;
}

static int folder_remove(void **state)
{
    static const char *const names[] = {"job.yaml", "typo.yaml", "gone.yaml"};
    char path[64];
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    return rmdir(folder); // nothing else was left
}

static const struct {
    const char *env, *words; // words are separated by single spaces
    int status;
    const char *says;
} clients[] = {
    {NULL, "srun -n2 --fp8-lora job.yaml", 0, "stamp 77.0.2.2.0"},
    {NULL, "srun --fp8-lora -- --model " MODEL " --dataset d --expert_model_parallel_size 1", 0,
     "stamp 77.0.1.2.0"},
    {NULL, "srun -n2 hostname", 0, "stamp none"},
    {NULL, "srun -n3 --fp8-lora job.yaml", 1, "fp8-lora: "},
    {NULL, "srun --fp8-lora typo.yaml", 1, "'datasett'"},
    {NULL, "srun --fp8-lora gone.yaml", 1, "/nonexistent"},
    {NULL, "srun --fp8-lora none.yaml", 1, "none.yaml"},
    {NULL, "srun --fp8-lora", 1, "no job: use srun --fp8-lora job.yaml"},
    {NULL, "srun --fp8-lora=job.yaml", 1, "srun takes the job as its command"},
    {NULL, "srun --multi-prog --fp8-lora job.yaml", 1, "--multi-prog: every rank"},
    {NULL, "srun --fp8-lora --multi-prog job.yaml", 1, "--multi-prog: every rank"},
    {NULL, "srun --fp8-lora --bcast=/tmp/x job.yaml", 1, "--bcast: the trainer is installed"},
    {NULL, "srun --fp8-lora --het-group=0 job.yaml", 1, "--het-group: ranks of"},
    {NULL, "srun --fp8-lora job.yaml : -n1 hostname", 1, "a step of several components"},
    {"SLURM_BCAST=/tmp/x", "srun --fp8-lora job.yaml", 1, "without SLURM_BCAST"},
    {"SLURM_TEST_EXEC=1", "srun --fp8-lora job.yaml", 1, "unset it"},
    {"TEST_LAUNCH_PARAMS=x,test_exec", "srun --fp8-lora job.yaml", 1, "LaunchParameters=test_exec"},
    {"TEST_LAUNCH_PARAMS=test_exec", "srun hostname", 0, "stamp none"},
    {"SLURM_SPANK__SLURM_SPANK_OPTION_fp8_lora_fp8_lora=job.yaml", "srun hostname", 0,
     "stamp none"},
    {"SLURM_SPANK__SLURM_SPANK_OPTION_fp8_lora_fp8_lora=job.yaml", "srun echo --fp8-lora", 0,
     "stamp none"},
    {"SLURM_SPANK__SLURM_SPANK_OPTION_fp8_lora_fp8_lora=job.yaml", "srun -n2 --fp8-lora job.yaml",
     0, "stamp 77.0.2.2.0"},
    {"_SLURM_SPANK_OPTION_fp8_lora_fp8_lora=", "srun hostname", 0, "stamp none"},
    {NULL, "srun -n2 --fp8-lora --fp8-lora-show-placement job.yaml", 0, "stamp 77.0.2.2.1"},
    {NULL, "srun --fp8-lora-show -n2 --fp8-lora job.yaml", 0, "stamp 77.0.2.2.1"},
    {NULL, "srun -n2 --fp8-lora -- --model " MODEL " --dataset d --expert_model_parallel_size 2", 0,
     "stamp 77.0.2.2.0"},
    {NULL, "srun --cpu-bind=cores --fp8-lora-show-placement -n2 --fp8-lora job.yaml", 0,
     "stamp 77.0.2.2.3"},
    {NULL, "srun --cpu-bind none -n2 --fp8-lora job.yaml", 0, "stamp 77.0.2.2.2"},
    {NULL, "srun --cpu-bind=verbose -n2 --fp8-lora job.yaml", 0, "stamp 77.0.2.2.0"},
    {"SLURM_CPU_BIND=quiet,mask_cpu:0x1", "srun -n2 --fp8-lora job.yaml", 0, "stamp 77.0.2.2.2"},
    {"SLURM_CPU_BIND=quiet", "srun -n2 --fp8-lora job.yaml", 0, "stamp 77.0.2.2.0"},
    {NULL, "srun --fp8-lora-show-placement hostname", 1,
     "--fp8-lora-show-placement shows a step's ranks: use srun --fp8-lora"},
    {NULL, "sbatch --fp8-lora-show-placement --fp8-lora=job.yaml script", 1,
     "--fp8-lora-show-placement shows a step's ranks"},
    {"SLURM_SPANK__SLURM_SPANK_OPTION_fp8_lora_fp8_lora_show_placement=",
     "srun -n2 --fp8-lora job.yaml", 0, "stamp 77.0.2.2.0"},
    {"SLURM_SPANK__SLURM_SPANK_OPTION_fp8_lora_fp8_lora_show_placement=", "srun hostname", 0,
     "stamp none"},
    {"SLURM_SPANK__SLURM_SPANK_OPTION_fp8_lora_fp8_lora_show_placement=",
     "srun echo --fp8-lora-show-placement", 0, "stamp none"},
    {NULL, "sbatch --fp8-lora=job.yaml script", 0, "stamp none"},
    {NULL, "sbatch --fp8-lora job.yaml", 1, "sbatch and salloc take --fp8-lora=job.yaml"},
    {NULL, "sbatch --fp8-lora=typo.yaml script", 1, "'datasett'"},
    {"SLURM_SPANK__SLURM_SPANK_OPTION_fp8_lora_fp8_lora=none.yaml", "sbatch script", 0,
     "stamp none"},
};

static void clients_accept_and_refuse(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof clients / sizeof *clients; i++) {
        char *line = strdup(clients[i].words), *words[16] = {0}, text[1024], *rest = line;
        int status;
        for (int w = 0; rest; w++)
            words[w] = strsep(&rest, " ");
        status = client(folder, clients[i].env, words, text);
        if (status != clients[i].status || !strstr(text, clients[i].says))
            fail_msg("%s %s: status %d, says '%s'", clients[i].env ? clients[i].env : "",
                     clients[i].words, status, text);
        if (status && strchr(text, '\n') != text + strlen(text) - 1)
            fail_msg("%s: more than one line: %s", clients[i].words, text);
        free(line);
    }
}

// ---- slurmstepd

// What a task's process does after the fork, in one: the hook, then a core that fills its slot.
static void task_run(struct spank_handle *spank, uint32_t local_task)
{
    struct record_rank slot = {.rank = local_task, .state = RANK_DONE, .peak_total = 5};
    struct record *record;
    struct fl_error e;
    char rank[8];

    spank->local_task = local_task;
    snprintf(rank, sizeof rank, "%u", local_task);
    spank_setenv(spank, "PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64", 1);
    spank_setenv(spank, "OMP_NUM_THREADS", "3", 1);
    spank_setenv(spank, "CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b", 1);
    if (task_init(spank, argument_count, arguments))
        _exit(50);
    if (strcmp(value_of(spank, "FP8_LORA_RANK"), rank) ||
        strcmp(value_of(spank, "FP8_LORA_DEVICE"), rank) ||
        strcmp(value_of(spank, "FP8_LORA_WORLD"), "2") ||
        strcmp(value_of(spank, "FP8_LORA_EP"), "4") ||
        strcmp(value_of(spank, "FP8_LORA_DP"), "8") ||
        strcmp(value_of(spank, "CUDA_DEVICE_ORDER"), "PCI_BUS_ID") ||
        strcmp(value_of(spank, "CUDA_VISIBLE_DEVICES"), "GPU-a,GPU-b") ||
        strcmp(value_of(spank, "OMP_NUM_THREADS"), "3") ||
        strcmp(value_of(spank, "OMPI_MCA_mpi_yield_when_idle"), "1") ||
        strcmp(value_of(spank, "NCCL_COMM_ID"), "n0:24697") ||
        strcmp(value_of(spank, "PYTORCH_ALLOC_CONF"),
               "max_split_size_mb:64,expandable_segments:True") ||
        strcmp(value_of(spank, "PYTORCH_CUDA_ALLOC_CONF"),
               "max_split_size_mb:64,expandable_segments:True") ||
        value_of(spank, "SLURM_FP8_LORA_STEP"))
        _exit(51);
    if (strcmp(spank->argv[0], "/usr/bin/true"))
        _exit(52);
    if (SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(23, 11, 0)
            ? strcmp(value_of(spank, "FP8_LORA_ARGV0"), "job.yaml")
            : strcmp(spank->argv[1], "job.yaml"))
        _exit(53);
    if (record_open(atoi(value_of(spank, RECORD_FD_ENV)), &record, &e))
        _exit(54);
    record_write(record, &slot);
    record_close(record);
    step_end(spank);
    _exit(local_task ? 3 : 0);
}

static void step_runs(void **state)
{
    struct spank_handle spank = step_begin("77.0.4.8.0");
    (void)state;
    step_init(&spank, true);
    for (uint32_t task = 0; task < TASKS; task++) {
        int status;
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child)
            task_run(&spank, task);
        spank.local_task = task;
        spank.task_pid = child;
        assert_int_equal(post_fork(&spank, argument_count, arguments), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, task ? 3 << 8 : 0);
        spank.local_task = task;
        spank.exit_status = status;
        assert_int_equal(task_exit(&spank, argument_count, arguments), 0);
    }
    assert_int_equal(finish(&spank, argument_count, arguments), 0);
    step_end(&spank);
}

static void no_step_of_ours(struct spank_handle *spank, bool with_option)
{
    int before = 0, after = 0;

    step_init(spank, with_option);
    for (int i = 0; i < VARS; i++)
        before += spank->env[i] != NULL;
    assert_int_equal(task_init(spank, argument_count, arguments), 0);
    assert_int_equal(task_exit(spank, argument_count, arguments), 0);
    assert_int_equal(finish(spank, argument_count, arguments), 0);
    for (int i = 0; i < VARS; i++)
        after += spank->env[i] != NULL;
    assert_int_equal(before, after);
    assert_string_equal(spank->argv[0], "job.yaml");
    step_end(spank);
}

static void others_are_left_alone(void **state)
{
    static const uint32_t special[] = {SLURM_BATCH_SCRIPT, SLURM_EXTERN_CONT,
                                       SLURM_INTERACTIVE_STEP};
    static const char *const stamps[] = {"77.1.4.8.0", "76.0.4.8.0", "77.0.4.8", "", "%s%n"};
    struct spank_handle spank = step_begin("77.0.4.8.0");
    char *long_stamp = malloc(5000);
    (void)state;
    no_step_of_ours(&spank, false);
    spank = step_begin(NULL);
    no_step_of_ours(&spank, true);
    for (size_t i = 0; i < sizeof stamps / sizeof *stamps; i++) {
        spank = step_begin(stamps[i]);
        no_step_of_ours(&spank, true);
    }
    memset(long_stamp, '1', 4999);
    long_stamp[4999] = 0;
    spank = step_begin(long_stamp);
    no_step_of_ours(&spank, true);
    free(long_stamp);
    for (size_t i = 0; i < 3; i++) {
        char stamp[64];
        snprintf(stamp, sizeof stamp, "77.%u.4.8.0", special[i]);
        spank = step_begin(stamp);
        spank.step = special[i];
        no_step_of_ours(&spank, true);
    }
}

// A step, ours or (without a stamp) somebody else's, whose task says why it does not run.
static void step_refused(const char *stamp, uint32_t step, const char *says)
{
    struct spank_handle spank = step_begin(stamp);
    char text[1024] = "";
    int status, fds[2];
    pid_t child;

    spank.step = step;
    step_init(&spank, stamp != NULL);
    assert_int_equal(pipe(fds), 0);
    child = fork();
    if (!child) {
        dup2(fds[1], 2);
        task_init(&spank, argument_count, arguments);
        _exit(0);
    }
    close(fds[1]);
    assert_true(read(fds[0], text, sizeof text - 1) > 0);
    close(fds[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 1 << 8);
    if (!strstr(text, says))
        fail_msg("'%s' does not hold '%s'", text, says);
    spank.exit_status = status;
    assert_int_equal(task_exit(&spank, argument_count, arguments), 0);
    assert_int_equal(finish(&spank, argument_count, arguments), 0);
    step_end(&spank);
}

static void task_refused(const char *says)
{
    step_refused("77.0.4.8.0", 0, says);
}

// What an early hook finds wrong ends the tasks, never slurmstepd.
static void node_errors_end_tasks(void **state)
{
    static const struct {
        const char *argument, *says;
    } cases[] = {{"core=/nonexistent/core", "/nonexistent/core: No such file"},
                 {"core=/proc/self/status", "/proc/self/status: not an executable file"},
                 {"color=red", "argument 'color=red' is not core=/PATH"},
                 {"max_device_memory=lots", "plugstack.conf: max_device_memory: "}};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        char *saved = arguments[0];
        arguments[0] = (char *)cases[i].argument;
        task_refused(cases[i].says);
        arguments[0] = saved;
    }
}

// A cap whose watch cannot be started: the policy decides.
static void step_without_its_watch(void **state)
{
    char *saved[8];
    (void)state;
    memcpy(saved, arguments, sizeof saved);
    arguments[2] = (char *)"watch=/nonexistent/watch";
    arguments[3] = (char *)"max_device_memory=1GiB";
    arguments[4] = (char *)"on_failure=continue";
    argument_count = 5;
    step_runs(state);
    arguments[4] = arguments[0];
    arguments[0] = (char *)"on_failure=end";
    task_refused("device memory cannot be watched, and the policy ends such steps: "
                 "/nonexistent/watch: No such file");
    memcpy(arguments, saved, sizeof saved);
    argument_count = 2;
}

// Steps that know nothing of the option, where the policy cannot be read or does not let them go on
// without a watch; on_failure=continue and watch_failure: continue let them.
static void governed_steps(void **state)
{
    static const uint32_t batch = SLURM_BATCH_SCRIPT;
    char path[] = "/var/tmp/fl-governed-XXXXXX", argument[64], *saved[8];
    int fd;
    (void)state;

    if (geteuid()) { // only root's file is a policy
        skip();
        return;
    }
    fd = mkstemp(path);
    assert_true(fd >= 0);
    snprintf(argument, sizeof argument, "policy=%s", path);
    memcpy(saved, arguments, sizeof saved);
    arguments[2] = (char *)"watch=/nonexistent/watch";
    arguments[3] = (char *)"policy=/nonexistent/policy.yaml";
    argument_count = 4;
    step_refused(NULL, 0, "without its policy this site runs no step: /nonexistent: No such file");
    step_refused(NULL, batch, "without its policy this site runs no step: ");
    arguments[3] = (char *)"policy=relative.yaml";
    step_refused(NULL, 0, "argument 'policy=relative.yaml' is not ");
    arguments[3] = argument;
    assert_int_equal(write(fd, "max_rank: 2\n", 12), 12);
    step_refused(NULL, 0, "unknown key 'max_rank'");
    arguments[4] = (char *)"on_failure=continue";
    argument_count = 5;
    struct spank_handle spank = step_begin(NULL);
    no_step_of_ours(&spank, false);
    step_refused("77.0.4.8.0", 0, "unknown key 'max_rank'"); // ours needs its policy all the same
    argument_count = 4;
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, "max_ranks: 2\n", 13, 0), 13);
    spank = step_begin(NULL);
    no_step_of_ours(&spank, false);
    static const char watched[] = "max_device_memory: 1GiB\nwatch_failure: end\n"
                                  "enforce: all-gpu-steps\n";
    assert_int_equal(pwrite(fd, watched, strlen(watched), 0), strlen(watched));
    step_refused(NULL, 0,
                 "device memory cannot be watched, and the policy ends such steps: "
                 "/nonexistent/watch: No such file");
    spank = step_begin(NULL);
    spank.step = batch;
    no_step_of_ours(&spank, false);
    static const char open[] = "max_device_memory: 1GiB\nwatch_failure: continue\n"
                               "enforce: whole-job\n";
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, open, strlen(open), 0), strlen(open));
    spank = step_begin(NULL);
    spank.step = batch;
    no_step_of_ours(&spank, false);
    memcpy(arguments, saved, sizeof saved);
    argument_count = 2;
    close(fd);
    unlink(path);
}

// A file on the limits' number in slurmstepd is not taken away from whose it is.
static void limits_number_taken(void **state)
{
    char *saved = arguments[2];
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    (void)state;

    arguments[2] = (char *)"max_device_memory=1GiB";
    argument_count = 3;
    assert_int_equal(dup2(fd, 200), 200);
    task_refused("limits: descriptor 200 is taken, by slurmd or another plugin");
    close(200);
    close(fd);
    arguments[2] = saved;
    argument_count = 2;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_accept_and_refuse),
        cmocka_unit_test(others_are_left_alone),
        cmocka_unit_test(step_runs),
        cmocka_unit_test(node_errors_end_tasks),
        cmocka_unit_test(step_without_its_watch),
        cmocka_unit_test(governed_steps),
        cmocka_unit_test(limits_number_taken),
    };
    if (getenv(CLIENT))
        return client_main(argc, argv);
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        return 89;
    plugin_load();
    return cmocka_run_group_tests_name("spank", tests, folder_make, folder_remove);
}
