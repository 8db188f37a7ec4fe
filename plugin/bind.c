// SPDX-License-Identifier: Apache-2.0
// Binds a task to the cores near its GPU.
#include "bind.h"

#include "environment.h"
#include "place/place.h"

#include <sched.h>
#include <slurm/spank.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

int bind_cpus_allowed(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof set, &set) ? bind_cpus_online() : CPU_COUNT(&set);
}

int bind_cpus_online(void)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);

    return cpus > 0 ? (int)cpus : 1;
}

// Before the topology is read, which takes time: could a decision differ from "stay as you are"?
static bool worth_reading(const struct environment *environment)
{
    int ranks = (int)environment->local_ranks, allowed = bind_cpus_allowed();
    bool whole_node = (int)environment->job_cpus >= bind_cpus_online();

    return allowed >= ranks * PLACE_CORES_MIN && allowed > bind_cpus_online() / ranks &&
           (whole_node || allowed < bind_cpus_online());
}

int bind_task(const struct environment *environment)
{
    struct place_request request = {.local_rank = (int)environment->local_rank,
                                    .local_ranks = (int)environment->local_ranks};
    struct place_decision decision = {0};
    hwloc_topology_t topology = NULL;
    struct fl_error e;
    int *gpus = NULL, cores = 0;

    if (!worth_reading(environment))
        return 0;
    gpus = calloc(environment->local_ranks, sizeof *gpus);
    if (!gpus || place_topology_load(NULL, &topology, &e))
        goto out;
    for (uint32_t i = 0; i < environment->local_ranks; i++)
        gpus[i] = gpu_index(environment->gpus, i, environment->local_ranks);
    request.gpus = gpus;
    request.allowed = hwloc_bitmap_alloc();
    if (!request.allowed || hwloc_get_cpubind(topology, request.allowed, HWLOC_CPUBIND_PROCESS))
        goto out;
    if (place_decide(topology, &request, &decision, &e)) {
        slurm_debug("fp8-lora: placement: %s", e.text);
        goto out;
    }
    if (decision.cores && !hwloc_set_cpubind(topology, decision.cpus, HWLOC_CPUBIND_PROCESS))
        cores = decision.cores;
    slurm_debug("fp8-lora: placement: %s", decision.reason);
out:
    place_decision_clear(&decision);
    hwloc_bitmap_free(request.allowed);
    if (topology)
        hwloc_topology_destroy(topology);
    free(gpus);
    return cores;
}
