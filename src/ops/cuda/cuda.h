// SPDX-License-Identifier: Apache-2.0
// Inside the CUDA backend: its state, its rows, and the functions the operations are made of.
//
// Every operation queues its kernels on one stream and returns; only what is marked "host" in ops.h
// is waited for. A real is fp32; kernels/rows.h tells how stream and quantised rows lie.
#ifndef FL_OPS_CUDA_CUDA_H
#define FL_OPS_CUDA_CUDA_H

#include "ops/cuda/scratch.h"
#include "ops/ops.h"
#include "rows.h"

#include <cuda_runtime_api.h>

struct cublasLtContext;

struct cuda {
    struct ops table;    // first: a struct ops * is a struct cuda *
    struct arena *arena; // device memory
    cudaStream_t stream;
    struct cublasLtContext *blas;
    int device;     // its number; other threads than the creator's have to choose it
    int processors; // multiprocessors
    char uuid[48];
};

static inline struct cuda *cuda_of(struct ops *ops)
{
    return (struct cuda *)ops;
}

// bytes of scratch on the device; freed by arena_release.
int cuda_push(struct cuda *cuda, size_t bytes, void **out, struct fl_error *e);
// An operation's scratch likewise.
int cuda_push_all(struct cuda *cuda, struct cuda_scratch scratch, void *out[CUDA_SCRATCHES],
                  struct fl_error *e);

// 0, or -EIO with e naming the call, file and line. Launch errors included: kernels' launchers
// return cudaGetLastError().
int cuda_check(int cuda_error, const char *call, const char *file, int line, struct fl_error *e);
#define CUDA_CHECK(call, e) cuda_check((int)(call), #call, __FILE__, __LINE__, e)

#endif
