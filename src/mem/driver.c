// SPDX-License-Identifier: Apache-2.0
// The CUDA driver's virtual memory calls, found at run time so that the program starts without a
// driver.
#include "mem/arena.h"
#include "mem/device.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <errno.h>

static struct {
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*unreserve)(CUdeviceptr, size_t);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                       unsigned long long);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    CUresult (*zero)(CUdeviceptr, unsigned char, size_t);
    CUresult (*finish)(void);
    CUresult (*text)(CUresult, const char **);
} cu;

static CUmemLocation location(void)
{
    int device = 0;

    cudaGetDevice(&device);
    return (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

static int reserve(uint64_t *address, size_t bytes)
{
    CUdeviceptr at;
    CUresult rc = cu.reserve(&at, bytes, ARENA_GRANULE, 0, 0);

    *address = at;
    return (int)rc;
}

static int unreserve(uint64_t address, size_t bytes)
{
    return (int)cu.unreserve(address, bytes);
}

static int create(uint64_t *handle, size_t bytes)
{
    const CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, // peers import buffers
        .location = location(),
    };
    CUmemGenericAllocationHandle made;
    CUresult rc = cu.create(&made, bytes, &prop, 0);

    *handle = made;
    return (int)rc;
}

static int release(uint64_t handle)
{
    return (int)cu.release(handle);
}

static int map(uint64_t address, size_t bytes, uint64_t handle)
{
    const CUmemAccessDesc access = {
        .location = location(),
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUresult rc = cu.map(address, bytes, 0, handle, 0);

    if (rc)
        return (int)rc;
    rc = cu.access(address, bytes, &access, 1);
    if (rc)
        cu.unmap(address, bytes);
    return (int)rc;
}

static int unmap(uint64_t address, size_t bytes)
{
    return (int)cu.unmap(address, bytes);
}

static int zero(uint64_t address, size_t bytes)
{
    return (int)cu.zero(address, 0, bytes);
}

static int finish(void)
{
    return (int)cu.finish();
}

static const char *text(int result)
{
    const char *message = NULL;

    return cu.text((CUresult)result, &message) == CUDA_SUCCESS && message ? message
                                                                          : "unknown CUDA error";
}

static const struct device_driver driver = {
    reserve, unreserve, create, release, map, unmap, zero, finish, text,
};

static int driver_find(struct fl_error *e)
{
    const struct {
        const char *name;
        void **to;
    } calls[] = {
        {"cuMemAddressReserve", (void **)&cu.reserve},
        {"cuMemAddressFree", (void **)&cu.unreserve},
        {"cuMemCreate", (void **)&cu.create},
        {"cuMemRelease", (void **)&cu.release},
        {"cuMemMap", (void **)&cu.map},
        {"cuMemUnmap", (void **)&cu.unmap},
        {"cuMemSetAccess", (void **)&cu.access},
        {"cuMemsetD8", (void **)&cu.zero},
        {"cuCtxSynchronize", (void **)&cu.finish},
        {"cuGetErrorString", (void **)&cu.text},
    };

    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        enum cudaDriverEntryPointQueryResult found;
        cudaError_t rc = cudaGetDriverEntryPointByVersion(calls[i].name, calls[i].to, 12000,
                                                          cudaEnableDefault, &found);
        if (rc != cudaSuccess || found != cudaDriverEntryPointSuccess)
            return error_set(e, -ENODEV,
                             "GPU memory: the driver has no %s: %s; install a driver of "
                             "CUDA 12 or newer",
                             calls[i].name, cudaGetErrorString(rc));
    }
    return 0;
}

int arena_create_device(uint64_t cap_bytes, struct arena **out, struct fl_error *e)
{
    int rc = driver_find(e);

    *out = NULL;
    if (rc == 0 && cudaFree(NULL) != cudaSuccess) // makes the device's context current
        rc = error_set(e, -ENODEV, "GPU memory: no usable GPU: %s",
                       cudaGetErrorString(cudaGetLastError()));
    return rc < 0 ? rc : arena_create(backing_device(&driver), cap_bytes, out, e);
}
