// SPDX-License-Identifier: Apache-2.0
// A libnvidia-ml.so.1 whose GPUs and processes stand in the file "nvml.values" beside it, read anew
// for every call, a line each:
//   driver VERSION         580.65.06 without it
//   gpu UUID               the next GPU
//   use GPU PID BYTES      a computing process, BYTES "?" for what the driver does not tell
//   draw GPU PID BYTES     the same of graphics
//   share GPU PID BYTES    the same of MPS, unless FL_NVML_OLD
//   fail FUNCTION CODE     that function answers CODE
// Limits that are set are lines of "nvml.limits" there: UUID, cgroup, soft and hard limit.
// FL_NVML_OLD: as before version 3 of the processes' calls and before limits.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))
#ifdef FL_NVML_OLD
#define COMPUTE  nvmlDeviceGetComputeRunningProcesses_v2
#define GRAPHICS nvmlDeviceGetGraphicsRunningProcesses_v2
#else
#define COMPUTE  nvmlDeviceGetComputeRunningProcesses_v3
#define GRAPHICS nvmlDeviceGetGraphicsRunningProcesses_v3
#endif

typedef struct gpu *nvmlDevice_t; // its index and one

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

typedef struct {
    const char *nameSpace;
    unsigned long long softLimit, hardLimit;
} nvmlSetMemoryLimits_v1_t;

typedef struct {
    const char *nameSpace;
    unsigned long long softLimit, hardLimit, currentUsed;
} nvmlGetMemoryLimits_v1_t;

SHOWN int nvmlInit_v2(void);
SHOWN int nvmlShutdown(void);
SHOWN int nvmlSystemGetDriverVersion(char *text, unsigned length);
SHOWN int nvmlDeviceGetCount_v2(unsigned *count);
SHOWN int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device);
SHOWN int nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned length);
SHOWN const char *nvmlErrorString(int code);
SHOWN int COMPUTE(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos);
SHOWN int GRAPHICS(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos);
SHOWN int nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                     nvmlProcessInfo_t *infos);
SHOWN int nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits);
SHOWN int nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits);

static FILE *beside(const char *name, const char *mode)
{
    char path[4096] = "", full[4352];
    Dl_info info;
    char *slash;

    if (!dladdr((void *)(size_t)nvmlInit_v2, &info))
        return NULL;
    if (readlink(info.dli_fname, path, sizeof path - 1) < 0) // loaded as /proc/self/fd/N
        snprintf(path, sizeof path, "%s", info.dli_fname);
    slash = strrchr(path, '/');
    if (!slash)
        return NULL;
    snprintf(full, sizeof full, "%.*s/%s", (int)(slash - path), path, name);
    return fopen(full, mode);
}

// The words behind key in the wanted line (from 0) of those that begin with it. 0: there is none.
static int value(const char *key, int wanted, char text[256])
{
    char line[512];
    size_t length = strlen(key);
    FILE *file = beside("nvml.values", "r");
    int found = 0;

    while (file && !found && fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && line[length] == ' ' && !wanted--) {
            snprintf(text, 256, "%.255s", line + length + 1);
            text[strcspn(text, "\n")] = 0;
            found = 1;
        }
    if (file)
        fclose(file);
    return found;
}

static int fails(const char *function)
{
    char key[128], text[256];

    snprintf(key, sizeof key, "fail %s", function);
    return value(key, 0, text) ? atoi(text) : 0;
}

static unsigned index_of(nvmlDevice_t device)
{
    return (unsigned)((size_t)device - 1);
}

int nvmlInit_v2(void)
{
    return fails(__func__);
}

int nvmlShutdown(void)
{
    return 0;
}

int nvmlSystemGetDriverVersion(char *text, unsigned length)
{
    char version[256] = "580.65.06";

    value("driver", 0, version);
    snprintf(text, length, "%s", version);
    return fails(__func__);
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    char text[256];

    for (*count = 0; value("gpu", (int)*count, text);)
        ++*count;
    return fails(__func__);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    *device = (nvmlDevice_t)((size_t)index + 1);
    return fails(__func__);
}

int nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned length)
{
    char uuid[256] = "";

    value("gpu", (int)index_of(device), uuid);
    snprintf(text, length, "%s", uuid);
    return fails(__func__);
}

const char *nvmlErrorString(int code)
{
    static char text[32];

    snprintf(text, sizeof text, "error %d", code);
    return text;
}

static int processes(const char *key, nvmlDevice_t device, unsigned *count,
                     nvmlProcessInfo_t *infos)
{
    char text[256], bytes[64];
    unsigned gpu, pid, found = 0, room = *count;

    for (int i = 0; value(key, i, text); i++) {
        if (sscanf(text, "%u %u %63s", &gpu, &pid, bytes) != 3 || gpu != index_of(device))
            continue;
        if (found < room)
            infos[found] = (nvmlProcessInfo_t){
                pid, *bytes == '?' ? ~0ULL : strtoull(bytes, NULL, 10), ~0U, ~0U};
        found++;
    }
    *count = found;
    return found > room ? 7 : 0;
}

int COMPUTE(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)
{
    int code = fails("compute");

    return code ? code : processes("use", device, count, infos);
}

int GRAPHICS(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)
{
    int code = fails("graphics");

    return code ? code : processes("draw", device, count, infos);
}

#ifndef FL_NVML_OLD
int nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                               nvmlProcessInfo_t *infos)
{
    int code = fails("mps");

    return code ? code : processes("share", device, count, infos);
}

int nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
    char uuid[256] = "";
    FILE *file;
    int code = fails(__func__);

    if (code)
        return code;
    value("gpu", (int)index_of(device), uuid);
    file = beside("nvml.limits", "a");
    if (!file)
        return 999;
    fprintf(file, "%s %s %llu %llu\n", uuid, limits->nameSpace, limits->softLimit,
            limits->hardLimit);
    return fclose(file);
}

int nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
    char line[2048], uuid[256] = "", gpu[128], cgroup[1024];
    FILE *file = beside("nvml.limits", "r");
    int code = fails(__func__);

    value("gpu", (int)index_of(device), uuid);
    limits->hardLimit = ~0ULL;
    while (file && fgets(line, sizeof line, file)) {
        unsigned long long soft, hard;
        if (sscanf(line, "%127s %1023s %llu %llu", gpu, cgroup, &soft, &hard) == 4 &&
            !strcmp(gpu, uuid) && !strcmp(cgroup, limits->nameSpace)) {
            limits->softLimit = soft;
            limits->hardLimit = hard;
        }
    }
    if (file)
        fclose(file);
    return code;
}
#endif
