// SPDX-License-Identifier: Apache-2.0
// The GPU backend's table, its device, stream and memory operations.
#include "ops/cuda/cuda.h"

#include "base/floats.h"
#include "base/memory.h"
#include "ops/cuda/flash.h"
#include "ops/cuda/products.h"
#include "ops/cuda/routing.h"
#include "ops/cuda/rowwise.h"
#include "ops/cuda/training.h"
#include "ops/cuda/weights.h"

#include <cublasLt.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

int cuda_check(int cuda_error, const char *call, const char *file, int line, struct fl_error *e)
{
    if (cuda_error == cudaSuccess)
        return 0;
    return error_set(e, cuda_error == cudaErrorMemoryAllocation ? -ENOMEM : -EIO,
                     "GPU: %s: %s (%s:%d)", call, cudaGetErrorString((cudaError_t)cuda_error), file,
                     line);
}

int cuda_push(struct cuda *cuda, size_t bytes, void **out, struct fl_error *e)
{
    return arena_push(cuda->arena, MEMORY_WORKSPACE, bytes, out, e);
}

int cuda_push_all(struct cuda *cuda, struct cuda_scratch scratch, void *out[CUDA_SCRATCHES],
                  struct fl_error *e)
{
    int rc = 0;

    for (int i = 0; i < scratch.count && rc == 0; i++)
        rc = cuda_push(cuda, scratch.bytes[i], &out[i], e);
    return rc;
}

int ops_cuda_devices(void)
{
    int count = 0;

    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

int ops_cuda_use(int device, struct fl_error *e)
{
    int count = ops_cuda_devices();

    if (device < 0 || device >= count)
        return error_set(e, -ENODEV,
                         "GPU %d: only %d are visible: request one for each task of a node", device,
                         count);
    return CUDA_CHECK(cudaSetDevice(device), e);
}

static size_t cuda_row_bytes(const struct ops *ops, enum ops_row kind, int cols)
{
    (void)ops;
    return kind == ROW_STREAM ? stream_row_bytes(cols) : quantised_row_bytes(cols);
}

static int cuda_staging(struct ops *ops, size_t bytes, void **host, struct fl_error *e)
{
    int rc = CUDA_CHECK(cudaSetDevice(cuda_of(ops)->device), e);

    *host = NULL;
    return rc < 0 ? rc : CUDA_CHECK(cudaMallocHost(host, bytes ? bytes : 1), e);
}

static void cuda_staging_free(struct ops *ops, void *host)
{
    (void)ops;
    cudaFreeHost(host);
}

// The host's buffer may change after the return, so the copy is waited for.
static int cuda_upload(struct ops *ops, void *device, const void *host, size_t bytes,
                       struct fl_error *e)
{
    struct cuda *cuda = cuda_of(ops);
    int rc;

    if (bytes == 0)
        return 0;
    rc = CUDA_CHECK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, cuda->stream), e);
    return rc < 0 ? rc : CUDA_CHECK(cudaStreamSynchronize(cuda->stream), e);
}

static int cuda_download(struct ops *ops, void *host, const void *device, size_t bytes,
                         struct fl_error *e)
{
    struct cuda *cuda = cuda_of(ops);
    int rc;

    if (bytes == 0)
        return 0;
    rc = CUDA_CHECK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, cuda->stream), e);
    return rc < 0 ? rc : CUDA_CHECK(cudaStreamSynchronize(cuda->stream), e);
}

static int cuda_zero(struct ops *ops, void *device, size_t bytes, struct fl_error *e)
{
    return bytes ? CUDA_CHECK(cudaMemsetAsync(device, 0, bytes, cuda_of(ops)->stream), e) : 0;
}

static int cuda_stream_read(struct ops *ops, real *host, const void *x, int rows, int cols,
                            struct fl_error *e)
{
    size_t pitch = stream_row_bytes(cols) / sizeof(uint16_t);
    uint16_t *raw = memory_zeroed((size_t)rows * pitch, sizeof *raw);
    int rc = cuda_download(ops, raw, x, (size_t)rows * pitch * sizeof *raw, e);

    if (rc == 0)
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < cols; c++)
                host[(size_t)r * (size_t)cols + (size_t)c] =
                    bf16_to_float(raw[(size_t)r * pitch + (size_t)c]);
    free(raw);
    return rc;
}

static void cuda_destroy(struct ops *ops)
{
    struct cuda *cuda = cuda_of(ops);

    if (cuda->stream) {
        cudaStreamSynchronize(cuda->stream);
        cudaStreamDestroy(cuda->stream);
    }
    if (cuda->blas)
        cublasLtDestroy(cuda->blas);
    free(cuda);
}

static const struct ops cuda_table = {
    .destroy = cuda_destroy,
    .row_bytes = cuda_row_bytes,
    .staging = cuda_staging,
    .staging_free = cuda_staging_free,
    .upload = cuda_upload,
    .download = cuda_download,
    .zero = cuda_zero,
    .stream_read = cuda_stream_read,
    .make_codes = cuda_make_codes,
    .make_values = cuda_make_values,
    .embed = cuda_embed,
    .norm_forward = cuda_norm_forward,
    .norm_backward = cuda_norm_backward,
    .quantise = cuda_quantise,
    .linear_forward = cuda_linear_forward,
    .linear_backward = cuda_linear_backward,
    .rope_table = cuda_rope_table,
    .rope_forward = cuda_rope_forward,
    .rope_backward = cuda_rope_backward,
    .attention_forward = cuda_attention_forward,
    .attention_backward = cuda_attention_backward,
    .router_forward = cuda_router_forward,
    .router_backward = cuda_router_backward,
    .dispatch_plan = cuda_dispatch_plan,
    .regroup_plan = cuda_regroup_plan,
    .rows_gather = cuda_rows_gather,
    .rows_scatter = cuda_rows_scatter,
    .combine = cuda_combine,
    .fc1_forward = cuda_fc1_forward,
    .fc2_forward = cuda_fc2_forward,
    .fc2_backward = cuda_fc2_backward,
    .fc1_backward = cuda_fc1_backward,
    .head_forward = cuda_head_forward,
    .cross_entropy = cuda_cross_entropy,
    .head_backward = cuda_head_backward,
    .sum_squares = cuda_sum_squares,
    .scale = cuda_scale,
    .adamw = cuda_adamw,
};

// "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
static void uuid_write(const cudaUUID_t *uuid, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "GPU");

    for (int i = 0; i < 16 && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%02x",
                                 i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                                 (unsigned char)uuid->bytes[i]);
}

int ops_cuda_create(const struct model *model, struct arena *arena, struct ops **out,
                    struct fl_error *e)
{
    struct cuda *cuda = memory_zeroed(1, sizeof *cuda);
    struct cudaDeviceProp device;
    int number, rc;

    *out = NULL;
    cuda->table = cuda_table;
    cuda->table.name = cuda->uuid;
    cuda->table.model = model;
    cuda->table.numerics = NUMERICS_FP8;
    cuda->arena = arena;
    if ((rc = CUDA_CHECK(cudaGetDevice(&number), e)) < 0 ||
        (rc = CUDA_CHECK(cudaGetDeviceProperties(&device, number), e)) < 0)
        goto out;
    if (device.major != 9) {
        rc = error_set(e, -ENOTSUP,
                       "GPU %d is a %s of compute capability %d.%d: this build runs on Hopper "
                       "(9.0) only",
                       number, device.name, device.major, device.minor);
        goto out;
    }
    uuid_write(&device.uuid, cuda->uuid, sizeof cuda->uuid);
    cuda->device = number;
    cuda->processors = device.multiProcessorCount;
    if ((rc = CUDA_CHECK(cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking), e)) < 0)
        goto out;
    if (cublasLtCreate(&cuda->blas) != CUBLAS_STATUS_SUCCESS)
        rc = error_set(e, -EIO, "GPU: cuBLASLt cannot be initialised");
out:
    if (rc < 0)
        cuda_destroy(&cuda->table);
    else
        *out = &cuda->table;
    return rc;
}
