// SPDX-License-Identifier: Apache-2.0
// Times of linear layers, experts and head at the shapes of a 30B model.
#include "products_fixture.h"

#include "transpose.h"

#include <stdio.h>
#include <stdlib.h>

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
    int32_t *turns = device_poisoned(lora_gradient_turns(EXPERTS, H, rank) * 4);
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

void products_time(void)
{
    static const int qkv[3] = {4096, 512, 512}, proj[1] = {2048};

    experts_time(16, 0);
    experts_time(128, 0);
    experts_time(16, 0.05);
    linear_time("qkv", 3, qkv, 2048);
    linear_time("proj", 1, proj, 4096);
    head_time();
}
