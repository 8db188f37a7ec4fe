// SPDX-License-Identifier: Apache-2.0
// Linear layers, experts and head on the GPU against the reference backend: test_products [--small
// |
// --time].
#include "products_fixture.h"

#include "base/floats.h"
#include "base/memory.h"
#include "ops/cpu/cpu.h"
#include "transpose.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int passed, failed;

static void report(bool good, const char *name, const char *what)
{
    (good ? passed++ : failed++);
    printf("%s %d - %s%s%s\n", good ? "ok" : "not ok", passed + failed, name, *what ? ": " : "",
           what);
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
    static const struct model model = {.hidden = 256, .vocab = 1000};
    int devices = 0;

    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("1..0 # SKIP no GPU\n");
        return 0;
    }
    backends_create(&model);
    checks(argc > 1 && !strcmp(argv[1], "--small"));
    if (argc > 1 && !strcmp(argv[1], "--time"))
        products_time();
    backends_destroy();
    printf("1..%d\n", passed + failed);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
