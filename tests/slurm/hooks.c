// SPDX-License-Identifier: Apache-2.0
// A plugin for tests: logs each hook with context, task, process and identity into the file that
// its argument names, and sets a variable in task_init as a later plugin might.
#include <slurm/spank.h>
#include <stdio.h>
#include <unistd.h>

#pragma GCC visibility push(default)
SPANK_PLUGIN(fp8_lora_test_hooks, 1)

#define HOOK(name)                                                                                 \
    int slurm_spank_##name(spank_t spank, int argc, char **argv);                                  \
    int slurm_spank_##name(spank_t spank, int argc, char **argv)                                   \
    {                                                                                              \
        return hook_log(spank, #name, argc, argv);                                                 \
    }

static int hook_log(spank_t spank, const char *hook, int argc, char **argv)
{
    static const char *const contexts[] = {"error",     "local",  "stepd",
                                           "allocator", "slurmd", "script"};
    FILE *log = argc == 1 ? fopen(argv[0], "a") : NULL;
    int task = -1;

    (void)spank_get_item(spank, S_TASK_ID, &task);
    if (log) {
        fprintf(log, "%s %s task %d uid %u euid %u pid %d parent %d\n", contexts[spank_context()],
                hook, task, getuid(), geteuid(), getpid(), getppid());
        fclose(log);
    }
    return 0;
}

HOOK(init)
HOOK(init_post_opt)
HOOK(local_user_init)
HOOK(user_init)
HOOK(task_init_privileged)
HOOK(task_post_fork)
HOOK(task_exit)
HOOK(exit)

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
    spank_setenv(spank, "LATER_PLUGIN", "task_init", 1);
    return hook_log(spank, "task_init", argc, argv);
}
