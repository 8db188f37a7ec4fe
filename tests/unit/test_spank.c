// SPDX-License-Identifier: Apache-2.0
// A small Slurm around the real fp8_lora.so: loads it, and calls its hooks in Slurm's order as
// srun, sbatch and slurmstepd do. What only a live cluster can show is in tests/slurm.
#include "unit/check.h"

#include "report/record.h"

#include <dlfcn.h>
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
#define SHOWN  __attribute__((visibility("default")))
#define VARS   64
#define TASKS  2
#define CLIENT "TEST_CLIENT" // in the environment: this program is srun or sbatch

// ---- what the plugin finds in Slurm

struct spank_handle {
    spank_context_t context;
    uint32_t job, step, local_task;
    int exit_status;
    pid_t task_pid;
    char *env[VARS]; // of the job, NAME=VALUE
    char *argv[4];
    int argc;
};

static struct spank_handle *host;
static struct spank_option option;
static char launch_params[64];

SHOWN spank_context_t spank_context(void)
{
    return host->context;
}

SHOWN spank_err_t spank_option_register(spank_t spank, struct spank_option *given)
{
    (void)spank;
    option = *given;
    return ESPANK_SUCCESS;
}

SHOWN spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...)
{
    va_list args;
    void *out;

    va_start(args, item);
    out = va_arg(args, void *);
    switch (item) {
    case S_JOB_ID:
        *(uint32_t *)out = spank->job;
        break;
    case S_JOB_STEPID:
        *(uint32_t *)out = spank->step;
        break;
    case S_JOB_NNODES:
        *(uint32_t *)out = 1;
        break;
    case S_JOB_NODEID:
    case S_SLURM_RESTART_COUNT:
        *(uint32_t *)out = 0;
        break;
    case S_JOB_TOTAL_TASK_COUNT:
    case S_JOB_LOCAL_TASK_COUNT:
        *(uint32_t *)out = TASKS;
        break;
    case S_TASK_ID:
        *(int *)out = (int)spank->local_task;
        break;
    case S_TASK_GLOBAL_ID:
        *(uint32_t *)out = spank->local_task;
        break;
    case S_JOB_UID:
        *(uid_t *)out = getuid();
        break;
    case S_TASK_PID:
        *(pid_t *)out = spank->task_pid;
        break;
    case S_TASK_EXIT_STATUS:
        *(int *)out = spank->exit_status;
        break;
    case S_STEP_CPUS_PER_TASK:
        *(uint32_t *)out = 1;
        break;
    case S_JOB_NCPUS:
        *(uint16_t *)out = 1;
        break;
    case S_JOB_ARGV:
        *(int *)out = spank->argc;
        *va_arg(args, char ***) = spank->argv;
        break;
    default:
        va_end(args);
        return ESPANK_BAD_ARG;
    }
    va_end(args);
    return ESPANK_SUCCESS;
}

static char **variable(spank_t spank, const char *name)
{
    size_t length = strlen(name);

    for (int i = 0; i < VARS; i++)
        if (spank->env[i] && !strncmp(spank->env[i], name, length) && spank->env[i][length] == '=')
            return &spank->env[i];
    return NULL;
}

SHOWN spank_err_t spank_getenv(spank_t spank, const char *name, char *out, int size)
{
    char **found = variable(spank, name);

    if (!found)
        return ESPANK_ENV_NOEXIST;
    return snprintf(out, (size_t)size, "%s", *found + strlen(name) + 1) < size ? ESPANK_SUCCESS
                                                                               : ESPANK_NOSPACE;
}

SHOWN spank_err_t spank_unsetenv(spank_t spank, const char *name)
{
    char **found = variable(spank, name);

    if (found) {
        free(*found);
        *found = NULL;
    }
    return ESPANK_SUCCESS;
}

SHOWN spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
    if (variable(spank, name) && !overwrite)
        return ESPANK_ENV_EXISTS;
    spank_unsetenv(spank, name);
    for (int i = 0; i < VARS; i++)
        if (!spank->env[i])
            return asprintf(&spank->env[i], "%s=%s", name, value) < 0 ? ESPANK_ERROR
                                                                      : ESPANK_SUCCESS;
    return ESPANK_ERROR;
}

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 11, 0)
SHOWN spank_err_t spank_prepend_task_argv(spank_t spank, int argc, const char *argv[])
{
    memmove(spank->argv + argc, spank->argv, (size_t)spank->argc * sizeof *spank->argv);
    for (int i = 0; i < argc; i++)
        spank->argv[i] = (char *)argv[i];
    spank->argc += argc;
    return ESPANK_SUCCESS;
}
#endif

#define SLURM_LOG(function)                                                                        \
    SHOWN void function(const char *format, ...)                                                   \
    {                                                                                              \
        va_list args;                                                                              \
        va_start(args, format);                                                                    \
        vfprintf(stderr, format, args);                                                            \
        va_end(args);                                                                              \
        fputc('\n', stderr);                                                                       \
    }

SLURM_LOG(slurm_error)
SLURM_LOG(slurm_spank_log)
SLURM_LOG(slurm_debug)

SHOWN int slurm_load_ctl_conf(time_t since, slurm_conf_t **conf)
{
    (void)since;
    *conf = calloc(1, sizeof **conf);
    (*conf)->launch_params = launch_params;
    return SLURM_SUCCESS;
}

SHOWN void slurm_free_ctl_conf(slurm_conf_t *conf)
{
    free(conf);
}

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 11, 0)
#define HOSTS hostlist_t *
#else
#define HOSTS hostlist_t
#endif

SHOWN HOSTS slurm_hostlist_create(const char *hosts)
{
    return (HOSTS)strdup(hosts);
}

SHOWN char *slurm_hostlist_shift(HOSTS hosts)
{
    return strndup((char *)hosts, strcspn((char *)hosts, ","));
}

SHOWN void slurm_hostlist_destroy(HOSTS hosts)
{
    free(hosts);
}

// ---- the plugin

static spank_f *init, *init_post_opt, *local_user_init, *task_init, *post_fork, *task_exit, *finish;

static void plugin_load(void)
{
    char path[4096];
    void *plugin;

    snprintf(path, sizeof path, "%s/.libs/fp8_lora.so", getenv("FL_BUILD_DIR"));
    plugin = dlopen(path, RTLD_NOW);
    if (!plugin) {
        fprintf(stderr, "%s\n", dlerror());
        exit(99);
    }
    init = (spank_f *)dlsym(plugin, "slurm_spank_init");
    init_post_opt = (spank_f *)dlsym(plugin, "slurm_spank_init_post_opt");
    local_user_init = (spank_f *)dlsym(plugin, "slurm_spank_local_user_init");
    task_init = (spank_f *)dlsym(plugin, "slurm_spank_task_init");
    post_fork = (spank_f *)dlsym(plugin, "slurm_spank_task_post_fork");
    task_exit = (spank_f *)dlsym(plugin, "slurm_spank_task_exit");
    finish = (spank_f *)dlsym(plugin, "slurm_spank_exit");
    if (strcmp((char *)dlsym(plugin, "plugin_type"), "spank") ||
        *(unsigned *)dlsym(plugin, "plugin_version") != SLURM_VERSION_NUMBER ||
        dlsym(plugin, "error_set")) // what is inside stays inside
        exit(98);
}

static char program[4096]; // this test's own file

// ---- srun and sbatch: this program again, with their words as its own

// WORDS...: parses as they do, and prints the stamp that the nodes would see.
static int client_main(int argc, char **argv)
{
    struct spank_handle spank = {.job = 77, .step = 0};
    struct option options[] = {
        {"fp8-lora", optional_argument, NULL, 'f'},  {"ntasks", required_argument, NULL, 'n'},
        {"multi-prog", no_argument, NULL, 'x'},      {"bcast", optional_argument, NULL, 'x'},
        {"het-group", required_argument, NULL, 'x'}, {NULL, 0, NULL, 0}};
    const char *inherited = getenv("SLURM_SPANK__SLURM_SPANK_OPTION_fp8_lora_fp8_lora");
    int found;

    host = &spank;
    spank.context = strcmp(getenv(CLIENT), "srun") ? S_CTX_ALLOCATOR : S_CTX_LOCAL;
    if (getenv("TEST_LAUNCH_PARAMS"))
        snprintf(launch_params, sizeof launch_params, "%s", getenv("TEST_LAUNCH_PARAMS"));
    plugin_load();
    if (init(&spank, 0, NULL) || strcmp(option.name, "fp8-lora") || option.has_arg != 2)
        return 97;
    while ((found = getopt_long(argc, argv, "+n:", options, NULL)) != -1)
        if (found == 'f' && option.cb(option.val, optarg, 0))
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
    {NULL, "srun -n2 --fp8-lora job.yaml", 0, "stamp 77.0.2.2"},
    {NULL, "srun --fp8-lora -- --model " MODEL " --dataset d --expert_model_parallel_size 1", 0,
     "stamp 77.0.1.2"},
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
     0, "stamp 77.0.2.2"},
    {"_SLURM_SPANK_OPTION_fp8_lora_fp8_lora=", "srun hostname", 0, "stamp none"},
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

static char *arguments[8] = {(char *)"core=/usr/bin/true", (char *)"account=/usr/bin/true"};
static int argument_count = 2;

static struct spank_handle step_begin(const char *stamp)
{
    struct spank_handle spank = {
        .context = S_CTX_REMOTE, .job = 77, .argv = {(char *)"job.yaml"}, .argc = 1};

    host = &spank;
    spank_setenv(&spank, "SLURM_STEP_NODELIST", "n0,n1", 1);
    spank_setenv(&spank, "SLURMD_NODENAME", "n0", 1);
    if (stamp)
        spank_setenv(&spank, "SLURM_FP8_LORA_STEP", stamp, 1);
    return spank;
}

static void step_end(struct spank_handle *spank)
{
    for (int i = 0; i < VARS; i++)
        free(spank->env[i]);
    memset(spank, 0, sizeof *spank);
}

static void step_init(struct spank_handle *spank, bool with_option)
{
    host = spank;
    assert_int_equal(init(spank, argument_count, arguments), 0);
    if (with_option) { // Slurm calls it twice on a node
        assert_int_equal(option.cb(option.val, "", 1), 0);
        assert_int_equal(option.cb(option.val, "", 1), 0);
    }
    assert_int_equal(init_post_opt(spank, argument_count, arguments), 0);
}

static const char *value_of(struct spank_handle *spank, const char *name)
{
    char **found = variable(spank, name);

    return found ? *found + strlen(name) + 1 : NULL;
}

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
    struct spank_handle spank = step_begin("77.0.4.8");
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
    static const char *const stamps[] = {"77.1.4.8", "76.0.4.8", "77.0.4", "", "%s%n"};
    struct spank_handle spank = step_begin("77.0.4.8");
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
        snprintf(stamp, sizeof stamp, "77.%u.4.8", special[i]);
        spank = step_begin(stamp);
        spank.step = special[i];
        no_step_of_ours(&spank, true);
    }
}

static void task_refused(const char *says)
{
    struct spank_handle spank = step_begin("77.0.4.8");
    char text[1024] = "";
    int status, fds[2];
    pid_t child;

    step_init(&spank, true);
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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_accept_and_refuse),
        cmocka_unit_test(others_are_left_alone),
        cmocka_unit_test(step_runs),
        cmocka_unit_test(node_errors_end_tasks),
        cmocka_unit_test(step_without_its_watch),
    };
    if (getenv(CLIENT))
        return client_main(argc, argv);
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        return 89;
    plugin_load();
    return cmocka_run_group_tests_name("spank", tests, folder_make, folder_remove);
}
