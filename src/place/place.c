// SPDX-License-Identifier: Apache-2.0
// Where every rank of a node runs.
#include "place/place.h"

#include "place/cores.h"
#include "place/gpu.h"
#include "place/near.h"
#include "place/regroup.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

int place_topology_load(const char *xml, hwloc_topology_t *out, struct fl_error *e)
{
    static const char *const drivers[] = {"cuda", "nvml", "opencl", "rsmi", "gl", "levelzero"};
    hwloc_topology_t topology;

    // hwloc shows the real machine when the file is missing.
    if (xml && access(xml, R_OK))
        return error_set(e, -errno, "%s: %s", xml, strerror(errno));
    if (hwloc_topology_init(&topology))
        return error_set(e, -ENOMEM, "topology: no memory");
    // GPU drivers are not loaded into a process that is about to become another program.
    for (size_t i = 0; i < sizeof drivers / sizeof *drivers; i++)
        (void)hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                            drivers[i]);
    if (hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_ALL) ||
        (xml && hwloc_topology_set_xml(topology, xml)) || hwloc_topology_load(topology)) {
        hwloc_topology_destroy(topology);
        return error_set(e, -EINVAL, "%s: hwloc cannot read it as a topology",
                         xml ? xml : "this machine");
    }
    *out = topology;
    return 0;
}

__attribute__((format(printf, 2, 3))) static void warn(struct placement *placement,
                                                       const char *format, ...)
{
    va_list args;

    if (placement->warnings == PLACE_WARNINGS_MAX)
        return;
    va_start(args, format);
    vsnprintf(placement->warning[placement->warnings++], sizeof *placement->warning, format, args);
    va_end(args);
}

static int request_check(const struct place_request *request, struct fl_error *e)
{
    if (request->ranks < 1 || request->ep < 1)
        return error_set(e, -EINVAL, "placement: %d ranks, expert parallel %d: at least 1 each",
                         request->ranks, request->ep);
    if (hwloc_bitmap_iszero(request->allowed))
        return error_set(e, -EINVAL, "placement: no processing unit is allowed");
    for (int i = 0; i < request->ranks; i++)
        if (request->gpus[i] >= request->device_count)
            return error_set(e, -ENODEV, "placement: rank %u has GPU %d of %d", request->global[i],
                             request->gpus[i], request->device_count);
    return 0;
}

// The nodes of ordinary memory beside cpus: a GPU's own memory may be a node too.
static hwloc_bitmap_t memory_of(hwloc_topology_t topology, hwloc_const_bitmap_t cpus)
{
    hwloc_bitmap_t memory = hwloc_bitmap_alloc();

    for (hwloc_obj_t n = NULL;
         memory && (n = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, n));)
        if ((!n->subtype || !strcmp(n->subtype, "DRAM")) &&
            hwloc_bitmap_intersects(n->cpuset, cpus))
            hwloc_bitmap_set(memory, n->os_index);
    return memory;
}

// Where shares of cores go: to ranks, or to GPUs when ranks are hidden.
struct shares {
    int count;
    hwloc_bitmap_t *near, *cpus; // [count]
};

static void shares_clear(struct shares *shares)
{
    for (int i = 0; i < shares->count; i++) {
        if (shares->near)
            hwloc_bitmap_free(shares->near[i]);
        if (shares->cpus)
            hwloc_bitmap_free(shares->cpus[i]);
    }
    free(shares->near);
    free(shares->cpus);
}

static bool any_hidden(const struct place_request *request)
{
    for (int i = 0; i < request->ranks; i++)
        if (request->gpus[i] == GPU_HIDDEN)
            return true;
    return false;
}

static int shares_make(hwloc_topology_t topology, const struct place_request *request,
                       struct shares *shares)
{
    bool hidden = any_hidden(request);

    shares->count = hidden ? request->device_count : request->ranks;
    shares->near = calloc((size_t)shares->count + 1, sizeof(hwloc_bitmap_t));
    shares->cpus = calloc((size_t)shares->count + 1, sizeof(hwloc_bitmap_t));
    if (!shares->near || !shares->cpus)
        return -ENOMEM;
    for (int i = 0; i < shares->count; i++) {
        int gpu = hidden ? i : request->gpus[i];
        shares->near[i] = gpu >= 0 ? near_cpus(topology, &request->devices[gpu])
                                   : hwloc_bitmap_dup(hwloc_topology_get_topology_cpuset(topology));
        if (!shares->near[i])
            return -ENOMEM;
    }
    return cores_share(topology, request->allowed, (const hwloc_const_bitmap_t *)shares->near,
                       shares->count, shares->cpus);
}

__attribute__((format(printf, 2, 3))) static void stay(struct place_rank *rank, const char *format,
                                                       ...)
{
    size_t used = (size_t)snprintf(rank->reason, sizeof rank->reason, "left as it is: ");
    va_list args;

    va_start(args, format);
    vsnprintf(rank->reason + used, sizeof rank->reason - used, format, args);
    va_end(args);
}

static int rank_bind(hwloc_topology_t topology, const struct place_request *request,
                     hwloc_const_bitmap_t cpus, struct place_rank *rank)
{
    rank->cpus = hwloc_bitmap_dup(cpus);
    rank->memory = memory_of(topology, cpus);
    if (!rank->cpus || !rank->memory)
        return -ENOMEM;
    rank->cores = cores_within(topology, cpus);
    snprintf(rank->reason, sizeof rank->reason, "%d core%s%s%s", rank->cores,
             rank->cores == 1 ? "" : "s", rank->gpu >= 0 ? " near the GPU" : "",
             request->regrouped ? ", GPUs reordered for EP groups" : "");
    return 0;
}

static int cores_decide(hwloc_topology_t topology, const struct place_request *request,
                        struct placement *placement)
{
    int allowed = cores_within(topology, request->allowed), rc = 0;
    bool hidden = any_hidden(request);
    struct shares shares = {0};
    const char *keep = request->keep;
    char few[64];

    if (!keep && allowed < request->ranks) {
        snprintf(few, sizeof few, "%d core%s for %d ranks", allowed, allowed == 1 ? "" : "s",
                 request->ranks);
        warn(placement, "%s: they share them; request more with --cpus-per-task", few);
        keep = few;
    }
    if (!keep)
        rc = shares_make(topology, request, &shares);
    for (int i = 0; i < request->ranks && !rc; i++) {
        struct place_rank *rank = &placement->rank[i];
        int share = hidden ? rank->gpu : i;
        if (keep)
            stay(rank, "%s", keep);
        else if (hidden && rank->gpu == GPU_NONE)
            stay(rank, "which GPU it has is not known");
        else if (rank->gpu == GPU_HIDDEN)
            stay(rank, "its own task sees the GPU and decides");
        else if (share >= 0 && shares.cpus[share])
            rc = rank_bind(topology, request, shares.cpus[share], rank);
        else if (rank->gpu >= 0 && !hwloc_bitmap_intersects(shares.near[share], request->allowed))
            stay(rank, "no core near the GPU is the job's");
        else
            stay(rank, "fewer cores near the GPU than ranks");
    }
    if (!keep && !rc)
        for (int i = 0; i < request->ranks; i++)
            if (placement->rank[i].gpu >= 0 && !placement->rank[i].cores) {
                warn(placement, "rank %u is not bound: %s", placement->rank[i].global,
                     placement->rank[i].reason + strlen("left as it is: "));
                break;
            }
    shares_clear(&shares);
    return rc;
}

static void nics_decide(hwloc_topology_t topology, const struct place_request *request,
                        struct placement *placement)
{
    hwloc_obj_t nics[NICS_MAX];
    int count = nics_find(topology, nics, NICS_MAX), used[NICS_MAX] = {0};

    for (int i = 0; i < request->ranks; i++) {
        struct place_rank *rank = &placement->rank[i];
        int nic = rank->gpu < 0
                      ? -1
                      : nic_nearest(topology, &request->devices[rank->gpu], nics, count, used);
        if (nic >= 0)
            nic_name(nics[nic], rank->nic);
    }
}

static void island_name(const struct island *island, char text[24])
{
    static const char *const kinds[] = {"unknown", "nvlink", "package"};

    if (island->kind == ISLAND_UNKNOWN)
        snprintf(text, 24, "unknown");
    else
        snprintf(text, 24, "%s %d", kinds[island->kind], island->number);
}

// What the local ranks of the group that begins at first lie in.
static void group_decide(const struct place_request *request, const struct island *islands,
                         struct placement *placement, int first)
{
    uint32_t group = request->global[first] / (uint32_t)request->ep;
    struct island common = {ISLAND_UNKNOWN, 0};
    int members = 0;
    bool crosses = false, unknown = false;
    char text[sizeof placement->rank->group], name[24];

    for (int i = first; i < request->ranks; i++) {
        struct island island = {ISLAND_UNKNOWN, 0};
        if (request->global[i] / (uint32_t)request->ep != group)
            continue;
        if (request->gpus[i] >= 0)
            island = islands[request->gpus[i]];
        unknown |= island.kind == ISLAND_UNKNOWN;
        if (members++ == 0)
            common = island;
        crosses |= island.kind != common.kind || island.number != common.number;
    }
    island_name(&common, name);
    if (unknown)
        snprintf(text, sizeof text, "%u: unknown", group);
    else if (crosses)
        snprintf(text, sizeof text, "%u: crosses %ss", group,
                 common.kind == ISLAND_NVLINK ? "island" : "package");
    else
        snprintf(text, sizeof text, "%u: %s", group, name);
    if (members < request->ep)
        snprintf(text + strlen(text), sizeof text - strlen(text), ", more nodes");
    for (int i = first; i < request->ranks; i++)
        if (request->global[i] / (uint32_t)request->ep == group)
            memcpy(placement->rank[i].group, text, sizeof text);
    if (!unknown && crosses)
        warn(placement,
             "expert-parallel group %u crosses %s: tokens take the slower path between them; "
             "request GPUs of one, or a smaller expert_parallel",
             group, common.kind == ISLAND_NVLINK ? "NVLink islands" : "packages");
}

static void groups_decide(hwloc_topology_t topology, const struct place_request *request,
                          struct placement *placement)
{
    struct island islands[DEVICES_MAX];

    if (request->ep == 1)
        return;
    islands_find(topology, request->devices, request->device_count, islands);
    for (int i = 0; i < request->ranks; i++)
        if (!placement->rank[i].group[0])
            group_decide(request, islands, placement, i);
}

bool place_regroup(hwloc_topology_t topology, const struct place_request *request, int *gpus)
{
    struct island islands[DEVICES_MAX];

    if (request->ep < 2 || !request->device_count)
        return false;
    islands_find(topology, request->devices, request->device_count, islands);
    return regroup(islands, request->global, request->ranks, request->ep, gpus);
}

int place_decide(hwloc_topology_t topology, const struct place_request *request,
                 struct placement **out, struct fl_error *e)
{
    int code = request_check(request, e);
    struct placement *placement;

    if (code)
        return code;
    placement = calloc(1, sizeof *placement);
    if (placement)
        placement->rank = calloc((size_t)request->ranks, sizeof *placement->rank);
    if (!placement || !placement->rank) {
        code = -ENOMEM;
        goto out;
    }
    placement->ranks = request->ranks;
    for (int i = 0; i < request->ranks; i++) {
        struct place_rank *rank = &placement->rank[i];
        rank->global = request->global[i];
        rank->gpu = request->gpus[i];
        if (rank->gpu >= 0) {
            memcpy(rank->pci, request->devices[rank->gpu].pci, sizeof rank->pci);
            memcpy(rank->uuid, request->devices[rank->gpu].uuid, sizeof rank->uuid);
        }
    }
    code = cores_decide(topology, request, placement);
    if (code)
        goto out;
    if (request->hides_peers)
        warn(placement, "%s", PLACE_HIDES_PEERS);
    nics_decide(topology, request, placement);
    groups_decide(topology, request, placement);
out:
    if (code) {
        error_set(e, code, "placement: no memory");
        placement_destroy(placement);
        return code;
    }
    *out = placement;
    return 0;
}

void placement_destroy(struct placement *placement)
{
    if (!placement)
        return;
    for (int i = 0; placement->rank && i < placement->ranks; i++) {
        hwloc_bitmap_free(placement->rank[i].cpus);
        hwloc_bitmap_free(placement->rank[i].memory);
    }
    free(placement->rank);
    free(placement);
}
