// SPDX-License-Identifier: Apache-2.0
// NVIDIA's management library, loaded by the watch alone.
#include "nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROCESSES_MAX 2048 // of one device and kind
#define KINDS         3

typedef struct device *device_t; // opaque

struct process_info {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

struct limits_set {
    const char *cgroup;
    unsigned long long soft, hard;
};

struct limits_get {
    const char *cgroup;
    unsigned long long soft, hard, used;
};

enum { NOT_SUPPORTED = 3, GPU_IS_LOST = 15 };

typedef int processes_call(device_t device, unsigned *count, struct process_info *infos);

struct nvml {
    void *library;
    int (*init)(void), (*shutdown)(void);
    int (*driver_version)(char *text, unsigned length);
    int (*device_count)(unsigned *count);
    int (*device_by_index)(unsigned index, device_t *device);
    int (*device_uuid)(device_t device, char *text, unsigned length);
    const char *(*error_text)(int code);
    processes_call *processes[KINDS]; // compute, graphics and clients of MPS
    int (*limits_set)(device_t device, struct limits_set *limits);
    int (*limits_get)(device_t device, struct limits_get *limits);

    unsigned devices;
    device_t device[NVML_DEVICES_MAX];
    char uuid[NVML_DEVICES_MAX][NVML_UUID];
    struct process_info infos[PROCESSES_MAX];
};

static int nvml_fail(const struct nvml *nvml, struct fl_error *e, const char *what, int code)
{
    return error_set(e, -EIO, "NVML: %s: %s", what, nvml->error_text(code));
}

static int symbols_load(struct nvml *nvml, struct fl_error *e)
{
    const struct {
        const char *names[2]; // newer first
        void *function;       // a function pointer of struct nvml
        int needed;
    } symbols[] = {
        {{"nvmlInit_v2"}, &nvml->init, 1},
        {{"nvmlShutdown"}, &nvml->shutdown, 1},
        {{"nvmlSystemGetDriverVersion"}, &nvml->driver_version, 1},
        {{"nvmlDeviceGetCount_v2"}, &nvml->device_count, 1},
        {{"nvmlDeviceGetHandleByIndex_v2"}, &nvml->device_by_index, 1},
        {{"nvmlDeviceGetUUID"}, &nvml->device_uuid, 1},
        {{"nvmlErrorString"}, &nvml->error_text, 1},
        {{"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"},
         &nvml->processes[0],
         1},
        {{"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"},
         &nvml->processes[1],
         1},
        {{"nvmlDeviceGetMPSComputeRunningProcesses_v3",
          "nvmlDeviceGetMPSComputeRunningProcesses_v2"},
         &nvml->processes[2],
         0},
        {{"nvmlDeviceSetMemoryLimits_v1"}, &nvml->limits_set, 0},
        {{"nvmlDeviceGetMemoryLimits_v1"}, &nvml->limits_get, 0},
    };

    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *found = dlsym(nvml->library, symbols[i].names[0]);
        if (!found && symbols[i].names[1])
            found = dlsym(nvml->library, symbols[i].names[1]);
        if (!found && symbols[i].needed)
            return error_set(e, -ENOSYS, "NVML: the library has no %s", symbols[i].names[0]);
        memcpy(symbols[i].function, &found, sizeof found);
    }
    return 0;
}

// The drivers 535.43 to 535.86 answer version 3 of the call with a longer structure.
static int driver_check(struct nvml *nvml, struct fl_error *e)
{
    unsigned major = 0, minor = 0;
    char text[96] = "";
    int code = nvml->driver_version(text, sizeof text - 1);

    if (code)
        return nvml_fail(nvml, e, "the driver's version", code);
    if (sscanf(text, "%u.%u", &major, &minor) == 2 && major == 535 && minor >= 43 && minor < 98)
        return error_set(
            e, -ENOTSUP,
            "NVML: driver %s lays out its processes as no other does; install a newer one", text);
    return 0;
}

static int devices_find(struct nvml *nvml, struct fl_error *e)
{
    int code = nvml->device_count(&nvml->devices);

    if (code)
        return nvml_fail(nvml, e, "the number of GPUs", code);
    if (nvml->devices > NVML_DEVICES_MAX)
        return error_set(e, -E2BIG, "NVML: %u GPUs, at most %d are watched", nvml->devices,
                         NVML_DEVICES_MAX);
    for (unsigned i = 0; i < nvml->devices && !code; i++) {
        code = nvml->device_by_index(i, &nvml->device[i]);
        if (code == GPU_IS_LOST) {
            nvml->device[i] = NULL;
            code = 0;
        } else if (!code)
            code = nvml->device_uuid(nvml->device[i], nvml->uuid[i], NVML_UUID - 1);
    }
    return code ? nvml_fail(nvml, e, "a GPU", code) : 0;
}

int nvml_open(int library, struct nvml **out, struct fl_error *e)
{
    struct nvml *nvml = calloc(1, sizeof *nvml);
    char path[32] = "libnvidia-ml.so.1";
    int code;

    if (!nvml)
        return error_set(e, -ENOMEM, "NVML: no memory");
    if (library >= 0)
        snprintf(path, sizeof path, "/proc/self/fd/%d", library);
    nvml->library = dlopen(path, RTLD_NOW);
    if (!nvml->library) {
        code = error_set(e, -ENOENT, "NVML: %s", dlerror());
        goto out;
    }
    code = symbols_load(nvml, e);
    if (code)
        goto out;
    code = nvml->init();
    if (code) {
        code = nvml_fail(nvml, e, "cannot start", code);
        goto out;
    }
    code = driver_check(nvml, e);
    if (!code)
        code = devices_find(nvml, e);
    if (!code) {
        *out = nvml;
        return 0;
    }
    nvml->shutdown();
out:
    if (nvml->library)
        dlclose(nvml->library);
    free(nvml);
    return code;
}

void nvml_close(struct nvml *nvml)
{
    if (!nvml)
        return;
    nvml->shutdown();
    dlclose(nvml->library);
    free(nvml);
}

// A process that computes and draws stands in the lists of both kinds: once counts.
static int uses_add(struct nvml_use *uses, size_t room, size_t *count, size_t first,
                    const struct nvml_use *use)
{
    for (size_t i = first; i < *count; i++)
        if (uses[i].pid == use->pid) {
            if (use->bytes > uses[i].bytes)
                uses[i].bytes = use->bytes;
            return 0;
        }
    if (*count == room)
        return -E2BIG;
    uses[(*count)++] = *use;
    return 0;
}

// Sums a list's entries of one process, which has one for each MIG instance, into the first.
static void infos_unite(struct process_info *infos, unsigned *count)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < *count; i++) {
        unsigned j = 0;
        while (j < kept && infos[j].pid != infos[i].pid)
            j++;
        if (j == kept)
            infos[kept++] = infos[i];
        else if (infos[j].bytes > NVML_UNKNOWN - infos[i].bytes)
            infos[j].bytes = NVML_UNKNOWN;
        else
            infos[j].bytes += infos[i].bytes;
    }
    *count = kept;
}

int nvml_sample(struct nvml *nvml, struct nvml_use *uses, size_t room, size_t *count,
                struct fl_error *e)
{
    *count = 0;
    for (unsigned d = 0; d < nvml->devices; d++) {
        size_t first = *count;
        for (int kind = 0; kind < KINDS && nvml->device[d] && nvml->processes[kind]; kind++) {
            unsigned found = PROCESSES_MAX;
            int code = nvml->processes[kind](nvml->device[d], &found, nvml->infos);
            if (code == GPU_IS_LOST || (kind && code == NOT_SUPPORTED))
                continue; // a device without graphics or MPS
            if (code)
                return nvml_fail(nvml, e, nvml->uuid[d], code);
            if (found > PROCESSES_MAX)
                return error_set(e, -E2BIG, "NVML: %s: %u processes", nvml->uuid[d], found);
            infos_unite(nvml->infos, &found);
            for (unsigned i = 0; i < found; i++) {
                struct nvml_use use = {d, (pid_t)nvml->infos[i].pid, nvml->infos[i].bytes};
                if (uses_add(uses, room, count, first, &use))
                    return error_set(e, -E2BIG, "NVML: more than %zu processes", room);
            }
        }
    }
    return 0;
}

const char *nvml_uuid(const struct nvml *nvml, uint32_t device)
{
    return device < nvml->devices ? nvml->uuid[device] : "";
}

int nvml_limit(struct nvml *nvml, const char *cgroup, uint64_t bytes, struct fl_error *e)
{
    if (!nvml->limits_set || !nvml->limits_get)
        return error_set(e, -ENOSYS, "NVML: the library knows no limits of cgroups");
    for (unsigned d = 0; d < nvml->devices; d++) {
        // No share of the device is set aside for the cgroup, so none stays behind when it goes.
        struct limits_set set = {.cgroup = cgroup, .hard = bytes};
        struct limits_get get = {.cgroup = cgroup};
        int code = nvml->device[d] ? nvml->limits_set(nvml->device[d], &set) : GPU_IS_LOST;
        if (code == GPU_IS_LOST)
            continue;
        if (!code)
            code = nvml->limits_get(nvml->device[d], &get);
        if (code)
            return nvml_fail(nvml, e, cgroup, code);
        if (get.hard != bytes)
            return error_set(e, -EIO, "NVML: %s: the limit of %llu bytes was set, %llu is there",
                             cgroup, (unsigned long long)bytes, get.hard);
    }
    return 0;
}
