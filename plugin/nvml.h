// SPDX-License-Identifier: Apache-2.0
// NVIDIA's management library, loaded by the watch alone: what processes hold on which device.
//
// The declarations here are of the library's documented interface, https://docs.nvidia.com/deploy/
// nvml-api: processes with version 3 of the call or version 2, whose layouts agree; memory limits
// of cgroups with nvmlDeviceSetMemoryLimits_v1 (CUDA 13.4's library and newer, cgroup v2).
#ifndef FL_PLUGIN_NVML_H
#define FL_PLUGIN_NVML_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define NVML_DEVICES_MAX 64
#define NVML_UUID        96
#define NVML_UNKNOWN     UINT64_MAX // bytes that the driver does not tell

struct nvml;

// What a process holds on a device, all its contexts together.
struct nvml_use {
    uint32_t device;
    pid_t pid;
    uint64_t bytes;
};

// library: a descriptor of libnvidia-ml.so.1's own file, -1 for where the system has it. Errors: no
// library, no driver, a driver whose layout of processes is neither version's.
int nvml_open(int library, struct nvml **out, struct fl_error *e);
void nvml_close(struct nvml *nvml); // NULL-safe

// All processes on all devices of the node. A device that fell off the bus holds none.
int nvml_sample(struct nvml *nvml, struct nvml_use *uses, size_t room, size_t *count,
                struct fl_error *e);
const char *nvml_uuid(const struct nvml *nvml, uint32_t device);

// The driver refuses memory beyond bytes, on every device, to the processes of a cgroup (an
// absolute folder of cgroup v2), and says so when asked. -ENOSYS: the library is older than that.
int nvml_limit(struct nvml *nvml, const char *cgroup, uint64_t bytes, struct fl_error *e);

#endif
