// SPDX-License-Identifier: Apache-2.0
// Cross entropy and optimizer on the device against fp64 and the CPU's operations; with --time,
// their rates at the 30B shapes.
#include "gpu_fixture.h"

#include "ops/cuda/training.h"

static void entropy_case(int rows, int vocab, double spread, bool gradient)
{
    const struct model model = {.vocab = vocab};
    size_t count = (size_t)rows * (size_t)vocab;
    double scale = 1.0 / 3000, before = 3.5, expected_loss = before, loss, again, worst = 0;
    float *logits = random_floats(count, (float)spread), *ours;
    int32_t *targets;
    double *expected;
    struct gpu g;
    void *device, *copy, *target, *sum;

    gpu_open(&g, &model);
    ALLOC(count, ours);
    ALLOC(count, expected);
    ALLOC((size_t)rows, targets);
    for (int r = 0; r < rows; r++) {
        const float *row = logits + (size_t)r * (size_t)vocab;
        double total = 0, top = -INFINITY;
        targets[r] = r % 5 == 3 ? -1 : (int32_t)(random_u32() % (uint32_t)vocab);
        if (r == 1)
            targets[r] = vocab - 1;
        for (int v = 0; v < vocab; v++)
            top = fmax(top, (double)row[v]);
        for (int v = 0; v < vocab; v++)
            total += exp((double)row[v] - top);
        for (int v = 0; v < vocab && targets[r] >= 0; v++)
            expected[(size_t)r * (size_t)vocab + (size_t)v] = (double)bf16_round(
                (float)(scale * (exp((double)row[v] - top) / total - (v == targets[r]))));
        if (targets[r] >= 0)
            expected_loss += log(total) + top - (double)row[targets[r]];
    }
    device = gpu_copy(&g, logits, count * sizeof *logits);
    copy = gpu_copy(&g, logits, count * sizeof *logits);
    target = gpu_copy(&g, targets, (size_t)rows * sizeof *targets);
    sum = gpu_copy(&g, &before, sizeof before);
    OK(&g,
       cuda_cross_entropy(g.ops, device, target, rows, vocab > 0 && gradient, scale, sum, &g.e));
    gpu_read(&g, &loss, sum, sizeof loss);
    gpu_read(&g, ours, device, count * sizeof *ours);
    report(fabs(loss - expected_loss) <= 2e-7 * fabs(expected_loss),
           "cross entropy %d x %d, spread %g: loss, error %.1e", rows, vocab, spread,
           fabs(loss - expected_loss) / fabs(expected_loss));
    if (gradient) {
        for (int r = 0; r < rows; r++)
            worst = fmax(worst, frobenius(ours + (size_t)r * (size_t)vocab,
                                          expected + (size_t)r * (size_t)vocab, (size_t)vocab));
        report(worst <= 5e-4, "cross entropy %d x %d: gradient, worst row's error %.1e", rows,
               vocab, worst);
    } else {
        report(!memcmp(ours, logits, count * sizeof *ours), "logits are left alone");
    }
    RUNTIME(cudaMemcpy(sum, &before, sizeof before, cudaMemcpyHostToDevice));
    OK(&g, cuda_cross_entropy(g.ops, copy, target, rows, gradient, scale, sum, &g.e));
    gpu_read(&g, &again, sum, sizeof again);
    gpu_read(&g, logits, copy, count * sizeof *ours);
    report(!memcmp(ours, logits, count * sizeof *ours) && !memcmp(&loss, &again, sizeof loss),
           "the same twice");
    gpu_close(&g);
    free(targets);
    free(expected);
    free(ours);
    free(logits);
}

static void entropy_refusal(void)
{
    const struct model model = {.vocab = 1 << 20};
    struct gpu g;

    gpu_open(&g, &model);
    report(cuda_cross_entropy(g.ops, NULL, NULL, 0, true, 1, NULL, &g.e) == -EINVAL &&
               strstr(g.e.text, "a vocabulary of 1048576"),
           "refused: %s", g.e.text);
    gpu_close(&g);
}

static void squares_case(size_t count, size_t offset)
{
    const struct model model = {0};
    float *x = random_floats(count + offset, 1);
    double expected = 0, ours, again;
    struct gpu g;
    float *device;

    gpu_open(&g, &model);
    device = gpu_copy(&g, x, (count + offset) * sizeof *x);
    for (size_t i = offset; i < offset + count; i++)
        expected += (double)x[i] * (double)x[i];
    OK(&g, cuda_sum_squares(g.ops, device + offset, count, &ours, &g.e));
    OK(&g, cuda_sum_squares(g.ops, device + offset, count, &again, &g.e));
    report(fabs(ours - expected) <= 1e-12 * expected && !memcmp(&ours, &again, sizeof ours),
           "sum of %zu squares from %zu on", count, offset);
    gpu_close(&g);
    free(x);
}

static void scale_case(size_t count, size_t offset)
{
    const struct model model = {0};
    float *x = random_floats(count + offset, 1), *ours;
    struct gpu g;
    float *device;

    ALLOC(count + offset, ours);
    gpu_open(&g, &model);
    device = gpu_copy(&g, x, (count + offset) * sizeof *x);
    OK(&g, cuda_scale(g.ops, device + offset, count, 0.3, &g.e));
    OK(&g, g.cpu->scale(g.cpu, x + offset, count, 0.3, &g.e));
    gpu_read(&g, ours, device, (count + offset) * sizeof *x);
    report(!memcmp(ours, x, (count + offset) * sizeof *x), "%zu values from %zu on scaled", count,
           offset);
    gpu_close(&g);
    free(ours);
    free(x);
}

// Five steps; all four arrays begin offset elements behind a 16-byte boundary.
static void adamw_case(size_t count, size_t offset)
{
    const struct model model = {0};
    struct adamw adamw = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1};
    float *arrays[4], *device[4], *ours;
    double *expected, worst = 0;
    struct gpu g;

    gpu_open(&g, &model);
    ALLOC(count, expected);
    ALLOC(count, ours);
    for (int i = 0; i < 4; i++) {
        arrays[i] = random_floats(count + offset, i < 2 ? 0.02f : 0);
        device[i] = gpu_copy(&g, arrays[i], (count + offset) * sizeof(float));
        device[i] += offset;
    }
    for (adamw.step = 1; adamw.step <= 5; adamw.step++) {
        const struct moment first = {.values = device[2]}, second = {.values = device[3]};
        const struct moment host_first = {.values = arrays[2] + offset};
        const struct moment host_second = {.values = arrays[3] + offset};
        OK(&g, cuda_adamw(g.ops, &adamw, 0.7, count, device[0], device[1], &first, &second, &g.e));
        OK(&g, g.cpu->adamw(g.cpu, &adamw, 0.7, count, arrays[0] + offset, arrays[1] + offset,
                            &host_first, &host_second, &g.e));
    }
    for (int i = 0; i < 4; i++) {
        gpu_read(&g, ours, device[i], count * sizeof *ours);
        for (size_t j = 0; j < count; j++)
            expected[j] = (double)arrays[i][offset + j];
        worst = fmax(worst, frobenius(ours, expected, count));
        free(arrays[i]);
    }
    report(worst <= 3e-7, "AdamW of %zu from %zu on, error %.1e", count, offset, worst);
    gpu_close(&g);
    free(expected);
    free(ours);
}

static struct moment host_moment(enum storage type, bool root, size_t count)
{
    struct moment m = {.type = type, .root = root};

    m.values = calloc(moment_values_bytes(type, count) + 1, 1);
    m.scales = calloc(moment_scales_bytes(type, count) + 1, 1);
    return m;
}

static struct moment device_moment(struct gpu *g, const struct moment *m, size_t count)
{
    struct moment copy = *m;

    copy.values = gpu_copy(g, m->values, moment_values_bytes(m->type, count) + 1);
    copy.scales = gpu_copy(g, m->scales, moment_scales_bytes(m->type, count) + 1);
    return copy;
}

// Five steps of narrow moments beside the CPU's: now and then a value rounds the other way.
static void stored_case(size_t count, enum storage first_type, enum storage second_type)
{
    static const char *const names[] = {"fp32", "fp16", "bf16", "fp8"};
    const struct model model = {0};
    struct adamw adamw = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    struct moment host[2] = {host_moment(first_type, false, count),
                             host_moment(second_type, true, count)};
    struct moment on_device[2];
    float *params = random_floats(count, 0.02f), *ours, *device_params;
    double *expected, moved = 0, error = 0;
    struct gpu g;

    gpu_open(&g, &model);
    ALLOC(count, expected);
    ALLOC(count, ours);
    device_params = gpu_copy(&g, params, count * sizeof *params);
    for (int i = 0; i < 2; i++)
        on_device[i] = device_moment(&g, &host[i], count);
    for (size_t i = 0; i < count; i++)
        expected[i] = (double)params[i];
    for (adamw.step = 1; adamw.step <= 5; adamw.step++) {
        float *grads = random_floats(count, 0.02f);
        float *device_grads = gpu_copy(&g, grads, count * sizeof *grads);
        OK(&g, cuda_adamw(g.ops, &adamw, 0.7, count, device_params, device_grads, &on_device[0],
                          &on_device[1], &g.e));
        OK(&g, g.cpu->adamw(g.cpu, &adamw, 0.7, count, params, grads, &host[0], &host[1], &g.e));
        free(grads);
    }
    gpu_read(&g, ours, device_params, count * sizeof *ours);
    for (size_t i = 0; i < count; i++) {
        moved += pow((double)params[i] - expected[i], 2);
        error += pow((double)ours[i] - (double)params[i], 2);
    }
    report(error <= 4e-6 * moved, "AdamW of %zu, moments %s and %s, error %.1e", count,
           names[first_type], names[second_type], sqrt(error / (moved > 0 ? moved : 1)));
    gpu_close(&g);
    for (int i = 0; i < 2; i++) {
        free(host[i].values);
        free(host[i].scales);
    }
    free(params);
    free(expected);
    free(ours);
}

struct timed {
    float *a[8], *b[8], *c[8], *d[8];
    int32_t *targets;
    double *sum;
    size_t count;
    int rows;
};

static void entropy_call(struct gpu *g, void *context, int set)
{
    struct timed *t = context;

    OK(g, cuda_cross_entropy(g->ops, t->a[set], t->targets, t->rows, true, 1e-4, t->sum, &g->e));
}

static void squares_call(struct gpu *g, void *context, int set)
{
    struct timed *t = context;
    double sum;

    OK(g, cuda_sum_squares(g->ops, t->a[set], t->count, &sum, &g->e));
}

static void adamw_call(struct gpu *g, void *context, int set)
{
    const struct adamw adamw = {.lr = 1e-6, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .step = 3};
    struct timed *t = context;

    const struct moment first = {.values = t->c[set]}, second = {.values = t->d[set]};

    OK(g, cuda_adamw(g->ops, &adamw, 1, t->count, t->a[set], t->b[set], &first, &second, &g->e));
}

static void time_all(void)
{
    const struct model model = {.vocab = 151936};
    struct timed t = {.rows = 256, .count = 32u << 20};
    size_t count = (size_t)t.rows * (size_t)model.vocab;
    float *logits = random_floats(count, 3);
    struct gpu g;
    double us;

    gpu_open(&g, &model);
    ALLOC((size_t)t.rows, t.targets);
    for (int r = 0; r < t.rows; r++)
        t.targets[r] = (int32_t)(random_u32() % (uint32_t)model.vocab);
    t.targets = gpu_copy(&g, t.targets, (size_t)t.rows * sizeof *t.targets);
    t.sum = gpu_alloc(&g, sizeof *t.sum);
    for (int i = 0; i < 2; i++)
        t.a[i] = gpu_copy(&g, logits, count * sizeof *logits);
    us = gpu_time(&g, 2, entropy_call, &t);
    printf("# cross entropy with gradient 256 x 151936: %.1f us, %.0f GB/s\n", us,
           (double)count * 8 / us * 1e-3);
    for (int i = 0; i < 2; i++) {
        t.a[i] = gpu_copy(&g, logits, t.count * sizeof *logits);
        t.b[i] = gpu_copy(&g, logits, t.count * sizeof *logits);
        t.c[i] = gpu_copy(&g, logits, t.count * sizeof *logits);
        t.d[i] = gpu_copy(&g, logits, t.count * sizeof *logits);
    }
    us = gpu_time(&g, 2, squares_call, &t);
    printf("# sum of 32 Mi squares, waited for: %.1f us, %.0f GB/s\n", us,
           (double)t.count * 4 / us * 1e-3);
    us = gpu_time(&g, 2, adamw_call, &t);
    printf("# AdamW of 32 Mi: %.1f us, %.0f GB/s\n", us, (double)t.count * 28 / us * 1e-3);
    gpu_close(&g);
    free(logits);
}

int main(int argc, char **argv)
{
    static const size_t counts[] = {0, 1, 3, 4, 5, 1000, 70001, 3000003};
    bool small = argc > 1 && !strcmp(argv[1], "--small");
    int devices = 0;

    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("1..0 # SKIP no GPU\n");
        return 0;
    }
    for (int a = STORAGE_FP32; a <= STORAGE_FP8; a++)
        for (int b = STORAGE_FP32; b <= STORAGE_FP8; b++)
            for (size_t count = 1; count <= 100003; count = count * 40 + 3)
                stored_case(count, (enum storage)a, (enum storage)b);
    entropy_case(0, 100, 1, true);
    entropy_case(1, 5, 1, true);
    entropy_case(7, 1, 1, true);
    entropy_case(7, 1001, 3, true);
    entropy_case(64, 4096, 1000, true);
    entropy_case(9, 151936, 3, true);
    entropy_case(3, 393215, 3, true);
    entropy_case(9, 4098, 3, false);
    entropy_refusal();
    for (size_t i = 0; i < sizeof counts / sizeof *counts - small; i++)
        for (size_t offset = 0; offset < 4; offset += 3) {
            squares_case(counts[i], offset);
            scale_case(counts[i], offset);
            adamw_case(counts[i], offset);
        }
    if (argc > 1 && !strcmp(argv[1], "--time"))
        time_all();
    printf("1..%d\n", passed + failed);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
