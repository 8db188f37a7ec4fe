// SPDX-License-Identifier: Apache-2.0
// Random matrices, rows and adapters for both backends.
#include "products_fixture.h"

#include "base/floats.h"
#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ops *cpu, *gpu;
struct arena *host_arena, *device_arena;

static uint64_t state = 1;

uint64_t random_next(void)
{
    uint64_t x = state += 0x9e3779b97f4a7c15u;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static float normal(void)
{
    uint64_t r = random_next();
    float u = ((float)(uint32_t)r + 1) * 0x1p-32f, v = (float)(r >> 32) * 0x1p-32f;

    return sqrtf(-2 * logf(u)) * cosf(6.2831853f * v);
}

void require(int rc, const struct fl_error *e)
{
    if (rc < 0) {
        printf("Bail out! %s\n", e->text);
        exit(1);
    }
}

void require_cuda(int rc)
{
    struct fl_error e;

    require(CUDA_CHECK(rc, &e), &e);
}

void *device_poisoned(size_t bytes)
{
    void *p;

    require_cuda((int)cudaMalloc(&p, bytes + 16));
    require_cuda((int)cudaMemset(p, 0xff, bytes + 16));
    return p;
}

void *device_copy(const void *host, size_t bytes)
{
    void *p = device_poisoned(bytes);

    require_cuda((int)cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice));
    return p;
}

void *host_copy(const void *device, size_t bytes)
{
    void *p = memory_zeroed(bytes + 1, 1);

    require_cuda((int)cudaDeviceSynchronize());
    require_cuda((int)cudaMemcpy(p, device, bytes, cudaMemcpyDeviceToHost));
    return p;
}

float *floats_random(size_t count, float size)
{
    float *x = memory_zeroed(count + 1, sizeof *x);

    // Large arrays repeat after a prime number of values.
    for (size_t i = 0; i < count; i++)
        x[i] = i < 1048573 ? size * normal() : x[i - 1048573];
    return x;
}

struct rows stream_make(int rows, int cols, float size)
{
    size_t count = (size_t)rows * (size_t)cols;
    struct rows r = {rows, cols, floats_random(count, size), NULL};
    uint16_t *raw = memory_zeroed(count + 1, sizeof *raw);

    for (size_t i = 0; i < count; i++) {
        raw[i] = bf16_from_float(r.host[i]);
        r.host[i] = bf16_to_float(raw[i]);
    }
    r.device = device_copy(raw, count * sizeof *raw);
    free(raw);
    return r;
}

struct rows quantised_make(int rows, int cols, float size)
{
    size_t pitch = quantised_row_bytes(cols);
    struct rows r = {rows, cols, floats_random((size_t)rows * (size_t)cols, size), NULL};
    uint8_t *raw = memory_zeroed((size_t)rows * pitch + 1, 1);

    for (int i = 0; i < rows; i++)
        for (int c = 0; c < cols; c += 128) {
            float *x = r.host + (size_t)i * (size_t)cols + c, amax = 0, scale;
            int n = cols - c < 128 ? cols - c : 128;
            uint8_t *to = raw + (size_t)i * pitch;
            for (int k = 0; k < n; k++)
                amax = fmaxf(amax, fabsf(x[k]));
            scale = amax / E4M3_MAX;
            memcpy(to + quantised_scale_offset(cols) + c / 128 * 4, &scale, sizeof scale);
            for (int k = 0; k < n; k++) {
                to[c + k] = e4m3_from_float(x[k] / scale);
                x[k] = e4m3_values[to[c + k]] * scale;
            }
        }
    r.device = device_copy(raw, (size_t)rows * pitch);
    free(raw);
    return r;
}

struct rows output_make(int rows, int cols, size_t device_row_bytes)
{
    return (struct rows){rows, cols, memory_zeroed((size_t)rows * (size_t)cols + 1, sizeof(float)),
                         device_poisoned((size_t)rows * device_row_bytes)};
}

void rows_free(struct rows *r)
{
    free(r->host);
    cudaFree(r->device);
}

float *rows_read(const struct rows *r, bool quantised)
{
    size_t pitch = quantised ? quantised_row_bytes(r->cols) : stream_row_bytes(r->cols);
    uint8_t *raw = host_copy(r->device, (size_t)r->rows * pitch);
    float *x = memory_zeroed((size_t)r->rows * (size_t)r->cols + 1, sizeof *x);

    for (int i = 0; i < r->rows; i++)
        for (int c = 0; c < r->cols; c++) {
            const uint8_t *row = raw + (size_t)i * pitch;
            float *to = &x[(size_t)i * (size_t)r->cols + (size_t)c];
            if (quantised) {
                float scale;
                memcpy(&scale, row + quantised_scale_offset(r->cols) + c / 128 * 4, sizeof scale);
                *to = e4m3_values[row[c]] * scale;
            } else {
                *to = bf16_to_float(((const uint16_t *)row)[c]);
            }
        }
    free(raw);
    return x;
}

struct weights weights_make(int count, int parts, const int *part_rows, int cols)
{
    struct fp8_matrix m = {.count = count, .cols = cols, .parts = parts};
    struct weights w;
    size_t bytes, scales;
    uint8_t table[4096];

    for (int i = 0; i < 4096; i++)
        table[i] = e4m3_from_float(60 * normal());
    for (int p = 0; p < parts; p++) {
        m.part_rows[p] = part_rows[p];
        m.rows += part_rows[p];
        m.scale_rows += (part_rows[p] + 127) / 128;
    }
    m.scale_cols = (cols + 127) / 128;
    bytes = (size_t)count * (size_t)m.rows * (size_t)cols;
    scales = (size_t)count * (size_t)m.scale_rows * (size_t)m.scale_cols;
    m.data = memory_zeroed(bytes, 1);
    m.scale = memory_zeroed(scales, sizeof *m.scale);
    for (size_t i = 0; i < bytes; i += 4) {
        uint64_t r = random_next();
        for (size_t j = 0; j < 4 && i + j < bytes; j++)
            m.data[i + j] = table[r >> j * 12 & 4095];
    }
    for (size_t i = 0; i < scales; i++)
        m.scale[i] = 3e-4f * (0.5f + (float)(random_next() >> 40) * 0x1p-24f);
    w.host = w.device = m;
    w.device.data = device_copy(m.data, bytes);
    w.device.scale = device_copy(m.scale, scales * sizeof *m.scale);
    return w;
}

void weights_free(struct weights *w)
{
    free(w->host.data);
    free(w->host.scale);
    cudaFree(w->device.data);
    cudaFree(w->device.scale);
}

struct adapters_pair adapters_make(const struct fp8_matrix *w, int rank, double dropout,
                                   unsigned parts_used)
{
    struct adapters_pair a = {
        .host = {
            .rank = rank, .scale = 1.7, .dropout = dropout, .expert_first = w->count > 1 ? 5 : 0}};
    int row = 0;

    a.device = a.host;
    for (int p = 0; p < (parts_used && rank ? w->parts : rank > 0); p++) {
        int rows = parts_used ? w->part_rows[p] : w->rows, i = a.host.count;
        struct lora_part *h = &a.host.part[i], *d = &a.device.part[i];
        size_t ac = a.a_count[i] = (size_t)w->count * (size_t)rank * (size_t)w->cols;
        size_t bc = a.b_count[i] = (size_t)w->count * (size_t)rank * (size_t)rows;
        if (parts_used && !(parts_used >> p & 1)) {
            row += rows;
            continue;
        }
        h->a = floats_random(ac, 1 / sqrtf((float)w->cols));
        h->b = floats_random(bc, 0.3f / sqrtf((float)rank));
        a.da[i] = floats_random(ac, 0.1f);
        a.db[i] = floats_random(bc, 0.1f);
        h->da = memcpy(memory_zeroed(ac, sizeof(float)), a.da[i], ac * sizeof(float));
        h->db = memcpy(memory_zeroed(bc, sizeof(float)), a.db[i], bc * sizeof(float));
        h->row = row;
        h->rows = rows;
        h->key[0] = (uint32_t)random_next();
        h->key[1] = (uint32_t)random_next();
        *d = *h;
        d->a = device_copy(h->a, ac * sizeof(float));
        d->b = device_copy(h->b, bc * sizeof(float));
        d->da = device_copy(h->da, ac * sizeof(float));
        d->db = device_copy(h->db, bc * sizeof(float));
        row += rows;
        a.host.count = a.device.count = i + 1;
    }
    return a;
}

void adapters_free(struct adapters_pair *a)
{
    for (int p = 0; p < a->host.count; p++) {
        struct lora_part *h = &a->host.part[p], *d = &a->device.part[p];
        free((void *)h->a), free((void *)h->b), free(h->da), free(h->db);
        free(a->da[p]), free(a->db[p]);
        cudaFree((void *)d->a), cudaFree((void *)d->b), cudaFree(d->da), cudaFree(d->db);
    }
}

uint64_t *keys_make(int rows, uint64_t **device)
{
    uint64_t *keys = memory_zeroed((size_t)rows + 1, sizeof *keys);

    for (int i = 0; i < rows; i++)
        keys[i] = random_next();
    *device = device_copy(keys, (size_t)rows * sizeof *keys);
    return keys;
}

void backends_create(const struct model *model)
{
    struct fl_error e;

    require(arena_create_host(0, &host_arena, &e), &e);
    require(arena_create_device(0, &device_arena, &e), &e);
    require(ops_cpu_create(model, NUMERICS_FP8, host_arena, &cpu, &e), &e);
    require(ops_cuda_create(model, device_arena, &gpu, &e), &e);
}

void backends_destroy(void)
{
    ops_destroy(gpu);
    ops_destroy(cpu);
    arena_destroy(device_arena);
    arena_destroy(host_arena);
}
