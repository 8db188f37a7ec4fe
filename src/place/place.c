// SPDX-License-Identifier: Apache-2.0
// Which cores a rank runs on.
#include "place/place.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NVIDIA_VENDOR 0x10de
#define DISPLAY_CLASS 0x03 // upper byte of a PCI class: VGA and 3D controllers

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

static unsigned long pci_order(const struct hwloc_pcidev_attr_s *pci)
{
    return (unsigned long)pci->domain << 16 | (unsigned long)pci->bus << 8 |
           (unsigned long)pci->dev << 4 | pci->func;
}

static bool is_gpu(hwloc_obj_t device)
{
    return device->attr->pcidev.vendor_id == NVIDIA_VENDOR &&
           device->attr->pcidev.class_id >> 8 == DISPLAY_CLASS;
}

// The GPU with exactly index GPUs before it in PCI order.
static hwloc_obj_t gpu_find(hwloc_topology_t topology, int index)
{
    for (hwloc_obj_t d = NULL; (d = hwloc_get_next_pcidev(topology, d));) {
        int before = 0;
        if (!is_gpu(d))
            continue;
        for (hwloc_obj_t o = NULL; (o = hwloc_get_next_pcidev(topology, o));)
            before += is_gpu(o) && pci_order(&o->attr->pcidev) < pci_order(&d->attr->pcidev);
        if (before == index)
            return d;
    }
    return NULL;
}

// Where a rank wants to be: its GPU's cpuset, or the whole machine without one. Owned by topology.
static hwloc_const_bitmap_t locality(hwloc_topology_t topology, int gpu, struct fl_error *e)
{
    hwloc_obj_t device, near;

    if (gpu < 0)
        return hwloc_topology_get_topology_cpuset(topology);
    device = gpu_find(topology, gpu);
    near = device ? hwloc_get_non_io_ancestor_obj(topology, device) : NULL;
    if (!near || !near->cpuset)
        error_set(e, -ENODEV, "the topology has no GPU %d", gpu);
    return near ? near->cpuset : NULL;
}

static int cores_within(hwloc_topology_t topology, hwloc_const_bitmap_t set)
{
    int count = 0;

    for (hwloc_obj_t c = NULL; (c = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, c));)
        count += hwloc_bitmap_intersects(c->cpuset, set);
    return count;
}

// Adds cores [first, last) of those that meet set.
static void cores_take(hwloc_topology_t topology, hwloc_const_bitmap_t set, int first, int last,
                       hwloc_bitmap_t cpus)
{
    int index = 0;

    for (hwloc_obj_t c = NULL; (c = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, c));)
        if (hwloc_bitmap_intersects(c->cpuset, set)) {
            if (index >= first && index < last)
                hwloc_bitmap_or(cpus, cpus, c->cpuset);
            index++;
        }
}

static int stay(struct place_decision *decision, const char *reason)
{
    snprintf(decision->reason, sizeof decision->reason, "left as it is: %s", reason);
    return 0;
}

int place_decide(hwloc_topology_t topology, const struct place_request *request,
                 struct place_decision *decision, struct fl_error *e)
{
    int ranks = request->local_ranks, before = 0, sharing = 0, cores, rc = 0;
    int machine = cores_within(topology, hwloc_topology_get_topology_cpuset(topology));
    int allowed = cores_within(topology, request->allowed);
    hwloc_const_bitmap_t near;
    hwloc_bitmap_t usable = NULL;

    memset(decision, 0, sizeof *decision);
    decision->numa = -1;
    if (ranks < 1 || request->local_rank < 0 || request->local_rank >= ranks)
        return error_set(e, -EINVAL, "local rank %d of %d", request->local_rank, ranks);
    if (allowed < ranks * PLACE_CORES_MIN)
        return stay(decision, "fewer than two cores for each rank");
    if (allowed <= machine / ranks)
        return stay(decision, "Slurm bound it");
    near = locality(topology, request->gpus[request->local_rank], e);
    if (!near)
        return e ? e->code : -ENODEV;
    for (int i = 0; i < ranks; i++) {
        hwloc_const_bitmap_t other = locality(topology, request->gpus[i], e);
        if (!other)
            return e ? e->code : -ENODEV;
        if (hwloc_bitmap_isequal(other, near)) {
            before += i < request->local_rank;
            sharing++;
        }
    }
    usable = hwloc_bitmap_dup(near);
    decision->cpus = hwloc_bitmap_alloc();
    if (!usable || !decision->cpus) {
        rc = error_set(e, -ENOMEM, "placement: no memory");
        goto out;
    }
    hwloc_bitmap_and(usable, usable, request->allowed);
    cores = cores_within(topology, usable);
    if (cores < sharing) {
        rc = stay(decision, "fewer cores near the GPU than ranks");
        goto out;
    }
    cores_take(topology, usable, cores * before / sharing, cores * (before + 1) / sharing,
               decision->cpus);
    hwloc_bitmap_and(decision->cpus, decision->cpus, request->allowed);
    decision->cores = cores_within(topology, decision->cpus);
    for (hwloc_obj_t n = NULL; (n = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, n));)
        if (decision->numa < 0 && hwloc_bitmap_intersects(n->cpuset, decision->cpus))
            decision->numa = (int)n->os_index;
    if (request->gpus[request->local_rank] < 0)
        snprintf(decision->reason, sizeof decision->reason, "%d cores, NUMA node %d",
                 decision->cores, decision->numa);
    else
        snprintf(decision->reason, sizeof decision->reason, "%d cores near GPU %d, NUMA node %d",
                 decision->cores, request->gpus[request->local_rank], decision->numa);
out:
    hwloc_bitmap_free(usable);
    if (rc || !decision->cores)
        place_decision_clear(decision);
    return rc;
}

void place_decision_clear(struct place_decision *decision)
{
    hwloc_bitmap_free(decision->cpus);
    decision->cpus = NULL;
    decision->cores = 0;
}
