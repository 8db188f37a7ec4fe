// SPDX-License-Identifier: Apache-2.0
// How many threads a CPU rank runs.
#include "train/cores.h"

#include "base/memory.h"

#include <cblas.h>
#include <limits.h>
#include <omp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct cores {
    char host[64];
    cpu_set_t allowed;
};

void cores_idle_asleep(char **argv)
{
    char path[PATH_MAX]; // a process is called what its path ends in
    ssize_t used;

    if (getenv("OMP_WAIT_POLICY"))
        return;
    setenv("OMP_WAIT_POLICY", "passive", 1);
    used = readlink("/proc/self/exe", path, sizeof path);
    if (used <= 0 || used == (ssize_t)sizeof path)
        return;
    path[used] = 0;
    execv(path, argv); // when it fails, threads spin
}

int cores_threads(struct comm *world, int *threads, struct fl_error *e)
{
    struct cores mine = {0}, *all;
    int rc, sharing = 0;

    gethostname(mine.host, sizeof mine.host - 1);
    if (sched_getaffinity(0, sizeof mine.allowed, &mine.allowed) < 0)
        CPU_SET(0, &mine.allowed); // more cores than the set holds: be modest
    all = memory_zeroed((size_t)comm_size(world), sizeof *all);
    rc = comm_all_gather(world, &mine, all, sizeof mine, e);
    for (int i = 0; rc == 0 && i < comm_size(world); i++) {
        cpu_set_t both;
        CPU_AND(&both, &mine.allowed, &all[i].allowed);
        sharing += strcmp(all[i].host, mine.host) == 0 && CPU_COUNT(&both) > 0;
    }
    free(all);
    if (rc < 0)
        return rc;
    *threads = CPU_COUNT(&mine.allowed) / sharing;
    if (getenv("OMP_NUM_THREADS"))
        *threads = omp_get_max_threads();
    if (*threads < 1)
        *threads = 1;
    return 0;
}

void cores_use(int threads)
{
    omp_set_num_threads(threads);
    openblas_set_num_threads(threads);
}
