// SPDX-License-Identifier: Apache-2.0
// GPUs the trainer runs on. Peaks without sparsity and bandwidths are of NVIDIA's data sheets for
// each product; NVLink's figure there counts both directions.
#include "job/gpus.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#define GIB      (1ull << 30)
#define PCIE5    55.5e9 // measured on an H200, pinned memory, 1 GiB
#define SXM_FP8  1979e12
#define SXM_BF16 989e12

static const struct gpu gpus[] = {
    {"H200", 141 * 1000000000ull, SXM_FP8, SXM_BF16, 4.8e12, 450e9, PCIE5},
    {"H100", 80 * GIB, SXM_FP8, SXM_BF16, 3.35e12, 450e9, PCIE5},
    {"H100-PCIe", 80 * GIB, 1513e12, 756e12, 2.0e12, 50e9, PCIE5},
    {"H100-NVL", 94 * 1000000000ull, 1671e12, 835e12, 3.9e12, 300e9, PCIE5},
    {"H800", 80 * GIB, SXM_FP8, SXM_BF16, 3.35e12, 200e9, PCIE5},
    {"H20", 96 * GIB, 296e12, 148e12, 4.0e12, 450e9, PCIE5},
};

int gpu_find(const char *name, const struct gpu **out, struct fl_error *e)
{
    char names[256] = "";

    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++) {
        if (strcasecmp(name, gpus[i].name) == 0) {
            *out = &gpus[i];
            return 0;
        }
        strcat(names, i ? ", " : "");
        strcat(names, gpus[i].name);
    }
    return error_set(e, -EINVAL, "GPU '%.40s' is not known: use one of %s", name, names);
}
