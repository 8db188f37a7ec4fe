// SPDX-License-Identifier: Apache-2.0
// What lies near a GPU: processing units, NICs, and the GPUs it reaches fastest.
#ifndef FL_PLACE_NEAR_H
#define FL_PLACE_NEAR_H

#include "place/device.h"

#define NICS_MAX 64

// The processing units nearest to a device; of the machine when nobody tells. The caller frees it;
// NULL: no memory.
hwloc_bitmap_t near_cpus(hwloc_topology_t topology, const struct device *device);

// The NICs that NCCL would use: those of InfiniBand or RoCE, or else all, in PCI order.
int nics_find(hwloc_topology_t topology, hwloc_obj_t *nics, int most);
// mlx5_0, eth0 or the PCI address.
const char *nic_name(hwloc_obj_t nic, char text[16]);
// Of nics[count], the one that shares the deepest bridge with the device, of several the one used[]
// least, whose count it raises. -1: none.
int nic_nearest(hwloc_topology_t topology, const struct device *device, const hwloc_obj_t *nics,
                int count, int *used);

enum island_kind { ISLAND_UNKNOWN, ISLAND_NVLINK, ISLAND_PACKAGE };

struct island {
    enum island_kind kind;
    int number; // of the island, or of the package as the operating system counts
};

// islands[count]: where each device's fastest neighbours are. NVLink's links when the topology has
// them; all GPUs of a node with NVSwitches; else the package. Without either: unknown.
void islands_find(hwloc_topology_t topology, const struct device *devices, int count,
                  struct island *islands);

#endif
