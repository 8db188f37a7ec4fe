// SPDX-License-Identifier: Apache-2.0
// The operations on rows against the CPU's: embedding, norms, quantisation, rotary embedding,
// SwiGLU; with --time, their rates on the 30B model's shapes.
#include "base/floats.h"
#include "ops/cpu/cpu.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/rowwise.h"
#include "quantise.h"
#include "swiglu.h"
#include "time_rows.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int passed, failed;
static struct cuda cuda;
static struct ops *cpu;
static struct model model = {.rms_eps = 1e-6, .rope_theta = 1e6};

struct fl_error rows_error;

void rows_require(int rc)
{
    if (rc == 0)
        return;
    printf("Bail out! %s\n", rows_error.text);
    exit(1);
}

static void verdict(bool good, const char *what, int rows, int cols, const char *detail)
{
    printf("%s %d - %s [%d, %d]%s%s\n", good ? "ok" : "not ok", passed + failed + 1, what, rows,
           cols, good ? "" : ": ", good ? "" : detail);
    *(good ? &passed : &failed) += 1;
}

static uint64_t random_state = 0x9e3779b97f4a7c15;

static double uniform(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return ((double)(random_state >> 11) + 1) * 0x1p-53;
}

static float normal(void)
{
    return (float)(sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()));
}

static void *host(size_t bytes)
{
    void *p = calloc(1, bytes + 16);

    if (!p)
        abort();
    return p;
}

// Device memory with the bytes of from, or poisoned where from is NULL.
static void *device(const void *from, size_t bytes)
{
    void *p;

    CHECK(cudaMalloc(&p, bytes + 16));
    CHECK(cudaMemset(p, 0xff, bytes + 16));
    if (from && bytes)
        CHECK(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice));
    return p;
}

static void *fetch(void *from, size_t bytes)
{
    void *p = host(bytes);

    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(p, from, bytes, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(from));
    return p;
}

// A matrix on the host, as the CPU backend holds it, and its stream rows on the device.
struct matrix {
    int rows, cols;
    float *values;
    void *device;
};

static void *stream_rows(const float *values, int rows, int cols)
{
    size_t pitch = stream_row_bytes(cols) / 2;
    uint16_t *h = host((size_t)rows * pitch * 2);
    void *d;

    memset(h, 0xff, (size_t)rows * pitch * 2); // padding of NaN
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++)
            h[(size_t)r * pitch + (size_t)c] =
                bf16_from_float(values[(size_t)r * (size_t)cols + (size_t)c]);
    d = device(h, (size_t)rows * pitch * 2);
    free(h);
    return d;
}

// Rows of deviations from 1e-3 to 1e3, with a few outliers.
static struct matrix matrix_random(int rows, int cols)
{
    struct matrix m = {rows, cols, host((size_t)rows * (size_t)cols * sizeof(float)), NULL};

    for (int r = 0; r < rows; r++) {
        float deviation = (float)pow(10, 6 * uniform() - 3);
        for (int c = 0; c < cols; c++)
            m.values[(size_t)r * (size_t)cols + (size_t)c] =
                bf16_round(deviation * normal() * (uniform() < 0.01 ? 30 : 1));
    }
    m.device = stream_rows(m.values, rows, cols);
    return m;
}

static void matrix_free(struct matrix *m)
{
    free(m->values);
    CHECK(cudaFree(m->device));
}

static bool same(float a, float b)
{
    return isnan(a) || isnan(b) ? isnan(a) && isnan(b) : a == b;
}

// Relative Frobenius error in all and of the worst row; 0: bit for bit.
static void compare(const char *what, const float *got, const float *want, int rows, int cols,
                    double most, double most_row)
{
    double error = 0, size = 0, worst = 0;
    bool equal = true;
    char detail[128];

    for (int r = 0; r < rows; r++) {
        double row_error = 0, row_size = 0;
        for (int c = 0; c < cols; c++) {
            double g = got[(size_t)r * (size_t)cols + (size_t)c];
            double w = want[(size_t)r * (size_t)cols + (size_t)c];
            equal &= same((float)g, (float)w);
            row_error += (g - w) * (g - w);
            row_size += w * w;
        }
        error += row_error;
        size += row_size;
        row_error = sqrt(row_error / fmax(row_size, DBL_MIN));
        worst = row_error > worst || isnan(row_error) ? row_error : worst;
    }
    error = sqrt(error / fmax(size, DBL_MIN));
    snprintf(detail, sizeof detail, "relative error %.2e, worst row %.2e", error, worst);
    verdict(most > 0 ? error <= most && worst <= most_row : equal, what, rows, cols, detail);
}

// Of stream rows: values, and whether the padding is zero. Frees the device's.
static float *stream_fetch(void *d, int rows, int cols, bool *padded)
{
    size_t pitch = stream_row_bytes(cols) / 2;
    uint16_t *h = fetch(d, (size_t)rows * pitch * 2);
    float *values = host((size_t)rows * (size_t)cols * sizeof(float));

    for (int r = 0; r < rows; r++)
        for (size_t c = 0; c < pitch; c++)
            if (c < (size_t)cols)
                values[(size_t)r * (size_t)cols + c] = bf16_to_float(h[(size_t)r * pitch + c]);
            else
                *padded &= h[(size_t)r * pitch + c] == 0;
    free(h);
    return values;
}

static void check_stream(const char *what, void *d, const float *want, int rows, int cols,
                         double most, double most_row)
{
    bool padded = true;
    float *got = stream_fetch(d, rows, cols, &padded);

    if (!padded)
        verdict(false, what, rows, cols, "padding is not zero");
    else
        compare(what, got, want, rows, cols, most, most_row);
    free(got);
}

static void check_quantised(const char *what, void *d, const float *want, int rows, int cols,
                            double most, double most_row)
{
    size_t bytes = quantised_row_bytes(cols), offset = quantised_scale_offset(cols);
    size_t blocks = ((size_t)cols + 127) / 128;
    uint8_t *h = fetch(d, (size_t)rows * bytes);
    float *got = host((size_t)rows * (size_t)cols * sizeof(float));
    bool padded = true;

    for (int r = 0; r < rows; r++) {
        const uint8_t *row = h + (size_t)r * bytes;
        float scale;
        for (size_t c = 0; c < offset; c++) {
            memcpy(&scale, row + offset + c / 128 * 4, 4);
            if (c < (size_t)cols)
                got[(size_t)r * (size_t)cols + c] = e4m3_values[row[c]] * scale;
            else
                padded &= row[c] == 0;
        }
        for (size_t i = offset + blocks * 4; i < bytes; i++)
            padded &= row[i] == 0;
    }
    if (!padded)
        verdict(false, what, rows, cols, "padding is not zero");
    else
        compare(what, got, want, rows, cols, most, most_row);
    free(got);
    free(h);
}

// The left operand of a product over columns: codes and scales of parts.
static void check_operand(const char *what, void *codes_device, void *scales_device,
                          const float *want, int rows, const int *part_cols, int parts, int stride,
                          double most, double most_row)
{
    int blocks = 0, cols = 0;
    bool untouched = true, padded = true;

    for (int p = 0; p < parts; p++) {
        blocks += (part_cols[p] + 127) / 128;
        cols += part_cols[p];
    }
    uint8_t *codes = fetch(codes_device, (size_t)rows * (size_t)blocks * 128);
    float *scales = fetch(scales_device, (size_t)blocks * (size_t)stride * sizeof(float));
    float *got = host((size_t)rows * (size_t)cols * sizeof(float));
    for (int b = 0; b < blocks; b++)
        for (int r = rows; r < stride; r++)
            untouched &= float_bits(scales[(size_t)b * (size_t)stride + (size_t)r]) == 0xffffffff;
    for (int r = 0; r < rows; r++) {
        const uint8_t *from = codes + (size_t)r * (size_t)blocks * 128;
        float *to = got + (size_t)r * (size_t)cols;
        for (int p = 0, block = 0; p < parts; block += (part_cols[p++] + 127) / 128)
            for (int c = 0; c < (part_cols[p] + 127) / 128 * 128; c++) {
                uint8_t code = from[block * 128 + c];
                if (c < part_cols[p])
                    *to++ = e4m3_values[code] *
                            scales[(size_t)(block + c / 128) * (size_t)stride + (size_t)r];
                else
                    padded &= code == 0;
            }
    }
    if (!untouched || !padded)
        verdict(false, what, rows, cols, untouched ? "padding is not zero" : "wrote past rows");
    else
        compare(what, got, want, rows, cols, most, most_row);
    free(got);
    free(scales);
    free(codes);
}

static float *gains(int count)
{
    float *g = host((size_t)count * sizeof(float));

    for (int i = 0; i < count; i++)
        g[i] = 1 + 0.3f * normal();
    return g;
}

static void check_embed(int tokens, int hidden)
{
    enum { VOCAB = 50 };
    struct matrix table = matrix_random(VOCAB, hidden);
    uint16_t *table_host = host((size_t)VOCAB * (size_t)hidden * 2);
    int32_t *ids = host((size_t)tokens * 4), *ids_device;
    float *want = host((size_t)tokens * (size_t)hidden * sizeof(float));
    void *x = device(NULL, (size_t)tokens * stream_row_bytes(hidden));

    for (int i = 0; i < VOCAB * hidden; i++)
        table_host[i] = bf16_from_float(table.values[i]);
    for (int t = 0; t < tokens; t++)
        ids[t] = (int32_t)(uniform() * (VOCAB - 1));
    ids_device = device(ids, (size_t)tokens * 4);
    model.hidden = hidden;
    OK(cpu_embed(cpu, table_host, ids, tokens, want, &rows_error));
    OK(cuda_embed(&cuda.table, table.device, ids_device, tokens, x, &rows_error));
    check_stream("embed", x, want, tokens, hidden, 0, 0);
    CHECK(cudaFree(ids_device));
    matrix_free(&table);
    free(table_host);
    free(ids);
    free(want);
}

static void check_norm(int rows, int cols, bool delta)
{
    size_t count = (size_t)rows * (size_t)cols, bytes = (size_t)rows * stream_row_bytes(cols);
    struct matrix x = matrix_random(rows, cols), d = matrix_random(rows, cols);
    float *gain = gains(cols), *gain_device = device(gain, (size_t)cols * sizeof(float));
    float *sum = host(count * 4), *y = host(count * 4), *yq = host(count * 4);
    void *sum_device = device(NULL, bytes), *y_device = device(NULL, bytes);
    void *y2_device = device(NULL, bytes);
    void *yq_device = device(NULL, (size_t)rows * quantised_row_bytes(cols));

    OK(cpu_norm_forward(cpu, x.values, delta ? d.values : NULL, gain, rows, cols, sum, y, yq,
                        &rows_error));
    OK(cuda_norm_forward(&cuda.table, x.device, delta ? d.device : NULL, gain_device, rows, cols,
                         sum_device, y_device, yq_device, &rows_error));
    OK(cuda_norm_forward(&cuda.table, x.device, delta ? d.device : NULL, gain_device, rows, cols,
                         sum_device, y2_device, NULL, &rows_error));
    if (delta)
        check_stream("norm: sum", sum_device, sum, rows, cols, 0, 0);
    else
        CHECK(cudaFree(sum_device));
    check_stream(delta ? "norm of a sum" : "norm", y_device, y, rows, cols, 2e-4, 0.01);
    check_stream("norm alone", y2_device, y, rows, cols, 2e-4, 0.01);
    check_quantised("norm: quantised", yq_device, yq, rows, cols, 1e-3, 0.04);
    // The gradient goes where the residual's already is.
    struct matrix dx = matrix_random(rows, cols);
    OK(cpu_norm_backward(cpu, x.values, gain, d.values, rows, cols, dx.values, &rows_error));
    OK(cuda_norm_backward(&cuda.table, x.device, gain_device, d.device, rows, cols, dx.device,
                          &rows_error));
    check_stream("norm backward", dx.device, dx.values, rows, cols, 2e-4, 0.01);
    free(dx.values);
    CHECK(cudaFree(gain_device));
    matrix_free(&x);
    matrix_free(&d);
    free(gain);
    free(sum);
    free(y);
    free(yq);
}

// Sets what quantisation must get right in a row's first block.
static void special_values(struct matrix *m)
{
    const float values[] = {NAN, INFINITY, 0, 0x1p-133f, 0x1.fep127f, -INFINITY, 448, 0x1p-118f};
    const int kinds = (int)(sizeof values / sizeof *values);

    for (int r = 0; r < m->rows && r < kinds; r++) {
        float *row = m->values + (size_t)r * (size_t)m->cols;
        for (int c = 0; c < m->cols && c < 128; c++)
            if (values[r] == 0 || fabsf(values[r]) < 1)
                row[c] = values[r] * (float)(c % 3 - 1);
        row[m->cols / 3] = values[r];
    }
    CHECK(cudaFree(m->device));
    m->device = stream_rows(m->values, m->rows, m->cols);
}

static void check_quantise(int rows, int cols)
{
    struct matrix x = matrix_random(rows, cols);
    float *want = host((size_t)rows * (size_t)cols * sizeof(float));
    size_t bytes = (size_t)rows * quantised_row_bytes(cols);
    int blocks = (cols + 127) / 128, stride = (rows + 3) / 4 * 4;
    void *xq = device(NULL, bytes);
    void *scales = device(NULL, (size_t)blocks * (size_t)stride * sizeof(float));
    bool right = true;

    special_values(&x);
    OK(cpu_quantise(cpu, x.values, rows, cols, want, &rows_error));
    OK(cuda_quantise(&cuda.table, x.device, rows, cols, xq, &rows_error));
    CHECK(scales_transpose(xq, rows, cols, scales, stride, cuda.stream));
    float *transposed = fetch(scales, (size_t)blocks * (size_t)stride * sizeof(float));
    uint8_t *copy = host(bytes);
    CHECK(cudaMemcpy(copy, xq, bytes, cudaMemcpyDeviceToHost));
    for (int b = 0; b < blocks; b++)
        for (int r = 0; r < stride; r++) {
            uint32_t expected = 0xffffffff;
            if (r < rows)
                memcpy(&expected,
                       copy + (size_t)r * quantised_row_bytes(cols) + quantised_scale_offset(cols) +
                           (size_t)b * 4,
                       4);
            right &= float_bits(transposed[(size_t)b * (size_t)stride + (size_t)r]) == expected;
        }
    verdict(right, "scales transposed", rows, cols, "differ");
    check_quantised("quantise", xq, want, rows, cols, 0, 0);
    free(copy);
    free(transposed);
    free(want);
    matrix_free(&x);
}

static void check_parts(int rows, const int *part_cols, int parts)
{
    int cols = 0, blocks = 0, stride = rows + 5;

    for (int p = 0; p < parts; p++) {
        cols += part_cols[p];
        blocks += (part_cols[p] + 127) / 128;
    }
    struct matrix x = matrix_random(rows, cols);
    float *want = host((size_t)rows * (size_t)cols * sizeof(float));
    void *codes = device(NULL, (size_t)rows * (size_t)blocks * 128);
    void *scales = device(NULL, (size_t)blocks * (size_t)stride * sizeof(float));
    special_values(&x);
    quantise_rows(true, x.values, rows, cols, part_cols, parts, want);
    CHECK(
        quantise_to_operand(x.device, rows, part_cols, parts, codes, scales, stride, cuda.stream));
    check_operand("quantise parts", codes, scales, want, rows, part_cols, parts, stride, 0, 0);
    free(want);
    matrix_free(&x);
}

static void check_rope(int tokens, int heads, int kv_heads, int dim)
{
    int half = dim / 2, turned = (heads + kv_heads) * dim, cols = turned + kv_heads * dim;
    struct matrix qkv = matrix_random(tokens, cols), d = matrix_random(tokens, cols);
    float *q_norm = gains(dim), *k_norm = gains(dim);
    float *q_device = device(q_norm, (size_t)dim * 4), *k_device = device(k_norm, (size_t)dim * 4);
    size_t angles = (size_t)tokens * (size_t)dim;
    float *table = host(angles * 4), *table_device = device(NULL, angles * 4), *got;
    int32_t *positions = host((size_t)tokens * 4), *positions_device;
    float *qk = host((size_t)tokens * (size_t)turned * 4);
    void *qk_device = device(NULL, (size_t)tokens * stream_row_bytes(turned));
    bool near = true;

    for (int t = 0; t < tokens; t++)
        positions[t] = (int32_t)(uniform() * 32768);
    positions_device = device(positions, (size_t)tokens * 4);
    model.heads = heads;
    model.kv_heads = kv_heads;
    model.head_dim = dim;
    OK(cpu_rope_table(cpu, positions, tokens, table, &rows_error));
    OK(cuda_rope_table(&cuda.table, positions_device, tokens, table_device, &rows_error));
    got = host(angles * 4);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(got, table_device, angles * 4, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < angles; i++)
        near &= fabsf(got[i] - table[i]) <= 1e-7f;
    verdict(near, "rope table", tokens, half, "more than 1e-7 away");
    OK(cpu_rope_forward(cpu, qkv.values, q_norm, k_norm, table, tokens, qk, &rows_error));
    OK(cuda_rope_forward(&cuda.table, qkv.device, q_device, k_device, table_device, tokens,
                         qk_device, &rows_error));
    check_stream("rope forward", qk_device, qk, tokens, turned, 2e-4, 0.01);
    OK(cpu_rope_backward(cpu, qkv.values, q_norm, k_norm, table, tokens, d.values, &rows_error));
    OK(cuda_rope_backward(&cuda.table, qkv.device, q_device, k_device, table_device, tokens,
                          d.device, &rows_error));
    check_stream("rope backward", d.device, d.values, tokens, cols, 2e-4, 0.01);
    free(d.values);
    matrix_free(&qkv);
    CHECK(cudaFree(q_device));
    CHECK(cudaFree(k_device));
    CHECK(cudaFree(table_device));
    CHECK(cudaFree(positions_device));
    free(q_norm);
    free(k_norm);
    free(table);
    free(got);
    free(positions);
    free(qk);
}

static void check_swiglu(int rows, int width, bool in_place)
{
    size_t count = (size_t)rows * (size_t)width;
    struct matrix gate_up = matrix_random(rows, 2 * width), dact = matrix_random(rows, width);
    float *act = host(count * 4), *actq = host(count * 4);
    float *d = host(count * 8), *dq = host(count * 8);
    int halves[2] = {width, width}, blocks = (width + 127) / 128 * 2, stride = (rows + 3) / 4 * 4;
    void *act_device = device(NULL, (size_t)rows * stream_row_bytes(width));
    void *actq_device = device(NULL, (size_t)rows * quantised_row_bytes(width));
    void *codes = device(NULL, (size_t)rows * (size_t)blocks * 128);
    void *scales = device(NULL, (size_t)blocks * (size_t)stride * sizeof(float));
    void *d_device =
        in_place ? gate_up.device : device(NULL, (size_t)rows * stream_row_bytes(2 * width));

    for (int r = 0; r < rows; r++)
        for (int c = 0; c < width; c++) {
            size_t at = (size_t)r * 2 * (size_t)width + (size_t)c, up = at + (size_t)width;
            size_t to = (size_t)r * (size_t)width + (size_t)c;
            double g = gate_up.values[at], u = gate_up.values[up], s = 1 / (1 + exp(-g));
            double gradient = dact.values[to];
            act[to] = (float)(g * s * u);
            d[at] = bf16_round((float)(gradient * u * s * (1 + g * (1 - s))));
            d[up] = bf16_round((float)(gradient * g * s));
        }
    quantise_rows(true, act, rows, width, &width, 1, actq);
    quantise_rows(true, d, rows, 2 * width, halves, 2, dq);
    round_rows(true, act, count);
    CHECK(swiglu_forward(gate_up.device, rows, width, act_device, actq_device, cuda.stream));
    CHECK(swiglu_backward(gate_up.device, dact.device, rows, width, d_device, codes, scales, stride,
                          cuda.stream));
    check_stream("swiglu", act_device, act, rows, width, 2e-4, 0.01);
    check_quantised("swiglu: quantised", actq_device, actq, rows, width, 1e-3, 0.04);
    check_stream(in_place ? "swiglu backward in place" : "swiglu backward", d_device, d, rows,
                 2 * width, 2e-4, 0.01);
    check_operand("swiglu backward: quantised", codes, scales, dq, rows, halves, 2, stride, 1e-3,
                  0.04);
    if (!in_place)
        CHECK(cudaFree(gate_up.device));
    free(gate_up.values);
    matrix_free(&dact);
    free(act);
    free(actq);
    free(d);
    free(dq);
}

static void check_empty_and_refused(void)
{
    int parts[2] = {12, 8};
    struct ops *ops = &cuda.table;

    model.hidden = 64;
    OK(cuda_embed(ops, NULL, NULL, 0, NULL, &rows_error));
    OK(cuda_norm_forward(ops, NULL, NULL, NULL, 0, 64, NULL, NULL, NULL, &rows_error));
    OK(cuda_norm_backward(ops, NULL, NULL, NULL, 0, 64, NULL, &rows_error));
    OK(cuda_quantise(ops, NULL, 0, 64, NULL, &rows_error));
    OK(cuda_rope_table(ops, NULL, 0, NULL, &rows_error));
    OK(cuda_rope_forward(ops, NULL, NULL, NULL, NULL, 0, NULL, &rows_error));
    OK(cuda_rope_backward(ops, NULL, NULL, NULL, NULL, 0, NULL, &rows_error));
    CHECK(scales_transpose(NULL, 0, 64, NULL, 0, NULL));
    CHECK(quantise_to_operand(NULL, 0, parts, 2, NULL, NULL, 0, NULL));
    CHECK(swiglu_forward(NULL, 0, 64, NULL, NULL, NULL));
    CHECK(swiglu_backward(NULL, NULL, 0, 64, NULL, NULL, NULL, 0, NULL));
    CHECK(cudaDeviceSynchronize());
    verdict(true, "no rows", 0, 64, "");
    verdict(quantise_to_operand(NULL, 1, parts, 2, NULL, NULL, 4, NULL) != 0 &&
                swiglu_forward(NULL, 1, 12, NULL, NULL, NULL) != 0 &&
                scales_transpose(NULL, 5, 64, NULL, 4, NULL) != 0,
            "shapes outside the contracts are refused", 1, 12, "taken");
}

int main(int argc, char **argv)
{
    const int columns[] = {1, 7, 8, 100, 128, 200, 264, 1000, 2048, 2050, 6144, 16384};
    bool brief = argc > 1 && !strcmp(argv[1], "--small");
    int devices = 0;

    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("1..0 # SKIP no GPU\n");
        return 0;
    }
    OK(ops_cpu_create(&model, NUMERICS_FP8, NULL, &cpu, &rows_error));
    cuda.table.model = &model;
    CHECK(cudaStreamCreateWithFlags(&cuda.stream, cudaStreamNonBlocking));
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        for (int rows = 1; rows <= (brief ? 9 : 137); rows = rows * 3 + 6) {
            check_quantise(rows, columns[i]);
            check_norm(rows, columns[i], rows == 1);
            check_norm(rows, columns[i], rows != 1);
        }
    // Several rows for each thread block.
    check_norm(3001, 1000, true);
    check_norm(2500, 70, false);
    check_quantise(2050, 264);
    check_embed(1, 8);
    check_embed(301, 2048);
    check_parts(9, (int[]){128, 128, 256}, 3);
    check_parts(33, (int[]){136, 64, 200}, 3);
    check_parts(130, (int[]){1024, 77}, 2);
    check_parts(5, (int[]){60}, 1);
    check_rope(1, 1, 1, 128);
    check_rope(37, 32, 4, 128);
    check_rope(9, 5, 5, 64);
    check_rope(131, 14, 2, 64);
    check_swiglu(1, 8, false);
    check_swiglu(37, 768, true);
    check_swiglu(130, 200, false);
    check_swiglu(9, 2560, false);
    check_empty_and_refused();
    if (argc > 1 && !strcmp(argv[1], "--time"))
        time_rows(&cuda, &model);
    ops_destroy(cpu);
    printf("1..%d\n", passed + failed);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
