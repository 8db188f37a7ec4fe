// SPDX-License-Identifier: Apache-2.0
// Weights made on the device against the host's, bit for bit.
#include "gpu_fixture.h"

#include "weights/synth.h"

#include <string.h>

static size_t blocks(size_t n)
{
    return (n + FP8_BLOCK - 1) / FP8_BLOCK;
}

// Rows [first, first + rows) of a projection of `all` rows.
static void codes_case(struct gpu *g, size_t all, size_t first, size_t rows, size_t cols)
{
    struct synth s = synth_open(7, "model.layers.3.mlp.experts.5.up_proj.weight", all, cols);
    size_t grid = blocks(rows) * blocks(cols);
    uint8_t *expected, *ours, *device = gpu_alloc(g, rows * cols);
    float *expected_scales, *our_scales, *scales = gpu_alloc(g, grid * sizeof *scales);

    ALLOC(rows * cols, expected);
    ALLOC(rows * cols, ours);
    ALLOC(grid, expected_scales);
    ALLOC(grid, our_scales);
    synth_codes(&s, first, rows, expected, expected_scales);
    OK(g, g->ops->make_codes(g->ops, &s, first, rows, device, scales, &g->e));
    gpu_read(g, ours, device, rows * cols);
    gpu_read(g, our_scales, scales, grid * sizeof *scales);
    report(!memcmp(ours, expected, rows * cols) &&
               !memcmp(our_scales, expected_scales, grid * sizeof *scales),
           "codes: rows %zu to %zu of %zu, %zu columns: the host's bits", first, first + rows, all,
           cols);
    free(our_scales);
    free(expected_scales);
    free(ours);
    free(expected);
}

static void values_case(struct gpu *g, const char *name, size_t all, size_t first, size_t rows,
                        size_t cols)
{
    struct synth s = synth_open(7, name, all, cols);
    size_t count = rows * cols, differ = 0;
    uint16_t *expected, *ours, *device = gpu_alloc(g, count * sizeof *device);
    float *wide, *device_wide = gpu_alloc(g, count * sizeof *device_wide);

    ALLOC(count, expected);
    ALLOC(count, ours);
    ALLOC(count, wide);
    synth_bf16(&s, first, rows, expected);
    OK(g, g->ops->make_values(g->ops, &s, first, rows, false, device, &g->e));
    OK(g, g->ops->make_values(g->ops, &s, first, rows, true, device_wide, &g->e));
    gpu_read(g, ours, device, count * sizeof *ours);
    gpu_read(g, wide, device_wide, count * sizeof *wide);
    for (size_t i = 0; i < count; i++)
        differ +=
            ours[i] != expected[i] || float_bits(wide[i]) != float_bits(bf16_to_float(expected[i]));
    report(differ == 0, "%s: rows %zu to %zu, %zu columns: the host's bits, %zu differ", name,
           first, first + rows, cols, differ);
    free(wide);
    free(ours);
    free(expected);
}

int main(int argc, char **argv)
{
    static const size_t widths[] = {1, 7, 64, 127, 128, 129, 200, 768, 2048, 2051};
    bool small = argc > 1 && !strcmp(argv[1], "--small");
    size_t count = sizeof widths / sizeof *widths - (small ? 3 : 0);
    struct model model = {.hidden = 128};
    int devices = 0;
    struct gpu g;

    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("1..0 # SKIP no GPU\n");
        return 0;
    }
    gpu_open(&g, &model);
    for (size_t i = 0; i < count; i++) {
        codes_case(&g, 700, 0, 700, widths[i]);
        codes_case(&g, 700, 256, 130, widths[i]);
        values_case(&g, "lm_head.weight", 300, 17, 200, widths[i]);
        values_case(&g, "model.norm.weight", 1, 0, 1, widths[i]);
    }
    gpu_close(&g);
    printf("1..%d\n%d passed, %d failed, 0 skipped\n", passed + failed, passed, failed);
    return failed > 0;
}
