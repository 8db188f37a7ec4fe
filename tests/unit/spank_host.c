// SPDX-License-Identifier: Apache-2.0
// A small Slurm around the real fp8_lora.so.
#include "unit/spank_host.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

struct spank_handle *host;
struct spank_option option, show_option;
char launch_params[64];

SHOWN spank_context_t spank_context(void)
{
    return host->context;
}

SHOWN spank_err_t spank_option_register(spank_t spank, struct spank_option *given)
{
    (void)spank;
    *(strcmp(given->name, "fp8-lora") ? &show_option : &option) = *given;
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

char **variable(spank_t spank, const char *name)
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

spank_f *init, *init_post_opt, *local_user_init, *task_init, *post_fork, *task_exit, *finish;

void plugin_load(void)
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

// ---- a step

char *arguments[8] = {(char *)"core=/usr/bin/true", (char *)"account=/usr/bin/true"};
int argument_count = 2;

struct spank_handle step_begin(const char *stamp)
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

void step_end(struct spank_handle *spank)
{
    for (int i = 0; i < VARS; i++)
        free(spank->env[i]);
    memset(spank, 0, sizeof *spank);
}

void step_init(struct spank_handle *spank, bool with_option)
{
    host = spank;
    assert_int_equal(init(spank, argument_count, arguments), 0);
    if (with_option) { // Slurm calls it twice on a node
        assert_int_equal(option.cb(option.val, "", 1), 0);
        assert_int_equal(option.cb(option.val, "", 1), 0);
    }
    assert_int_equal(init_post_opt(spank, argument_count, arguments), 0);
}

const char *value_of(struct spank_handle *spank, const char *name)
{
    char **found = variable(spank, name);

    return found ? *found + strlen(name) + 1 : NULL;
}
