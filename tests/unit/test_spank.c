// SPDX-License-Identifier: Apache-2.0
// A small Slurm around the real fp8_lora.so: loads it, and calls its hooks in Slurm's order as
// srun, sbatch and slurmstepd do. What only a live cluster can show is in tests/slurm.
#include "unit/check.h"

#include "report/record.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
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
    uint16_t cpus;  // of the job on the node
    uint32_t tasks; // of the step, here
    pid_t task_pid;
    char *env[VARS]; // of the job, NAME=VALUE
    char *argv[4];
    int argc;
};

static struct spank_handle *host;
static struct spank_option option, show; // in the order of registration
static char launch_params[64];

SHOWN spank_context_t spank_context(void)
{
    return host->context;
}

SHOWN spank_err_t spank_option_register(spank_t spank, struct spank_option *given)
{
    (void)spank;
    *(strcmp(given->name, "fp8-lora") ? &show : &option) = *given;
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
        *(uint32_t *)out = spank->tasks;
        break;
    case S_TASK_ID:
        *(int *)out = (int)spank->local_task;
        break;
    case S_TASK_GLOBAL_ID:
        *(uint32_t *)out = spank->local_task;
        break;
    case S_JOB_LOCAL_TO_GLOBAL_ID: // its argument in out's place
        *va_arg(args, uint32_t *) = (uint32_t)(uintptr_t)out;
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
        *(uint16_t *)out = spank->cpus;
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
        strcmp(show.name, "fp8-lora-show-placement") || show.has_arg)
        return 97;
    while ((found = getopt_long(argc, argv, "+n:", options, NULL)) != -1)
        if (found == 'f' && option.cb(option.val, optarg, 0))
            return 96;
        else if (found == 's' && show.cb(show.val, NULL, 0))
            return 96;
    if (shown && show.cb(show.val, shown, 0))
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

static char *arguments[8] = {(char *)"core=/usr/bin/true", (char *)"account=/usr/bin/true"};
static int argument_count = 2;

static struct spank_handle step_begin(const char *stamp)
{
    struct spank_handle spank = {.context = S_CTX_REMOTE,
                                 .job = 77,
                                 .cpus = 1,
                                 .tasks = TASKS,
                                 .argv = {(char *)"job.yaml"},
                                 .argc = 1};

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

// ---- placement

// The process's own, as in linux/mempolicy.h; -1 on a kernel without.
static int memory_policy(void)
{
    int policy;

    return syscall(SYS_get_mempolicy, &policy, NULL, 0UL, NULL, 0UL) ? -1 : policy;
}

// Runs task_init as local task of a step with this stamp and NAME=VALUE settings, after binding to
// the CPUs of mask (0: as it is); stderr and then the process's CPUs in text. Returns the status.
static int task_place(const char *stamp, uint32_t local_task, uint16_t cpus, unsigned long mask,
                      const char *const *settings, char text[4096])
{
    struct spank_handle spank = step_begin(stamp);
    int status, fds[2];
    size_t used = 0;
    ssize_t got;
    pid_t child;

    spank.cpus = cpus;
    if (getenv("TEST_TASKS"))
        spank.tasks = (uint32_t)atoi(getenv("TEST_TASKS"));
    step_init(&spank, true);
    assert_int_equal(pipe(fds), 0);
    child = fork();
    if (!child) {
        cpu_set_t set;
        dup2(fds[1], 2);
        close(fds[0]);
        close(fds[1]);
        CPU_ZERO(&set);
        for (size_t i = 0; i < 64; i++)
            if (mask >> i & 1)
                CPU_SET(i, &set);
        if (mask && sched_setaffinity(0, sizeof set, &set))
            _exit(70);
        for (; *settings; settings++) {
            char name[64];
            snprintf(name, sizeof name, "%.*s", (int)strcspn(*settings, "="), *settings);
            spank_setenv(&spank, name, strchr(*settings, '=') + 1, 1);
        }
        spank.local_task = local_task;
        task_init(&spank, argument_count, arguments);
        if (sched_getaffinity(0, sizeof set, &set))
            _exit(71);
        fprintf(stderr, "device %s\n",
                value_of(&spank, "FP8_LORA_DEVICE") ? value_of(&spank, "FP8_LORA_DEVICE") : "-");
        fprintf(stderr, "policy %d\n", memory_policy());
        fprintf(stderr, "CPUs");
        for (size_t i = 0; i < CPU_SETSIZE; i++)
            if (CPU_ISSET(i, &set))
                fprintf(stderr, " %zu", i);
        fprintf(stderr, ".\n");
        step_end(&spank);
        _exit(0);
    }
    close(fds[1]);
    while ((got = read(fds[0], text + used, 4095 - used)) > 0)
        used += (size_t)got;
    text[used] = 0;
    close(fds[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(finish(&spank, argument_count, arguments), 0);
    step_end(&spank);
    return status;
}

#define HGX FL_SOURCE_DIR "/tests/data/topologies/nvswitch-8gpu.xml"

static void check_says(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("'%s' does not hold '%s'", text, words);
}

// On a stored topology nothing is bound; the table tells what would be.
static void placement_is_shown(void **state)
{
    static const char *const both[] = {"CUDA_VISIBLE_DEVICES=2,5", "SLURM_STEP_GPUS=2,5",
                                       "SLURM_GPUS_ON_NODE=2", NULL};
    static const char *const own[] = {"CUDA_VISIBLE_DEVICES=2", "SLURM_GPUS_ON_NODE=2", NULL};
    static const char *const masked[] = {
        "SLURM_CPU_BIND_TYPE=mask_cpu:", "SLURM_CPU_BIND_LIST=0x1,0x2", "CUDA_VISIBLE_DEVICES=0,1",
        NULL};
    static const char *const unknown[] = {
        "SLURM_CPU_BIND_TYPE=mask_cpu:", "CUDA_VISIBLE_DEVICES=GPU-x,GPU-y", NULL};
    static const char *const no_gpu[] = {"SLURM_CPU_BIND_TYPE=mask_cpu:", NULL};
    static const char *const four[] = {"CUDA_VISIBLE_DEVICES=0,1,2,3", "SLURM_GPUS_ON_NODE=4",
                                       NULL};
    static const char *const mig[] = {"CUDA_VISIBLE_DEVICES=MIG-a,MIG-b", NULL};
    char text[4096];
    (void)state;
    setenv("HWLOC_XMLFILE", HGX, 1);
    assert_int_equal(task_place("77.0.2.1.1", 0, 999, 0, both, text), 0);
    check_says(text, "fp8-lora: placement on n0\n");
    check_says(text, "fp8-lora: rank  PCI ");
    check_says(text, "fp8-lora: 0     0000:32:00.0  GPU-00000002-1111-2222-3333-000000000032  "
                     "0-7,16-23   0     mlx5_2  0: nvlink 0  8 cores near the GPU\n");
    check_says(text, "fp8-lora: 1     0000:62:00.0  GPU-00000005-1111-2222-3333-000000000062  "
                     "8-15,24-31  1     mlx5_5  0: nvlink 0  8 cores near the GPU\n");
    assert_int_equal(task_place("77.0.2.1.1", 1, 999, 0, both, text), 0);
    assert_null(strstr(text, "placement on")); // one table a node
    check_says(text, "fp8-lora: placement: rank 1: GPU 0000:62:00.0, NIC mlx5_5, EP group 0: "
                     "nvlink 0: 8 cores near the GPU"); // in the debug log
    assert_int_equal(task_place("77.0.2.1.0", 0, 999, 0, both, text), 0);
    assert_null(strstr(text, "placement on"));
    assert_int_equal(task_place("77.0.2.1.3", 0, 999, 0, both, text), 0);
    check_says(text, "left as it is: the user's --cpu-bind");
    assert_int_equal(task_place("77.0.2.1.1", 0, 1, 0, both, text), 0);
    check_says(text, "left as it is: the job shares the node");
    assert_int_equal(task_place("77.0.2.1.1", 0, 999, 0, masked, text), 0);
    check_says(text, "left as it is: Slurm bound it, and does not tell to what");
    assert_int_equal(task_place("77.0.2.1.1", 0, 999, 0, unknown, text), 0);
    check_says(text, "left as it is: Slurm bound it, and which GPUs it has is not known");
    assert_int_equal(task_place("77.0.2.1.1", 0, 999, 0, no_gpu, text), 0);
    check_says(text, "left as it is: Slurm bound it\n");
    assert_int_equal(task_place("77.0.2.1.1", 0, 999, 0, own, text), 0);
    check_says(text, "hidden");
    check_says(text, "warning: tasks are bound to GPUs of their own, which hides their peers");
    assert_int_equal(task_place("77.0.2.1.2", 0, 999, 0, own, text), 0); // topology unread
    check_says(text, "warning: tasks are bound to GPUs of their own, which hides their peers");
    assert_int_equal(task_place("77.0.2.1.0", 1, 999, 0, mig, text), 1 << 8);
    check_says(text, "fp8-lora: MIG-b: MIG instances cannot reach each other");
    assert_int_equal(task_place("77.0.1.2.0", 1, 999, 0, mig, text), 0);
    // GPUs 0 and 2 are linked, and 1 and 3: whatever else is asked, groups of two stay together.
    setenv("HWLOC_XMLFILE", FL_SOURCE_DIR "/tests/data/topologies/nvlink-pairs-4gpu.xml", 1);
    setenv("TEST_TASKS", "4", 1);
    assert_int_equal(task_place("77.0.2.2.0", 1, 1, 0, four, text), 0);
    check_says(text, "device 2\n");
    assert_int_equal(task_place("77.0.2.2.2", 2, 999, 0, four, text), 0);
    check_says(text, "device 1\n");
    assert_int_equal(task_place("77.0.4.1.0", 0, 999, 0, four, text), 0);
    check_says(text, "device 0\n");
    check_says(text, "fp8-lora: warning: expert-parallel group 0 crosses NVLink islands");
    unsetenv("TEST_TASKS");
    setenv("HWLOC_XMLFILE", "/nonexistent.xml", 1);
    assert_int_equal(task_place("77.0.2.1.1", 0, 999, 0, both, text), 0);
    unsetenv("HWLOC_XMLFILE");
}

// On this machine, where it has two cores.
static void tasks_are_bound(void **state)
{
    static const char *const none[] = {NULL};
    static const char *const masks[] = {
        "SLURM_CPU_BIND_TYPE=mask_cpu:", "SLURM_CPU_BIND_LIST=0x2,0x1", "CUDA_VISIBLE_DEVICES=0",
        NULL};
    char texts[2][4096], kept[4096];
    cpu_set_t set;
    (void)state;
    if (sched_getaffinity(0, sizeof set, &set) || !CPU_ISSET(0, &set) || !CPU_ISSET(1, &set) ||
        CPU_COUNT(&set) != sysconf(_SC_NPROCESSORS_ONLN)) {
        print_message("needs a machine of two CPUs or more, all of them allowed\n");
        skip();
    }
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(task_place("77.0.2.1.0", i, 999, 0, none, texts[i]), 0);
    if (strstr(texts[0], "left as it is: 1 core for 2 ranks"))
        skip();                     // two CPUs of one core
    check_says(texts[0], "CPUs 0"); // ends of lines differ with the machine
    assert_null(strstr(texts[1], "CPUs 0"));
    assert_int_equal(task_place("77.0.2.1.2", 1, 999, 0, none, kept), 0);
    check_says(kept, "CPUs 0 1");
    // Slurm's own masks give way to a GPU, within what they cover together. This machine's cores,
    // as those of a stored topology that has a GPU near them.
    setenv("HWLOC_XMLFILE", FL_SOURCE_DIR "/tests/data/topologies/vm-1gpu.xml", 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
    assert_int_equal(task_place("77.0.2.1.0", 0, 999, 2, masks, texts[0]), 0);
    assert_int_equal(task_place("77.0.2.1.0", 1, 999, 1, masks, texts[1]), 0);
    check_says(texts[0], "CPUs 0.");
    check_says(texts[1], "CPUs 1.");
    // Those of the user do not.
    assert_int_equal(task_place("77.0.2.1.2", 0, 999, 2, masks, kept), 0);
    check_says(kept, "CPUs 1.");
    unsetenv("HWLOC_XMLFILE");
    unsetenv("HWLOC_THISSYSTEM");
}

// This machine's node 0 as the one near the last two GPUs of a stored topology.
static void memory_is_preferred(void **state)
{
    static const char *const near[] = {"CUDA_VISIBLE_DEVICES=2", NULL};
    static const char *const users[] = {"CUDA_VISIBLE_DEVICES=2", "SLURM_MEM_BIND_TYPE=local",
                                        NULL};
    char text[4096];
    cpu_set_t set;
    (void)state;
    if (sched_getaffinity(0, sizeof set, &set) || !CPU_ISSET(0, &set) || !CPU_ISSET(1, &set) ||
        sysconf(_SC_NPROCESSORS_ONLN) < 2 || memory_policy() < 0) {
        print_message("needs a machine of two CPUs or more, and a kernel that binds memory\n");
        skip();
    }
    setenv("HWLOC_XMLFILE", FL_SOURCE_DIR "/tests/data/topologies/pcie-4gpu.xml", 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
    assert_int_equal(task_place("77.0.1.2.0", 0, 9999, 0, near, text), 0);
    if (!strstr(text, "policy 1\n"))    // preferred
        check_says(text, "policy 5\n"); // or preferred among many
    assert_int_equal(task_place("77.0.1.2.0", 0, 9999, 0, users, text), 0);
    check_says(text, "policy 0\n");
    assert_int_equal(task_place("77.0.1.2.2", 0, 9999, 0, near, text), 0);
    check_says(text, "policy 0\n");
    unsetenv("HWLOC_XMLFILE");
    unsetenv("HWLOC_THISSYSTEM");
}

static void task_refused(const char *says)
{
    struct spank_handle spank = step_begin("77.0.4.8.0");
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
        cmocka_unit_test(placement_is_shown),
        cmocka_unit_test(tasks_are_bound),
        cmocka_unit_test(memory_is_preferred),
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
