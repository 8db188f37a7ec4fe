// SPDX-License-Identifier: Apache-2.0
// The node's NVIDIA GPUs and who they are, without the driver's libraries.
#ifndef FL_PLACE_DEVICE_H
#define FL_PLACE_DEVICE_H

#include <hwloc.h>
#include <stdbool.h>

#define DEVICES_MAX     64
#define DEVICE_UUID_MAX 64

struct device {
    char pci[16];               // 0000:18:00.0
    char uuid[DEVICE_UUID_MAX]; // GPU-...; "": unknown
    int minor;                  // N of /dev/nvidiaN, which Slurm counts by; -1: unknown
    bool open;                  // permissions and the device cgroup let this process open it
    char cpus[256];             // near it as the kernel tells, a list; "": unknown
};

// Fills devices[most] in PCI order, which is CUDA's with CUDA_DEVICE_ORDER=PCI_BUS_ID, and returns
// how many there are. What the driver shows below root ("": this machine's, NULL: nothing), in
// /proc/driver/nvidia/gpus, comes before the topology's PCI devices: those may lack the driver.
int devices_find(const char *root, hwloc_topology_t topology, struct device *devices, int most);

// The topology's PCI device at an address; NULL: it has none.
hwloc_obj_t device_object(hwloc_topology_t topology, const char *pci);

#endif
