// SPDX-License-Identifier: Apache-2.0
// The node's NVIDIA GPUs and who they are, without the driver's libraries.
#include "place/device.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NVIDIA_VENDOR 0x10de
#define DISPLAY_CLASS 0x03 // upper byte of a PCI class: VGA and 3D controllers

hwloc_obj_t device_object(hwloc_topology_t topology, const char *pci)
{
    unsigned domain, bus, dev, func;

    if (sscanf(pci, "%x:%x:%x.%x", &domain, &bus, &dev, &func) != 4)
        return NULL;
    return hwloc_get_pcidev_by_busid(topology, domain, bus, dev, func);
}

// The kernel's list of the CPUs near the device; "" when it tells none.
static void cpus_read(const char *root, struct device *device)
{
    char path[PATH_MAX];
    FILE *file;

    if (snprintf(path, sizeof path, "%s/sys/bus/pci/devices/%s/local_cpulist", root, device->pci) >=
        (int)sizeof path)
        return;
    file = fopen(path, "re");
    if (!file)
        return;
    if (!fgets(device->cpus, sizeof device->cpus, file))
        device->cpus[0] = 0;
    device->cpus[strcspn(device->cpus, "\n")] = 0;
    fclose(file);
}

static void information_read(const char *root, struct device *device)
{
    char path[PATH_MAX], line[256];
    FILE *file;

    if (snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus/%s/information", root,
                 device->pci) >= (int)sizeof path)
        return;
    file = fopen(path, "re");
    if (!file)
        return;
    while (fgets(line, sizeof line, file)) {
        (void)sscanf(line, "GPU UUID: %63s", device->uuid);
        (void)sscanf(line, "Device Minor: %d", &device->minor);
    }
    fclose(file);
    if (strncmp(device->uuid, "GPU-", 4) || strchr(device->uuid, '?')) // "GPU-????": not told
        device->uuid[0] = 0;
    if (device->minor < 0 ||
        snprintf(path, sizeof path, "%s/dev/nvidia%d", root, device->minor) >= (int)sizeof path)
        return;
    device->open = !access(path, R_OK | W_OK);
}

static int driver_devices(const char *root, struct device *devices, int most)
{
    char path[PATH_MAX];
    struct dirent *entry;
    int count = 0;
    DIR *folder;

    if (snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus", root) >= (int)sizeof path)
        return 0;
    folder = opendir(path);
    if (!folder)
        return 0;
    while (count < most && (entry = readdir(folder))) {
        struct device device = {.minor = -1, .open = true};
        unsigned domain, bus, dev, func;
        if (sscanf(entry->d_name, "%8x:%2x:%2x.%1x", &domain, &bus, &dev, &func) != 4 ||
            strlen(entry->d_name) >= sizeof device.pci)
            continue;
        memcpy(device.pci, entry->d_name, strlen(entry->d_name));
        information_read(root, &device);
        cpus_read(root, &device);
        devices[count++] = device;
    }
    closedir(folder);
    return count;
}

static int topology_devices(hwloc_topology_t topology, struct device *devices, int most)
{
    int count = 0;

    for (hwloc_obj_t d = NULL; count < most && (d = hwloc_get_next_pcidev(topology, d));) {
        const struct hwloc_pcidev_attr_s *pci = &d->attr->pcidev;
        if (pci->vendor_id != NVIDIA_VENDOR || pci->class_id >> 8 != DISPLAY_CLASS)
            continue;
        devices[count] = (struct device){.minor = -1, .open = true};
        snprintf(devices[count].pci, sizeof devices->pci, "%04x:%02x:%02x.%x", pci->domain,
                 pci->bus, pci->dev, pci->func);
        count++;
    }
    return count;
}

static void uuid_from_topology(hwloc_topology_t topology, struct device *device)
{
    hwloc_obj_t object = device_object(topology, device->pci);

    for (hwloc_obj_t c = object ? object->io_first_child : NULL; c; c = c->next_sibling) {
        const char *uuid = hwloc_obj_get_info_by_name(c, "NVIDIAUUID");
        if (uuid && !device->uuid[0])
            snprintf(device->uuid, sizeof device->uuid, "%s", uuid);
    }
}

static int pci_compare(const void *a, const void *b)
{
    const char *texts[] = {((const struct device *)a)->pci, ((const struct device *)b)->pci};
    unsigned long order[2];

    for (int i = 0; i < 2; i++) {
        unsigned domain = 0, bus = 0, dev = 0, func = 0;
        (void)sscanf(texts[i], "%x:%x:%x.%x", &domain, &bus, &dev, &func);
        order[i] = (unsigned long)domain << 20 | bus << 12 | dev << 4 | func;
    }
    return (order[0] > order[1]) - (order[0] < order[1]);
}

int devices_find(const char *root, hwloc_topology_t topology, struct device *devices, int most)
{
    int count = root ? driver_devices(root, devices, most) : 0;

    if (!count)
        count = topology_devices(topology, devices, most);
    qsort(devices, (size_t)count, sizeof *devices, pci_compare);
    for (int i = 0; i < count; i++)
        if (!devices[i].uuid[0])
            uuid_from_topology(topology, &devices[i]);
    return count;
}
