// SPDX-License-Identifier: Apache-2.0
// Binds a task to the cores and the memory near its GPU.
#include "bind.h"

#include "environment.h"
#include "launch.h"
#include "place/place.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

// Why the step's tasks stay as Slurm started them; NULL: they are to be bound.
static const char *keep_reason(const struct launch *launch, const struct environment *environment,
                               int allowed)
{
    if (launch->stamp.flags & STAMP_CPU_BIND)
        return "the user's --cpu-bind";
    if (environment->cpu_masked && !environment->gpu.count)
        return "Slurm bound it";
    if (allowed >= bind_cpus_online() && (int)environment->job_cpus < allowed)
        return "the job shares the node, and no cpuset tells its cores";
    return NULL;
}

static bool any_known(const int *gpus, int ranks)
{
    for (int i = 0; i < ranks; i++)
        if (gpus[i] >= 0)
            return true;
    return false;
}

// Slurm's default binding cuts the step's processing units into a mask for each task; the whole
// step's are their union, when this task's mask is the one it runs with.
static bool masks_join(const struct environment *environment, hwloc_bitmap_t allowed)
{
    hwloc_bitmap_t own = hwloc_bitmap_alloc(), all = hwloc_bitmap_alloc();
    const char *mask = environment->cpu_masks;
    bool right = false;

    if (!own || !all)
        goto out;
    for (uint32_t i = 0; i < environment->local_ranks && *mask; i++) {
        size_t length = strcspn(mask, ",");
        char text[512];
        if (snprintf(text, sizeof text, "%.*s", (int)length, mask) >= (int)sizeof text ||
            hwloc_bitmap_taskset_sscanf(own, text))
            goto out;
        hwloc_bitmap_or(all, all, own);
        if (i == environment->local_rank)
            right = hwloc_bitmap_isequal(own, allowed);
        mask += length + (mask[length] == ',');
    }
    if (right)
        hwloc_bitmap_copy(allowed, all);
out:
    hwloc_bitmap_free(own);
    hwloc_bitmap_free(all);
    return right;
}

static int request_fill(spank_t spank, const struct environment *environment,
                        hwloc_topology_t topology, struct place_request *request,
                        struct device *devices, int *gpus, uint32_t *global)
{
    struct gpu_view view = environment_view(environment);

    request->device_count = devices_find("", topology, devices, DEVICES_MAX);
    gpu_assign(&view, devices, request->device_count, gpus);
    for (uint32_t i = 0; i < environment->local_ranks; i++)
        if (spank_get_item(spank, S_JOB_LOCAL_TO_GLOBAL_ID, i, &global[i]))
            return -1;
    request->devices = devices;
    request->gpus = gpus;
    request->global = global;
    return 0;
}

// The same GPUs in the order that keeps expert-parallel groups together, in every task alike.
static void gpus_regroup(hwloc_topology_t topology, struct environment *environment,
                         struct place_request *request, int *gpus)
{
    struct gpu_view view = environment_view(environment);
    int own;

    if (environment->gpu_hidden || environment->gpu.count < request->ranks)
        return;
    request->regrouped = place_regroup(topology, request, gpus);
    if (!request->regrouped)
        return;
    own = gpus[environment->local_rank];
    for (view.local_rank = 0; view.local_rank < view.local_ranks; view.local_rank++) {
        struct gpu_choice choice = gpu_choose(&view);
        if (gpu_of_choice(&view, request->devices, request->device_count, &choice) == own)
            environment->gpu = choice;
    }
}

static void placement_show(spank_t spank, const struct placement *placement)
{
    char *table = placement_table(placement), *rest = table, *line;
    char node[256] = "";

    (void)spank_getenv(spank, "SLURMD_NODENAME", node, sizeof node);
    slurm_spank_log("fp8-lora: placement on %s", node);
    while (rest && (line = strsep(&rest, "\n")) && *line)
        slurm_spank_log("fp8-lora: %s", line);
    free(table);
}

static const char *or_none(const char *text)
{
    return *text ? text : "none";
}

static void placement_tell(spank_t spank, const struct launch *launch,
                           const struct environment *environment, const struct placement *placement)
{
    const struct place_rank *own = &placement->rank[environment->local_rank];

    slurm_debug("fp8-lora: placement: rank %u: GPU %s, NIC %s, EP group %s: %s", own->global,
                or_none(own->pci), or_none(own->nic), or_none(own->group), own->reason);
    if (environment->local_rank)
        return;
    if (launch->stamp.flags & STAMP_SHOW_PLACEMENT)
        placement_show(spank, placement);
    else
        for (int i = 0; i < placement->warnings; i++)
            slurm_spank_log("fp8-lora: warning: %s", placement->warning[i]);
}

// Preferred, never enforced: a rank may need more than its node has. Kept over exec and by threads.
static void memory_bind(hwloc_topology_t topology, const struct environment *environment,
                        const struct place_rank *rank)
{
    if (environment->memory_bound || hwloc_bitmap_iszero(rank->memory) ||
        hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE) < 2)
        return;
    if (hwloc_set_membind(topology, rank->memory, HWLOC_MEMBIND_BIND,
                          HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET))
        slurm_debug("fp8-lora: placement: memory stays as it is");
}

static int rank_bind(hwloc_topology_t topology, const struct environment *environment,
                     hwloc_const_bitmap_t before, const struct place_rank *rank)
{
    if (!rank->cores)
        return 0;
    if (hwloc_set_cpubind(topology, rank->cpus, HWLOC_CPUBIND_PROCESS)) {
        slurm_debug("fp8-lora: placement: the kernel refuses these cores");
        return 0;
    }
    memory_bind(topology, environment, rank);
    return hwloc_bitmap_isequal(rank->cpus, before) ? 0 : rank->cores;
}

// Before the topology is read, which takes time: could anything come of it?
static bool worth_reading(const struct launch *launch, const struct environment *environment,
                          const char *keep)
{
    if (launch->stamp.flags & STAMP_SHOW_PLACEMENT)
        return true;
    if (launch->stamp.ep > 1 && environment->gpu.count > 1 && !environment->gpu_hidden)
        return true;
    return !keep && bind_cpus_online() > 1 &&
           (environment->gpu.count || bind_cpus_allowed() >= (int)environment->local_ranks);
}

void bind_task(spank_t spank, const struct launch *launch, struct environment *environment)
{
    struct place_request request = {.ranks = (int)environment->local_ranks,
                                    .ep = (int)launch->stamp.ep,
                                    .hides_peers = environment->gpu_hidden};
    struct device devices[DEVICES_MAX];
    struct placement *placement = NULL;
    hwloc_topology_t topology = NULL;
    hwloc_bitmap_t before = NULL, allowed = NULL;
    uint32_t *global = calloc(environment->local_ranks, sizeof *global);
    int *gpus = calloc(environment->local_ranks, sizeof *gpus);
    struct fl_error e = {0};

    request.keep = keep_reason(launch, environment, bind_cpus_allowed());
    if (!gpus || !global || !worth_reading(launch, environment, request.keep) ||
        place_topology_load(NULL, &topology, &e))
        goto out;
    before = hwloc_bitmap_alloc();
    if (!before || hwloc_get_cpubind(topology, before, HWLOC_CPUBIND_PROCESS))
        goto out;
    allowed = hwloc_bitmap_dup(before);
    if (!allowed)
        goto out;
    if (request_fill(spank, environment, topology, &request, devices, gpus, global))
        goto out;
    gpus_regroup(topology, environment, &request, gpus);
    if (environment->cpu_masked && !request.keep) {
        if (!any_known(gpus, request.ranks))
            request.keep = "Slurm bound it, and which GPUs it has is not known";
        else if (!masks_join(environment, allowed))
            request.keep = "Slurm bound it, and does not tell to what";
    }
    request.allowed = allowed;
    if (place_decide(topology, &request, &placement, &e))
        goto out;
    placement_tell(spank, launch, environment, placement);
    environment->cores =
        rank_bind(topology, environment, before, &placement->rank[environment->local_rank]);
out:
    if (e.code)
        slurm_debug("fp8-lora: placement: %s", e.text);
    if (!placement && environment->gpu_hidden && !environment->rank)
        slurm_spank_log("fp8-lora: warning: " PLACE_HIDES_PEERS);
    placement_destroy(placement);
    hwloc_bitmap_free(before);
    hwloc_bitmap_free(allowed);
    if (topology)
        hwloc_topology_destroy(topology);
    free(global);
    free(gpus);
}
