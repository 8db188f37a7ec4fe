// SPDX-License-Identifier: Apache-2.0
// Linear layers, experts and head on the GPU against the reference backend; with --time, their time
// at the shapes of a 30B model.
#include "base/floats.h"
#include "base/memory.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/products.h"
#include "transpose.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int passed, failed;
static struct ops *cpu, *gpu;
static struct arena *host_arena, *device_arena;
static uint64_t state = 1;

static uint64_t random_next(void)
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

static void require(int rc, const struct fl_error *e)
{
    if (rc < 0) {
        printf("Bail out! %s\n", e->text);
        exit(1);
    }
}

static void require_cuda(int rc)
{
    struct fl_error e;

    require(CUDA_CHECK(rc, &e), &e);
}

static void report(bool good, const char *name, const char *what)
{
    (good ? passed++ : failed++);
    printf("%s %d - %s%s%s\n", good ? "ok" : "not ok", passed + failed, name, *what ? ": " : "",
           what);
}

// Device memory full of 0xff.
static void *device_poisoned(size_t bytes)
{
    void *p;

    require_cuda((int)cudaMalloc(&p, bytes + 16));
    require_cuda((int)cudaMemset(p, 0xff, bytes + 16));
    return p;
}

static void *device_copy(const void *host, size_t bytes)
{
    void *p = device_poisoned(bytes);

    require_cuda((int)cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice));
    return p;
}

static void *host_copy(const void *device, size_t bytes)
{
    void *p = memory_zeroed(bytes + 1, 1);

    require_cuda((int)cudaDeviceSynchronize());
    require_cuda((int)cudaMemcpy(p, device, bytes, cudaMemcpyDeviceToHost));
    return p;
}

static float *floats_random(size_t count, float size)
{
    float *x = memory_zeroed(count + 1, sizeof *x);

    // Large arrays repeat after a prime number of values.
    for (size_t i = 0; i < count; i++)
        x[i] = i < 1048573 ? size * normal() : x[i - 1048573];
    return x;
}

// The same rows for both backends: reals on the host, a row format on the device.
struct rows {
    int rows, cols;
    float *host;
    void *device;
};

static struct rows stream_make(int rows, int cols, float size)
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

static struct rows quantised_make(int rows, int cols, float size)
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

static struct rows output_make(int rows, int cols, size_t device_row_bytes)
{
    return (struct rows){rows, cols, memory_zeroed((size_t)rows * (size_t)cols + 1, sizeof(float)),
                         device_poisoned((size_t)rows * device_row_bytes)};
}

static void rows_free(struct rows *r)
{
    free(r->host);
    cudaFree(r->device);
}

static float *rows_read(const struct rows *r, bool quantised)
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

// Relative Frobenius error of all and of the worst row.
static void compare(const char *name, const char *what, const float *got, const float *wanted,
                    int rows, int cols, double most, double row_most)
{
    double difference = 0, reference = 0, worst = 0;
    char text[200];

    for (int r = 0; r < rows; r++) {
        double d = 0, w = 0;
        for (int c = 0; c < cols; c++) {
            size_t i = (size_t)r * (size_t)cols + (size_t)c;
            double x = (double)got[i] - (double)wanted[i];
            d += isfinite(got[i]) ? x * x : INFINITY;
            w += (double)wanted[i] * (double)wanted[i];
        }
        difference += d;
        reference += w;
        worst = fmax(worst, d == 0 ? 0 : sqrt(d / w));
    }
    difference = difference == 0 ? 0 : sqrt(difference / reference);
    snprintf(text, sizeof text, "%s %.1e, worst row %.1e", what, difference, worst);
    report(difference <= most && worst <= row_most, name, text);
}

static void rows_compare(const char *name, const char *what, const struct rows *r, bool quantised,
                         double most, double row_most)
{
    float *got = rows_read(r, quantised);

    compare(name, what, got, r->host, r->rows, r->cols, most, row_most);
    free(got);
}

struct weights {
    struct fp8_matrix host, device;
};

static struct weights weights_make(int count, int parts, const int *part_rows, int cols)
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

static void weights_free(struct weights *w)
{
    free(w->host.data);
    free(w->host.scale);
    cudaFree(w->device.data);
    cudaFree(w->device.scale);
}

// Adapters on parts of w; parts_used: a bit for each, 0: one on all rows.
struct adapters_pair {
    struct lora host, device;
    float *da[MATRIX_PARTS], *db[MATRIX_PARTS]; // as they began
    size_t a_count[MATRIX_PARTS], b_count[MATRIX_PARTS];
};

static struct adapters_pair adapters_make(const struct fp8_matrix *w, int rank, double dropout,
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

static void gradients_compare(const char *name, struct adapters_pair *a, int groups)
{
    for (int p = 0; p < a->host.count; p++)
        for (int b = 0; b < 2; b++) {
            size_t count = b ? a->b_count[p] : a->a_count[p];
            const float *began = b ? a->db[p] : a->da[p];
            float *wanted = b ? a->host.part[p].db : a->host.part[p].da;
            float *got =
                host_copy(b ? a->device.part[p].db : a->device.part[p].da, count * sizeof(float));
            int rows = groups * (b ? 1 : a->host.rank);
            for (size_t i = 0; i < count; i++) {
                got[i] -= began[i];
                wanted[i] -= began[i];
            }
            // Experts without rows have gradients of exactly 0.
            compare(name, b ? "dB" : "dA", got, wanted, rows, (int)(count / (size_t)rows), 3e-3,
                    1.5e-2);
            free(got);
        }
}

static void adapters_free(struct adapters_pair *a)
{
    for (int p = 0; p < a->host.count; p++) {
        struct lora_part *h = &a->host.part[p], *d = &a->device.part[p];
        free((void *)h->a), free((void *)h->b), free(h->da), free(h->db);
        free(a->da[p]), free(a->db[p]);
        cudaFree((void *)d->a), cudaFree((void *)d->b), cudaFree(d->da), cudaFree(d->db);
    }
}

static uint64_t *keys_make(int rows, uint64_t **device)
{
    uint64_t *keys = memory_zeroed((size_t)rows + 1, sizeof *keys);

    for (int i = 0; i < rows; i++)
        keys[i] = random_next();
    *device = device_copy(keys, (size_t)rows * sizeof *keys);
    return keys;
}

static void transpose_check(int count, int parts, const int *part_rows, int cols)
{
    struct weights w = weights_make(count, parts, part_rows, cols);
    const struct fp8_matrix *m = &w.host;
    struct fp8_transpose t = {.from = w.device.data,
                              .from_scale = w.device.scale,
                              .groups = count,
                              .k = cols,
                              .parts = parts};
    int columns = 0;
    bool good = true;
    char name[100];

    for (int p = 0; p < parts; p++) {
        t.part_rows[p] = part_rows[p];
        columns = (columns + 127) / 128 * 128 + part_rows[p];
    }
    size_t each = (size_t)cols * (size_t)columns;
    size_t grid = (size_t)m->scale_rows * (size_t)m->scale_cols;
    t.to = device_poisoned((size_t)count * each);
    t.to_scale = device_poisoned((size_t)count * grid * sizeof(float));
    require_cuda(fp8_transpose(&t, NULL));
    uint8_t *got = host_copy(t.to, (size_t)count * each);
    float *scales = host_copy(t.to_scale, (size_t)count * grid * sizeof(float));
    for (int g = 0; g < count; g++) {
        int n = 0, first = 0;
        for (int p = 0; p < parts; p++) {
            int whole = (part_rows[p] + 127) / 128 * 128;
            for (int j = 0; j < whole && first + j < columns; j++)
                for (int k = 0; k < cols; k++) {
                    uint8_t wanted = j < part_rows[p]
                                         ? m->data[((size_t)g * (size_t)m->rows + (size_t)(n + j)) *
                                                       (size_t)cols +
                                                   (size_t)k]
                                         : 0;
                    good =
                        good &&
                        got[(size_t)g * each + (size_t)k * (size_t)columns + (size_t)(first + j)] ==
                            wanted;
                }
            n += part_rows[p];
            first += whole;
        }
        for (int i = 0; i < m->scale_rows; i++)
            for (int j = 0; j < m->scale_cols; j++)
                good = good && scales[(size_t)g * grid + (size_t)(j * m->scale_rows + i)] ==
                                   m->scale[(size_t)g * grid + (size_t)(i * m->scale_cols + j)];
    }
    snprintf(name, sizeof name, "transposition of %d x [%d, %d], %d parts, bit for bit", count,
             m->rows, cols, parts);
    report(good, name, "");
    free(got);
    free(scales);
    cudaFree(t.to);
    cudaFree(t.to_scale);
    weights_free(&w);
}

static void linear_check(int rows, int parts, const int *part_rows, int cols, int rank,
                         double dropout, unsigned parts_used)
{
    struct weights w = weights_make(1, parts, part_rows, cols);
    struct adapters_pair a = adapters_make(&w.host, rank, dropout, parts_used);
    struct rows x = stream_make(rows, cols, 1), xq = quantised_make(rows, cols, 1);
    struct rows dy = stream_make(rows, w.host.rows, 0.01f);
    struct rows y = output_make(rows, w.host.rows, stream_row_bytes(w.host.rows));
    struct rows dx = output_make(rows, cols, stream_row_bytes(cols));
    uint64_t *device_keys, *keys = keys_make(rows, &device_keys);
    struct fl_error e;
    char name[120];

    snprintf(name, sizeof name, "linear %d rows [%d, %d], %d parts, rank %d of parts %u, p %.1f",
             rows, w.host.rows, cols, parts, rank, parts_used, dropout);
    require(cpu_linear_forward(cpu, &w.host, &a.host, keys, x.host, xq.host, rows, y.host, &e), &e);
    require(cuda_linear_forward(gpu, &w.device, &a.device, device_keys, x.device, xq.device, rows,
                                y.device, &e),
            &e);
    rows_compare(name, "y", &y, false, 3e-3, 1e-2);
    require(cpu_linear_backward(cpu, &w.host, &a.host, keys, x.host, dy.host, rows, dx.host, &e),
            &e);
    require(cuda_linear_backward(gpu, &w.device, &a.device, device_keys, x.device, dy.device, rows,
                                 dx.device, &e),
            &e);
    rows_compare(name, "dx", &dx, false, 3e-3, 1e-2);
    gradients_compare(name, &a, 1);
    free(keys);
    cudaFree(device_keys);
    rows_free(&x), rows_free(&xq), rows_free(&dy), rows_free(&y), rows_free(&dx);
    adapters_free(&a);
    weights_free(&w);
}

// Both expert layers forward and backward; repeated: the second time must give the same bits.
static void experts_check(int experts, const int64_t *counts, int hidden, int width, int rank,
                          double dropout, unsigned parts_used)
{
    int rows = 0, halves[2] = {width, width};
    struct weights w1 = weights_make(experts, 2, halves, hidden);
    struct weights w2 = weights_make(experts, 1, &hidden, width);
    struct adapters_pair a1 = adapters_make(&w1.host, rank, dropout, parts_used);
    struct adapters_pair a2 = adapters_make(&w2.host, rank, dropout, 0);
    struct fl_error e;
    char name[120];

    for (int i = 0; i < experts; i++)
        rows += (int)counts[i];
    snprintf(name, sizeof name, "%d experts, %d rows, hidden %d, width %d, rank %d, p %.1f%s",
             experts, rows, hidden, width, rank, dropout, parts_used ? ", own A" : "");
    struct rows xq = quantised_make(rows, hidden, 1), dyq = quantised_make(rows, hidden, 0.01f);
    struct rows act_in = stream_make(rows, width, 1), actq_in = quantised_make(rows, width, 1);
    struct rows gate_up_in = stream_make(rows, 2 * width, 1);
    struct rows dact_in = stream_make(rows, width, 0.01f);
    struct rows gate_up = output_make(rows, 2 * width, stream_row_bytes(2 * width));
    struct rows act = output_make(rows, width, stream_row_bytes(width));
    struct rows actq = output_make(rows, width, quantised_row_bytes(width));
    struct rows y = output_make(rows, hidden, stream_row_bytes(hidden));
    struct rows dact = output_make(rows, width, stream_row_bytes(width));
    struct rows dx = output_make(rows, hidden, stream_row_bytes(hidden));
    struct rows again = output_make(rows, hidden, stream_row_bytes(hidden));
    uint64_t *device_keys, *keys = keys_make(rows, &device_keys);
    float *weights = floats_random((size_t)rows, 0.3f);
    float *device_weights = device_copy(weights, (size_t)rows * sizeof(float));
    float *dweights = memory_zeroed((size_t)rows + 1, sizeof(float));
    float *device_dweights = device_poisoned((size_t)rows * sizeof(float));
    struct group host = {experts, rows, counts, keys},
                 device = {experts, rows, counts, device_keys};

    require(cpu_fc1_forward(cpu, &w1.host, &a1.host, &host, xq.host, gate_up.host, act.host,
                            actq.host, &e),
            &e);
    require(cuda_fc1_forward(gpu, &w1.device, &a1.device, &device, xq.device, gate_up.device,
                             act.device, actq.device, &e),
            &e);
    rows_compare(name, "gate_up", &gate_up, false, 3e-3, 1e-2);
    rows_compare(name, "act", &act, false, 5e-3, 2e-2);
    rows_compare(name, "act quantised", &actq, true, 3e-2, 6e-2);
    require(cpu_fc2_forward(cpu, &w2.host, &a2.host, &host, act_in.host, actq_in.host, y.host, &e),
            &e);
    require(cuda_fc2_forward(gpu, &w2.device, &a2.device, &device, act_in.device, actq_in.device,
                             y.device, &e),
            &e);
    rows_compare(name, "y", &y, false, 3e-3, 1e-2);
    require(cpu_fc2_backward(cpu, &w2.host, &a2.host, &host, act_in.host, dyq.host, weights,
                             dact.host, dweights, &e),
            &e);
    require(cuda_fc2_backward(gpu, &w2.device, &a2.device, &device, act_in.device, dyq.device,
                              device_weights, dact.device, device_dweights, &e),
            &e);
    rows_compare(name, "dact", &dact, false, 3e-3, 1e-2);
    float *got = host_copy(device_dweights, (size_t)rows * sizeof(float));
    // One dot product a row, of terms that cancel: measured against all rows.
    compare(name, "dweights", got, dweights, 1, rows, 3e-3, 3e-3);
    gradients_compare(name, &a2, experts);
    require(cpu_fc1_backward(cpu, &w1.host, &a1.host, &host, xq.host, gate_up_in.host, dact_in.host,
                             dx.host, &e),
            &e);
    require(cuda_fc1_backward(gpu, &w1.device, &a1.device, &device, xq.device, gate_up_in.device,
                              dact_in.device, dx.device, &e),
            &e);
    rows_compare(name, "dx", &dx, false, 3e-3, 1e-2);
    if (a1.host.count && rows) {
        size_t a_bytes = a1.a_count[0] * sizeof(float);
        float *first = host_copy(a1.device.part[0].da, a_bytes), *second;
        gradients_compare(name, &a1, experts);
        require_cuda(
            (int)cudaMemcpy(a1.device.part[0].da, a1.da[0], a_bytes, cudaMemcpyHostToDevice));
        require(cuda_fc1_backward(gpu, &w1.device, &a1.device, &device, xq.device,
                                  gate_up_in.device, dact_in.device, again.device, &e),
                &e);
        second = host_copy(a1.device.part[0].da, a_bytes);
        float *dx_first = rows_read(&dx, false), *dx_second = rows_read(&again, false);
        report(!memcmp(first, second, a_bytes) &&
                   !memcmp(dx_first, dx_second, (size_t)rows * (size_t)hidden * sizeof(float)),
               name, "the same bits again");
        free(first), free(second), free(dx_first), free(dx_second);
    }
    free(got), free(keys), free(weights), free(dweights);
    cudaFree(device_keys), cudaFree(device_weights), cudaFree(device_dweights);
    rows_free(&xq), rows_free(&dyq), rows_free(&act_in), rows_free(&actq_in);
    rows_free(&gate_up_in), rows_free(&dact_in), rows_free(&gate_up), rows_free(&act);
    rows_free(&actq), rows_free(&y), rows_free(&dact), rows_free(&dx), rows_free(&again);
    adapters_free(&a1), adapters_free(&a2);
    weights_free(&w1), weights_free(&w2);
}

static void head_check(int rows, int vocab, int hidden)
{
    struct model model = {.vocab = vocab, .hidden = hidden};
    const struct model *before = cpu->model;
    struct rows h = stream_make(rows, hidden, 1), head = stream_make(vocab, hidden, 0.03f);
    struct rows dlogits = stream_make(rows, vocab, 0.01f);
    struct rows dh = output_make(rows, hidden, stream_row_bytes(hidden));
    size_t count = (size_t)rows * (size_t)vocab;
    float *logits = memory_zeroed(count, sizeof(float)), *got;
    float *device_logits = device_poisoned(count * sizeof(float));
    float *device_dlogits = device_copy(dlogits.host, count * sizeof(float));
    uint16_t *raw = host_copy(head.device, (size_t)vocab * (size_t)hidden * 2);
    struct fl_error e;
    char name[100];

    cpu->model = gpu->model = &model;
    snprintf(name, sizeof name, "head %d rows, vocabulary %d, hidden %d", rows, vocab, hidden);
    require(cpu_head_forward(cpu, h.host, raw, rows, logits, &e), &e);
    require(cuda_head_forward(gpu, h.device, head.device, rows, device_logits, &e), &e);
    got = host_copy(device_logits, count * sizeof(float));
    compare(name, "logits", got, logits, rows, vocab, 1e-5, 1e-4);
    require(cpu_head_backward(cpu, dlogits.host, raw, rows, dh.host, &e), &e);
    require(cuda_head_backward(gpu, device_dlogits, head.device, rows, dh.device, &e), &e);
    rows_compare(name, "dh", &dh, false, 1e-3, 3e-3);
    cpu->model = gpu->model = before;
    free(logits), free(got), free(raw);
    cudaFree(device_logits), cudaFree(device_dlogits);
    rows_free(&h), rows_free(&head), rows_free(&dlogits), rows_free(&dh);
}

// Microseconds of a call, the median of some; flops 0: bytes a second instead.
struct timing {
    const char *name;
    double flops, bytes;
    float us[15];
    int count;
    cudaEvent_t start, stop;
};

static bool timing_next(struct timing *t)
{
    cudaStream_t stream = cuda_of(gpu)->stream;
    float ms;

    if (!t->start) {
        require_cuda((int)cudaEventCreate(&t->start));
        require_cuda((int)cudaEventCreate(&t->stop));
    } else {
        require_cuda((int)cudaEventRecord(t->stop, stream));
        require_cuda((int)cudaEventSynchronize(t->stop));
        require_cuda((int)cudaEventElapsedTime(&ms, t->start, t->stop));
        t->us[t->count++] = ms * 1e3f;
    }
    if (t->count == 15) {
        for (int i = 0; i < 15; i++)
            for (int j = i + 1; j < 15; j++)
                if (t->us[j] < t->us[i]) {
                    float swap = t->us[i];
                    t->us[i] = t->us[j];
                    t->us[j] = swap;
                }
        if (t->flops > 0)
            printf("# %-40s %8.1f us %6.0f TFLOP/s\n", t->name, (double)t->us[7],
                   t->flops / (double)t->us[7] * 1e-6);
        else
            printf("# %-40s %8.1f us %6.0f GB/s\n", t->name, (double)t->us[7],
                   t->bytes / (double)t->us[7] * 1e-3);
        return false;
    }
    require_cuda((int)cudaEventRecord(t->start, stream));
    return true;
}

#define TIME(name_, flops_, bytes_, call)                                                          \
    for (struct timing t_ = {.name = name_, .flops = flops_, .bytes = bytes_}; timing_next(&t_);)  \
    require(call, &e)

static void experts_time(int rank, double dropout)
{
    enum { EXPERTS = 128, ROWS = 32768, H = 2048, W = 768 };
    int64_t counts[EXPERTS];
    int halves[2] = {W, W}, hidden = H;
    struct weights w1 = weights_make(EXPERTS, 2, halves, H);
    struct weights w2 = weights_make(EXPERTS, 1, &hidden, W);
    struct adapters_pair a1 = adapters_make(&w1.host, rank, dropout, 0);
    struct adapters_pair a2 = adapters_make(&w2.host, rank, dropout, 0);
    struct rows xq = quantised_make(ROWS, H, 1), dyq = quantised_make(ROWS, H, 0.01f);
    struct rows act = stream_make(ROWS, W, 1), actq = quantised_make(ROWS, W, 1);
    struct rows gate_up = stream_make(ROWS, 2 * W, 1), y = stream_make(ROWS, H, 1);
    uint64_t *device_keys, *keys = keys_make(ROWS, &device_keys);
    float *weights = floats_random(ROWS, 0.3f), *device_weights = device_copy(weights, ROWS * 4);
    float *device_dweights = device_poisoned(ROWS * 4);
    struct group group = {EXPERTS, ROWS, counts, device_keys};
    double flops = 2.0 * ROWS * H * W;
    struct cuda *cuda = cuda_of(gpu);
    struct product_groups groups;
    struct fl_error e;

    for (int i = 0; i < EXPERTS; i++)
        counts[i] = ROWS / EXPERTS + (i % 2 ? i : 1 - i);
    counts[0] -= 64; // the sum of +1, +1, -1, +3, ... is 64
    for (int i = 0, sum = 0; i < EXPERTS; sum += (int)counts[i++])
        if (i == EXPERTS - 1)
            counts[i] = ROWS - sum;
    printf("# 128 experts, 32768 rows, hidden 2048, width 768, rank %d, dropout %.2f\n", rank,
           dropout);
    TIME("fc1 forward", 2 * flops, 0,
         cuda_fc1_forward(gpu, &w1.device, &a1.device, &group, xq.device, gate_up.device,
                          act.device, actq.device, &e));
    TIME("fc2 forward", flops, 0,
         cuda_fc2_forward(gpu, &w2.device, &a2.device, &group, act.device, actq.device, y.device,
                          &e));
    TIME("fc2 backward", flops, 0,
         cuda_fc2_backward(gpu, &w2.device, &a2.device, &group, act.device, dyq.device,
                           device_weights, act.device, device_dweights, &e));
    TIME("fc1 backward", 2 * flops, 0,
         cuda_fc1_backward(gpu, &w1.device, &a1.device, &group, xq.device, gate_up.device,
                           act.device, y.device, &e));
    struct arena_mark mark = arena_mark(device_arena);
    require(product_groups_push(cuda, EXPERTS, ROWS, counts, device_keys, &groups, &e), &e);
    struct lora_groups g = {groups.offsets, EXPERTS, ROWS};
    struct lora_rows rows[2] = {{.x = xq.device,
                                 .quantised = 1,
                                 .row_columns = H,
                                 .columns = H,
                                 .dropout = lora_dropout_of(&a1.device, a1.device.part, &groups)},
                                {.x = gate_up.device, .row_columns = 2 * W, .columns = 2 * W}};
    uint16_t *a = device_copy(w1.host.data, (size_t)EXPERTS * H * (size_t)rank * 2);
    uint16_t *s = device_copy(w1.host.data, (size_t)ROWS * (size_t)rank * 2);
    int32_t *turns = device_poisoned(lora_gradient_turns(&rows[0], &g, rank) * 4);
    struct fp8_transpose t = {w1.device.data,
                              w1.device.scale,
                              device_poisoned((size_t)EXPERTS * H * 2 * W),
                              device_poisoned((size_t)EXPERTS * H * 4),
                              EXPERTS,
                              H,
                              2,
                              {W, W}};
    TIME("transposition of fc1", 0, 2.0 * EXPERTS * H * 2 * W,
         CUDA_CHECK(fp8_transpose(&t, cuda->stream), &e));
    TIME("S of quantised rows [32768, 2048]", 0, (double)ROWS * H,
         CUDA_CHECK(lora_project(&rows[0], &g, a, rank, 1, s, rank, cuda->stream), &e));
    TIME("dA of quantised rows [32768, 2048]", 0, (double)ROWS * H,
         CUDA_CHECK(lora_gradient(&rows[0], &g, s, rank, rank, rank, NULL, 1, a1.device.part[0].da,
                                  H, 1, (size_t)H * (size_t)rank, turns, cuda->stream),
                    &e));
    TIME("dS of stream rows [32768, 1536]", 0, 2.0 * ROWS * 2 * W,
         CUDA_CHECK(lora_project(&rows[1], &g, a, rank, 1, s, rank, cuda->stream), &e));
    TIME("dB of stream rows [32768, 1536]", 0, 2.0 * ROWS * 2 * W,
         CUDA_CHECK(lora_gradient(&rows[1], &g, s, rank, rank, rank, NULL, 1, a1.device.part[0].db,
                                  1, rank, (size_t)2 * W * (size_t)rank, turns, cuda->stream),
                    &e));
    struct lora_pack pack = {.from = a1.device.part[0].a,
                             .groups = EXPERTS,
                             .rows = rank,
                             .cols = H,
                             .rows_padded = rank,
                             .cols_padded = H,
                             .to = a,
                             .to_cols = H,
                             .to_group = (size_t)rank * H};
    TIME("A to bf16", 0, 6.0 * EXPERTS * H * rank, CUDA_CHECK(lora_pack(&pack, cuda->stream), &e));
    pack.transposed = 1;
    pack.to_cols = rank;
    TIME("A to bf16, transposed", 0, 6.0 * EXPERTS * H * rank,
         CUDA_CHECK(lora_pack(&pack, cuda->stream), &e));
    arena_release(device_arena, mark);
    cudaFree(a), cudaFree(s), cudaFree(turns), cudaFree(t.to), cudaFree(t.to_scale);
    free(keys), free(weights);
    cudaFree(device_keys), cudaFree(device_weights), cudaFree(device_dweights);
    rows_free(&xq), rows_free(&dyq), rows_free(&act), rows_free(&actq), rows_free(&gate_up);
    rows_free(&y);
    adapters_free(&a1), adapters_free(&a2);
    weights_free(&w1), weights_free(&w2);
}

static void linear_time(const char *name, int parts, const int *part_rows, int cols)
{
    enum { ROWS = 4096 };
    struct weights w = weights_make(1, parts, part_rows, cols);
    struct adapters_pair a = adapters_make(&w.host, 16, 0, parts > 1 ? 7 : 0);
    struct rows x = stream_make(ROWS, cols, 1), xq = quantised_make(ROWS, cols, 1);
    struct rows y = stream_make(ROWS, w.host.rows, 1);
    double flops = 2.0 * ROWS * w.host.rows * cols;
    struct fl_error e;

    printf("# %s, 4096 rows, [%d, %d], rank 16\n", name, w.host.rows, cols);
    TIME("forward", flops, 0,
         cuda_linear_forward(gpu, &w.device, &a.device, NULL, x.device, xq.device, ROWS, y.device,
                             &e));
    TIME("backward", flops, 0,
         cuda_linear_backward(gpu, &w.device, &a.device, NULL, x.device, y.device, ROWS, x.device,
                              &e));
    rows_free(&x), rows_free(&xq), rows_free(&y);
    adapters_free(&a);
    weights_free(&w);
}

static void head_time(void)
{
    enum { ROWS = 1024, VOCAB = 151936, H = 2048 };
    struct model model = {.vocab = VOCAB, .hidden = H};
    const struct model *before = gpu->model;
    struct rows h = stream_make(ROWS, H, 1), head = stream_make(VOCAB, H, 0.03f);
    float *logits = device_poisoned((size_t)ROWS * VOCAB * 4);
    double flops = 2.0 * ROWS * VOCAB * H;
    struct fl_error e;

    gpu->model = &model;
    TIME("head forward, 1024 rows", flops, 0,
         cuda_head_forward(gpu, h.device, head.device, ROWS, logits, &e));
    TIME("head backward, 1024 rows", flops, 0,
         cuda_head_backward(gpu, logits, head.device, ROWS, h.device, &e));
    gpu->model = before;
    cudaFree(logits);
    rows_free(&h), rows_free(&head);
}

static void checks(bool small)
{
    static const int ranks[] = {1, 8, 12, 16, 100, 128, 256};
    static const int qkv[3] = {256, 64, 64}, ragged[3] = {192, 80, 48}, one[1] = {256};
    static const int halves[2] = {192, 192}, last[1] = {192};
    static const int64_t counts[6] = {0, 1, 37, 200, 0, 63}, skewed[4] = {1300, 5, 0, 700};
    static const int64_t many[5] = {9000, 9100, 300, 0, 211}, none[3] = {0, 0, 0};

    transpose_check(1, 3, qkv, 256);
    transpose_check(3, 3, ragged, 208);
    transpose_check(2, 2, halves, 256);
    transpose_check(5, 1, last, 128);
    linear_check(301, 3, qkv, 256, 0, 0, 0);
    linear_check(130, 3, ragged, 192, 16, 0.1, 7);
    linear_check(77, 3, ragged, 208, 16, 0, 5);
    linear_check(0, 3, qkv, 256, 16, 0, 7);
    linear_check(1, 3, qkv, 256, 8, 0.5, 2);
    experts_check(6, counts, 256, 128, 0, 0, 0);
    experts_check(6, counts, 192, 192, 16, 0, 3);
    experts_check(6, counts, 192, 192, 16, 0.3, 3);
    experts_check(3, none, 256, 128, 16, 0.3, 0);
    head_check(33, 1000, 256);
    head_check(130, 4099, 192);
    head_check(1, 160, 128);
    if (small)
        return;
    for (int i = 0; i < 7; i++)
        for (int drop = 0; drop < 2; drop++) {
            linear_check(1111, 3, qkv, 256, ranks[i], drop ? 0.05 : 0, 7);
            linear_check(700, 1, one, 512, ranks[i], drop ? 0.5 : 0, 0);
            experts_check(6, counts, 256, 128, ranks[i], drop ? 0.1 : 0, 0);
            experts_check(4, skewed, 256, 192, ranks[i], drop ? 0.1 : 0, 0);
        }
    experts_check(5, many, 256, 128, 16, 0, 0);
    experts_check(5, many, 256, 128, 16, 0.1, 0);
}

int main(int argc, char **argv)
{
    static const int qkv[3] = {4096, 512, 512}, proj[1] = {2048};
    static const struct model model = {.hidden = 256, .vocab = 1000};
    int devices = 0;
    struct fl_error e;

    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("1..0 # SKIP no GPU\n");
        return 0;
    }
    require(arena_create_host(0, &host_arena, &e), &e);
    require(arena_create_device(0, &device_arena, &e), &e);
    require(ops_cpu_create(&model, NUMERICS_FP8, host_arena, &cpu, &e), &e);
    require(ops_cuda_create(&model, device_arena, &gpu, &e), &e);
    checks(argc > 1 && !strcmp(argv[1], "--small"));
    if (argc > 1 && !strcmp(argv[1], "--time")) {
        experts_time(16, 0);
        experts_time(128, 0);
        experts_time(16, 0.05);
        linear_time("qkv", 3, qkv, 2048);
        linear_time("proj", 1, proj, 4096);
        head_time();
    }
    ops_destroy(gpu);
    ops_destroy(cpu);
    arena_destroy(device_arena);
    arena_destroy(host_arena);
    printf("1..%d\n", passed + failed);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
