// SPDX-License-Identifier: Apache-2.0
// A CPU and a CUDA backend of one shape for a test of operations on the device: memory, random
// values, comparison, timing. Included by a test's only source file.
#ifndef FL_TESTS_GPU_FIXTURE_H
#define FL_TESTS_GPU_FIXTURE_H

#include "base/floats.h"
#include "base/memory.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define BUFFERS_MOST  256

static int passed, failed;

// A test's buffers are freed together by gpu_close.
struct gpu {
    struct model model;
    struct arena *cpu_arena;
    struct arena *arena;
    struct ops *cpu, *ops;
    struct cuda *cuda; // of ops
    void *buffers[BUFFERS_MOST];
    int count;
    struct fl_error e;
};

__attribute__((format(printf, 2, 3))) static inline void report(bool ok, const char *format, ...)
{
    va_list arguments;

    printf("%sok %d - ", ok ? "" : "not ", passed + failed + 1);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    fflush(stdout);
    ok ? passed++ : failed++;
}

static inline void must(int rc, const char *what, const char *text)
{
    if (rc == 0)
        return;
    printf("Bail out! %s: %s\n", what, text);
    exit(1);
}

#define RUNTIME(call)   must((call), #call, cudaGetErrorString(cudaPeekAtLastError()))
#define OK(gpu, call)   must((call), #call, (gpu)->e.text)
#define ALLOC(count, p) ((p) = memory_zeroed((count) > 0 ? (count) : 1, sizeof *(p)))

static inline void gpu_open(struct gpu *g, const struct model *model)
{
    *g = (struct gpu){.model = *model};
    OK(g, arena_create_host(0, &g->cpu_arena, &g->e));
    OK(g, ops_cpu_create(&g->model, NUMERICS_FP8, g->cpu_arena, &g->cpu, &g->e));
    OK(g, arena_create_device(0, &g->arena, &g->e));
    OK(g, ops_cuda_create(&g->model, g->arena, &g->ops, &g->e));
    g->cuda = cuda_of(g->ops);
}

// Every operation has released its scratch.
static inline void gpu_close(struct gpu *g)
{
    struct arena_stats stats;

    RUNTIME(cudaDeviceSynchronize());
    arena_stats_get(g->arena, &stats);
    if (stats.used_total)
        report(false, "scratch is released");
    while (g->count)
        RUNTIME(cudaFree(g->buffers[--g->count]));
    ops_destroy(g->ops);
    arena_destroy(g->arena);
    ops_destroy(g->cpu);
    arena_destroy(g->cpu_arena);
}

// Poisoned with NaN.
static inline void *gpu_alloc(struct gpu *g, size_t bytes)
{
    void *p;

    if (g->count == BUFFERS_MOST)
        must(1, "gpu_alloc", "too many buffers");
    RUNTIME(cudaMalloc(&p, bytes ? bytes : 1));
    RUNTIME(cudaMemset(p, 0xff, bytes ? bytes : 1));
    RUNTIME(cudaDeviceSynchronize());
    return g->buffers[g->count++] = p;
}

static inline void *gpu_copy(struct gpu *g, const void *host, size_t bytes)
{
    void *p = gpu_alloc(g, bytes);

    RUNTIME(cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice));
    return p;
}

static inline void gpu_read(struct gpu *g, void *host, const void *device, size_t bytes)
{
    RUNTIME(cudaStreamSynchronize(g->cuda->stream));
    RUNTIME(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}

static uint64_t random_state = 0x9e3779b97f4a7c15;

static inline uint32_t random_u32(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) ^ (uint32_t)(random_state >> 13);
}

static inline double random_unit(void)
{
    return random_u32() * 0x1p-32;
}

// Sum of uniform numbers: near normal, deviation 1.
static inline float random_normal(void)
{
    double sum = 0;

    for (int i = 0; i < 6; i++)
        sum += random_unit();
    return (float)((sum - 3) * M_SQRT2);
}

static inline float *random_floats(size_t count, float deviation)
{
    float *x;

    ALLOC(count, x);
    for (size_t i = 0; i < count; i++)
        x[i] = deviation * random_normal();
    return x;
}

// Stream rows of values that bf16 holds; NaN between cols and the row's end on the device.
static inline float *random_rows(struct gpu *g, int rows, int cols, float deviation, void **device)
{
    size_t pitch = stream_row_bytes(cols) / 2;
    float *x = random_floats((size_t)rows * (size_t)cols, deviation);
    uint16_t *packed;

    ALLOC((size_t)rows * pitch, packed);
    memset(packed, 0xff, (size_t)rows * pitch * 2);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++) {
            size_t at = (size_t)r * (size_t)cols + (size_t)c;
            packed[(size_t)r * pitch + (size_t)c] = bf16_from_float(x[at]);
            x[at] = bf16_round(x[at]);
        }
    *device = gpu_copy(g, packed, (size_t)rows * pitch * 2);
    free(packed);
    return x;
}

static inline float *read_rows(struct gpu *g, const void *device, int rows, int cols)
{
    size_t pitch = stream_row_bytes(cols) / 2;
    uint16_t *packed;
    float *x;

    ALLOC((size_t)rows * pitch, packed);
    ALLOC((size_t)rows * (size_t)cols, x);
    gpu_read(g, packed, device, (size_t)rows * pitch * 2);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++)
            x[(size_t)r * (size_t)cols + (size_t)c] =
                bf16_to_float(packed[(size_t)r * pitch + (size_t)c]);
    free(packed);
    return x;
}

// Relative Frobenius error; NaN where ours has one.
static inline double frobenius(const float *ours, const double *expected, size_t count)
{
    double difference = 0, norm = 0;

    for (size_t i = 0; i < count; i++) {
        difference += ((double)ours[i] - expected[i]) * ((double)ours[i] - expected[i]);
        norm += expected[i] * expected[i];
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

// Mean microseconds of call over sets of inputs, which together should exceed the L2 cache.
static inline double gpu_time(struct gpu *g, int sets,
                              void (*call)(struct gpu *g, void *context, int set), void *context)
{
    int runs = sets < 8 ? 64 / sets * sets : 4 * sets;
    cudaEvent_t start, stop;
    float ms;

    RUNTIME(cudaEventCreate(&start));
    RUNTIME(cudaEventCreate(&stop));
    for (int i = 0; i < sets; i++)
        call(g, context, i);
    RUNTIME(cudaEventRecord(start, g->cuda->stream));
    for (int i = 0; i < runs; i++)
        call(g, context, i % sets);
    RUNTIME(cudaEventRecord(stop, g->cuda->stream));
    RUNTIME(cudaEventSynchronize(stop));
    RUNTIME(cudaEventElapsedTime(&ms, start, stop));
    RUNTIME(cudaEventDestroy(start));
    RUNTIME(cudaEventDestroy(stop));
    return (double)ms * 1000 / runs;
}

#endif
