// SPDX-License-Identifier: Apache-2.0
// What the launcher tells a rank.
#include "train/launch.h"

#include "base/memory.h"
#include "job/limits_file.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The first of names that is set, as a number within [low, high]; *value is kept without one.
static int number_read(const char *const *names, int64_t low, int64_t high, int64_t *value,
                       struct fl_error *e)
{
    for (; *names; names++) {
        const char *text = getenv(*names);
        char *end;
        if (!text)
            continue;
        errno = 0;
        *value = strtoll(text, &end, 10);
        if (errno || end == text || *end || *value < low || *value > high)
            return error_set(e, -EINVAL, "environment: %s='%s' is not a number from %lld to %lld",
                             *names, text, (long long)low, (long long)high);
        return 0;
    }
    return 0;
}

// Under the plugin argv[0] is the core in place of the job's first word, which comes as ARGV0.
static void words_find(int argc, char **argv, struct launch *launch)
{
    char *first = getenv(LAUNCH_ARGV0_ENV);
    int count = 0;

    launch->words = memory_zeroed((size_t)argc + 2, sizeof *launch->words);
    if (first)
        launch->words[count++] = first;
    for (int i = 1; i < argc; i++)
        if (i > 1 || strcmp(argv[i], "--") != 0) // by hand: -- and flags
            launch->words[count++] = argv[i];
    launch->word_count = count;
}

// Of the user's wish and the site's cap the smaller counts. A cap that only warns is no cap here.
static int limits_take(struct launch *launch, struct fl_error *e)
{
    struct limits *limits = &launch->limits;
    int rc = limits_file_read(LIMITS_FD, 0, limits, e);

    if (rc != 0)
        return rc < 0 ? rc : 0; // by hand there is none
    close(LIMITS_FD);
    if (!limits->device.value || limits->action == POLICY_WARN ||
        (launch->cap && launch->cap <= limits->device.value))
        return 0;
    launch->cap = limits->device.value;
    launch->cap_source = limits->device.source;
    return 0;
}

int launch_read(int argc, char **argv, struct launch *launch, struct fl_error *e)
{
    static const char *const worlds[] = {LAUNCH_WORLD_ENV, NULL};
    static const char *const worlds_srun[] = {"SLURM_NTASKS", "SLURM_NPROCS", NULL};
    static const char *const worlds_mpirun[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL};
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "SLURM_PROCID", NULL};
    static const char *const locals[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                         "SLURM_LOCALID", NULL};
    static const char *const caps[] = {LAUNCH_CAP_ENV, NULL};
    static const char *const devices[] = {LAUNCH_DEVICE_ENV, NULL};
    int64_t world = 0, rank = 0, local = 0, device = -1, cap = 0;
    int rc;

    *launch = (struct launch){0};
    rc = number_read(worlds, 1, INT_MAX, &world, e);
    // A batch script has SLURM_NTASKS as well: only a task of a step has a process number.
    if (rc == 0 && !world)
        rc = number_read(worlds_mpirun, 1, INT_MAX, &world, e);
    if (rc == 0 && !world && getenv("SLURM_PROCID") && getenv("SLURM_STEP_ID"))
        rc = number_read(worlds_srun, 1, INT_MAX, &world, e);
    if (rc == 0)
        rc = number_read(ranks, 0, INT_MAX, &rank, e);
    if (rc == 0)
        rc = number_read(locals, 0, INT_MAX, &local, e);
    if (rc == 0)
        rc = number_read(caps, 0, INT64_MAX, &cap, e);
    if (rc == 0)
        rc = number_read(devices, 0, INT_MAX, &device, e);
    if (rc < 0)
        return rc;
    launch->world = world ? (int)world : 1;
    launch->rank = (int)rank;
    launch->local_rank = (int)local;
    launch->device = (int)(device < 0 ? local : device);
    launch->cap = (uint64_t)cap;
    words_find(argc, argv, launch);
    return limits_take(launch, e);
}

void launch_clear(struct launch *launch)
{
    limits_clear(&launch->limits);
    free(launch->words);
    *launch = (struct launch){0};
}
