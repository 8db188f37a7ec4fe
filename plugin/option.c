// SPDX-License-Identifier: Apache-2.0
// --fp8-lora and --fp8-lora-show-placement, registered in every context.
#include "option.h"

#include "submit.h"

#include <stdlib.h>
#include <string.h>

// Slurm's callback has no argument for a plugin's own data.
static bool given, show;
static char *argument;

// Slurm may call this more than once for one option, with "" or NULL for no argument.
static int option_seen(int val, const char *value, int remote)
{
    (void)val;
    if (!remote && !submit_accepts(value))
        return 0;
    given = true;
    free(argument);
    argument = value && *value ? strdup(value) : NULL;
    return 0;
}

// Who asked is read from the client's own words, which the stamp tells the node.
static int show_seen(int val, const char *value, int remote)
{
    (void)val;
    (void)value;
    show |= !remote;
    return 0;
}

int option_register(spank_t spank)
{
    static char name[] = OPTION_NAME, arginfo[] = "=job.yaml",
                usage[] =
                    "fine-tune an FP8 mixture-of-experts checkpoint with LoRA: srun "
                    "--fp8-lora job.yaml or srun --fp8-lora -- FLAGS; sbatch and salloc check "
                    "--fp8-lora=job.yaml before the job is queued";
    static struct spank_option option = {
        .name = name,
        .arginfo = arginfo,
        .usage = usage,
        .has_arg = 2, // optional: a word of its own is the command, not the argument
        .cb = option_seen,
    };
    static char show_name[] = OPTION_SHOW,
                show_usage[] =
                    "with srun --fp8-lora: print which GPU, CPUs, NUMA node and NIC every "
                    "rank gets";
    static struct spank_option show_option = {
        .name = show_name,
        .usage = show_usage,
        .cb = show_seen,
    };

    switch (spank_context()) {
    case S_CTX_LOCAL:
    case S_CTX_ALLOCATOR:
    case S_CTX_REMOTE:
        return spank_option_register(spank, &option) == ESPANK_SUCCESS &&
                       spank_option_register(spank, &show_option) == ESPANK_SUCCESS
                   ? 0
                   : -1;
    default:
        return 0;
    }
}

bool option_given(void)
{
    return given;
}

bool option_show_seen(void)
{
    return show;
}

char *option_argument(void)
{
    return argument;
}
