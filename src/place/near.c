// SPDX-License-Identifier: Apache-2.0
// What lies near a GPU: processing units, NICs, and the GPUs it reaches fastest.
#include "place/near.h"

#include <hwloc/distances.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NVIDIA_VENDOR 0x10de
#define NETWORK_CLASS 0x02   // upper byte of a PCI class
#define OTHER_BRIDGE  0x0680 // the class of NVSwitches

hwloc_bitmap_t near_cpus(hwloc_topology_t topology, const struct device *device)
{
    hwloc_const_bitmap_t machine = hwloc_topology_get_topology_cpuset(topology);
    hwloc_obj_t object = device_object(topology, device->pci);
    hwloc_obj_t near = object ? hwloc_get_non_io_ancestor_obj(topology, object) : NULL;
    hwloc_bitmap_t cpus =
        near && near->cpuset ? hwloc_bitmap_dup(near->cpuset) : hwloc_bitmap_alloc();

    if (!cpus)
        return NULL;
    if (!near && device->cpus[0] && !hwloc_bitmap_list_sscanf(cpus, device->cpus))
        hwloc_bitmap_and(cpus, cpus, machine);
    if (hwloc_bitmap_iszero(cpus))
        hwloc_bitmap_copy(cpus, machine);
    return cpus;
}

static hwloc_obj_t interface_of(hwloc_obj_t nic, hwloc_obj_osdev_type_t type)
{
    for (hwloc_obj_t c = nic->io_first_child; c; c = c->next_sibling)
        if (c->type == HWLOC_OBJ_OS_DEVICE && c->attr->osdev.type == type)
            return c;
    return NULL;
}

static unsigned long pci_order(hwloc_obj_t device)
{
    const struct hwloc_pcidev_attr_s *pci = &device->attr->pcidev;

    return (unsigned long)pci->domain << 20 | (unsigned long)pci->bus << 12 |
           (unsigned long)pci->dev << 4 | pci->func;
}

static int pci_compare(const void *a, const void *b)
{
    unsigned long x = pci_order(*(const hwloc_obj_t *)a), y = pci_order(*(const hwloc_obj_t *)b);

    return (x > y) - (x < y);
}

int nics_find(hwloc_topology_t topology, hwloc_obj_t *nics, int most)
{
    int count = 0, verbs = 0;

    for (hwloc_obj_t d = NULL; (d = hwloc_get_next_pcidev(topology, d));)
        verbs += d->attr->pcidev.class_id >> 8 == NETWORK_CLASS &&
                 interface_of(d, HWLOC_OBJ_OSDEV_OPENFABRICS);
    for (hwloc_obj_t d = NULL; count < most && (d = hwloc_get_next_pcidev(topology, d));)
        if (d->attr->pcidev.class_id >> 8 == NETWORK_CLASS &&
            (!verbs || interface_of(d, HWLOC_OBJ_OSDEV_OPENFABRICS)))
            nics[count++] = d;
    qsort(nics, (size_t)count, sizeof *nics, pci_compare);
    return count;
}

const char *nic_name(hwloc_obj_t nic, char text[16])
{
    const struct hwloc_pcidev_attr_s *pci = &nic->attr->pcidev;
    hwloc_obj_t interface = interface_of(nic, HWLOC_OBJ_OSDEV_OPENFABRICS);

    if (!interface)
        interface = interface_of(nic, HWLOC_OBJ_OSDEV_NETWORK);
    if (interface && interface->name)
        snprintf(text, 16, "%s", interface->name);
    else
        snprintf(text, 16, "%04x:%02x:%02x.%x", pci->domain, pci->bus, pci->dev, pci->func);
    return text;
}

// Steps from the top down to the lowest object above both.
static int depth_shared(hwloc_obj_t a, hwloc_obj_t b)
{
    for (; a; a = a->parent)
        for (hwloc_obj_t o = b; o; o = o->parent)
            if (o == a) {
                int depth = 0;
                while ((o = o->parent))
                    depth++;
                return depth;
            }
    return -1;
}

int nic_nearest(hwloc_topology_t topology, const struct device *device, const hwloc_obj_t *nics,
                int count, int *used)
{
    hwloc_obj_t object = device_object(topology, device->pci);
    int best = -1, deepest = -1;

    for (int i = 0; object && i < count; i++) {
        int depth = depth_shared(object, nics[i]);
        if (best < 0 || depth > deepest || (depth == deepest && used[i] < used[best])) {
            deepest = depth;
            best = i;
        }
    }
    if (best >= 0)
        used[best]++;
    return best;
}

static bool has_nvswitch(hwloc_topology_t topology)
{
    for (hwloc_obj_t d = NULL; (d = hwloc_get_next_pcidev(topology, d));)
        if (d->attr->pcidev.vendor_id == NVIDIA_VENDOR && d->attr->pcidev.class_id == OTHER_BRIDGE)
            return true;
    return false;
}

// The PCI device an object of the matrix belongs to, as an index into devices; -1: not a GPU.
static int matrix_device(const struct device *devices, int count, hwloc_topology_t topology,
                         hwloc_obj_t object)
{
    while (object && object->type == HWLOC_OBJ_OS_DEVICE)
        object = object->parent;
    for (int i = 0; i < count; i++)
        if (object && object == device_object(topology, devices[i].pci))
            return i;
    return -1;
}

// Numbers groups[count] of objects joined by links, switches among them, each by its first member.
static void links_join(const struct hwloc_distances_s *links, unsigned *groups)
{
    unsigned count = links->nbobjs;

    for (unsigned i = 0; i < count; i++)
        groups[i] = i;
    for (unsigned i = 0; i < count; i++)
        for (unsigned k = 0; k < count; k++) {
            unsigned from = groups[i], to = groups[k];
            if (i == k || from == to || !links->values[i * count + k])
                continue;
            for (unsigned m = 0; m < count; m++)
                if (groups[m] == from || groups[m] == to)
                    groups[m] = from < to ? from : to;
        }
}

// Returns whether every device is in the matrix of NVLinks.
static bool islands_from_links(hwloc_topology_t topology, const struct device *devices, int count,
                               struct island *islands)
{
    struct hwloc_distances_s *links = NULL;
    unsigned nr = 1, *groups = NULL;
    int group_of[DEVICES_MAX], found = 0, next = 0;

    if (hwloc_distances_get_by_name(topology, "NVLinkBandwidth", &nr, &links, 0) || !nr || !links)
        return false;
    groups = calloc(links->nbobjs, sizeof *groups);
    for (int i = 0; i < count; i++)
        group_of[i] = -1;
    if (groups)
        links_join(links, groups);
    for (unsigned o = 0; groups && o < links->nbobjs; o++) {
        int device = matrix_device(devices, count, topology, links->objs[o]);
        if (device >= 0 && group_of[device] < 0) {
            group_of[device] = (int)groups[o];
            found++;
        }
    }
    for (int i = 0; found == count && i < count; i++) {
        int earlier = 0;
        while (earlier < i && group_of[earlier] != group_of[i])
            earlier++;
        islands[i] = (struct island){ISLAND_NVLINK, earlier < i ? islands[earlier].number : next++};
    }
    free(groups);
    hwloc_distances_release(topology, links);
    return found == count;
}

static struct island island_package(hwloc_topology_t topology, const struct device *device)
{
    struct island island = {ISLAND_UNKNOWN, 0};
    hwloc_bitmap_t cpus = near_cpus(topology, device);
    int met = 0;

    for (hwloc_obj_t p = NULL;
         cpus && (p = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PACKAGE, p));)
        if (hwloc_bitmap_intersects(p->cpuset, cpus)) {
            island = (struct island){ISLAND_PACKAGE, (int)p->os_index};
            met++;
        }
    hwloc_bitmap_free(cpus);
    return met == 1 ? island : (struct island){ISLAND_UNKNOWN, 0};
}

void islands_find(hwloc_topology_t topology, const struct device *devices, int count,
                  struct island *islands)
{
    if (count && islands_from_links(topology, devices, count, islands))
        return;
    for (int i = 0; i < count; i++)
        islands[i] = has_nvswitch(topology) ? (struct island){ISLAND_NVLINK, 0}
                                            : island_package(topology, &devices[i]);
}
