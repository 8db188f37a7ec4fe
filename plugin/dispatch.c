// SPDX-License-Identifier: Apache-2.0
// Slurm's hooks, each of them one call.

// Slurm finds these by name; the version script keeps every other symbol inside.
#pragma GCC visibility push(default)
#include <slurm/spank.h>
SPANK_PLUGIN(fp8_lora, 1)
#pragma GCC visibility pop

#include "account.h"
#include "launch.h"
#include "option.h"
#include "submit.h"

static struct launch *launch; // in slurmstepd, when the step is ours

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return option_register(spank);
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv)
{
    if (spank_context() == S_CTX_REMOTE)
        launch = launch_create(spank, argc, argv);
    else
        submit_check(argc, argv);
    return 0;
}

int slurm_spank_local_user_init(spank_t spank, int argc, char **argv)
{
    submit_stamp(spank, argc, argv);
    return 0;
}

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    if (launch)
        launch_task(spank, launch);
    return 0;
}

int slurm_spank_task_post_fork(spank_t spank, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    if (launch)
        launch_forked(spank, launch);
    return 0;
}

int slurm_spank_task_exit(spank_t spank, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    if (launch)
        account_task_exit(spank, launch);
    return 0;
}

int slurm_spank_exit(spank_t spank, int argc, char **argv)
{
    (void)spank;
    (void)argc;
    (void)argv;
    launch_destroy(launch);
    launch = NULL;
    return 0;
}
