// SPDX-License-Identifier: Apache-2.0
// As much of the CUDA runtime as src/ops/cuda calls, of a GPU that does nothing: for tests of what
// the backend allocates, on machines without the toolkit.
#ifndef FL_TESTS_CUDA_STUB_RUNTIME_H
#define FL_TESTS_CUDA_STUB_RUNTIME_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int cudaError_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct {
    char bytes[16];
} cudaUUID_t;
struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    int major, minor, multiProcessorCount;
};
enum { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 };
enum { cudaStreamNonBlocking = 1 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };

static inline const char *cudaGetErrorString(cudaError_t error)
{
    (void)error;
    return "error";
}

static inline cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

static inline cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

static inline cudaError_t cudaSetDevice(int device)
{
    (void)device;
    return cudaSuccess;
}

static inline cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

static inline cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    (void)device;
    *p = (struct cudaDeviceProp){.name = "stub", .major = 9, .multiProcessorCount = 132};
    return cudaSuccess;
}

static inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    (void)flags;
    *stream = NULL;
    return cudaSuccess;
}

static inline cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    (void)stream;
    return cudaSuccess;
}

static inline cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    return cudaSuccess;
}

static inline cudaError_t cudaMallocHost(void **host, size_t bytes)
{
    *host = malloc(bytes);
    return *host ? cudaSuccess : cudaErrorMemoryAllocation;
}

static inline cudaError_t cudaFreeHost(void *host)
{
    free(host);
    return cudaSuccess;
}

// What is read from the device is zero.
static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                                          enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)from, (void)stream;
    if (kind == cudaMemcpyDeviceToHost)
        memset(to, 0, bytes);
    return cudaSuccess;
}

static inline cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    (void)to, (void)value, (void)bytes, (void)stream;
    return cudaSuccess;
}

#endif
