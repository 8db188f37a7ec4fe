// SPDX-License-Identifier: Apache-2.0
// The least time that work takes on an H200.
#include "floors.h"

#include "rows.h"

#include <math.h>

// Best rates seen on one H200 (driver 580.159) in FLOP/s and bytes/s: DeepGEMM 1x128 by 128x128 at
// 8192^3, cuBLAS at 4096^3, attention forward of this repository and backward of cuDNN over 16384
// tokens, a device copy.
#define RATE_FP8                1261e12
#define RATE_BF16               713e12
#define RATE_ATTENTION_FORWARD  739e12
#define RATE_ATTENTION_BACKWARD 519e12
#define RATE_BYTES              4.25e12

double work_floor_s(struct work w)
{
    double arithmetic = w.fp8 / RATE_FP8 + w.bf16 / RATE_BF16 +
                        w.attention_forward / RATE_ATTENTION_FORWARD +
                        w.attention_backward / RATE_ATTENTION_BACKWARD;

    return fmax(arithmetic, w.bytes / RATE_BYTES);
}

struct work work_bytes(double bytes)
{
    return (struct work){.bytes = bytes};
}

// Bytes of the matrices that rows are multiplied with.
static double matrix_bytes(const struct fp8_matrix *w, const struct group *group)
{
    double used = w->count;

    if (group) {
        used = 0;
        for (int i = 0; i < group->experts; i++)
            used += group->counts[i] > 0;
    }
    return used * (double)w->rows * w->cols;
}

struct work work_forward(const struct fp8_matrix *w, const struct lora *lora,
                         const struct group *group, int rows, double row_bytes)
{
    struct work work = {.fp8 = 2.0 * rows * w->rows * w->cols,
                        .bytes = matrix_bytes(w, group) + rows * row_bytes};

    for (int i = 0; i < lora->count; i++)
        work.bf16 += 2.0 * rows * lora->rank * (w->cols + lora->part[i].rows);
    return work;
}

// dX, and for each adapter S again, dS, dA, dB and its part of dX.
struct work work_backward(const struct fp8_matrix *w, const struct lora *lora,
                          const struct group *group, int rows, bool dx, double row_bytes)
{
    struct work work = {.bytes = rows * row_bytes};
    double groups = group ? group->experts : 1;

    if (dx) {
        work.fp8 = 2.0 * rows * w->rows * w->cols;
        work.bytes += matrix_bytes(w, group);
    }
    for (int i = 0; i < lora->count; i++) {
        int part = lora->part[i].rows;
        work.bf16 += 2.0 * rows * lora->rank * ((dx ? 3.0 : 2.0) * w->cols + 2.0 * part);
        work.bytes += 8.0 * groups * lora->rank * (w->cols + part); // gradients are added to
    }
    return work;
}

static double attention_flops(const struct model *m, const int32_t *starts, int samples)
{
    double pairs = 0; // of a query with a key

    for (int s = 0; s < samples; s++) {
        double length = starts[s + 1] - starts[s];
        pairs += length * length / 2;
    }
    return 4 * pairs * m->heads * m->head_dim;
}

struct work work_attention(const struct model *m, const int32_t *starts, int samples, bool backward)
{
    double flops = attention_flops(m, starts, samples), tokens = starts[samples];
    double q = 2.0 * m->heads * m->head_dim, kv = 2.0 * m->kv_heads * m->head_dim; // bytes

    if (backward) // reads qkv, out and its gradient, writes the gradient of qkv
        return (struct work){.attention_backward = 2.5 * flops, .bytes = tokens * (4 * q + 4 * kv)};
    return (struct work){.attention_forward = flops, .bytes = tokens * (2 * q + 2 * kv)};
}

// Forward and, but for the frozen matrices' own gradients, backward of a linear layer.
static void linear_add(struct work *work, double rows, double out, double in, int rank)
{
    work->fp8 += 4 * rows * out * in;
    work->bf16 += 6 * rows * rank * (out + in);
}

struct work work_model(const struct model *m, const int32_t *starts, int samples, int rank,
                       unsigned targets)
{
    double tokens = starts[samples], slots = tokens * m->top_k, layers = m->layers;
    int q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    struct work w = {.attention_forward = layers * attention_flops(m, starts, samples)};

    w.attention_backward = 2.5 * w.attention_forward;
    linear_add(&w, layers * tokens, q + 2 * kv, m->hidden, targets & LORA_QKV ? rank : 0);
    linear_add(&w, layers * tokens, m->hidden, q, targets & LORA_PROJ ? rank : 0);
    linear_add(&w, layers * slots, 2 * m->expert_width, m->hidden, targets & LORA_FC1 ? rank : 0);
    linear_add(&w, layers * slots, m->hidden, m->expert_width, targets & LORA_FC2 ? rank : 0);
    w.bf16 += 4 * tokens * m->hidden * (layers * m->experts + m->vocab);
    return w;
}
