// SPDX-License-Identifier: Apache-2.0
// GPUs that plans are made for, and what connects them.
//
// Peaks without sparsity and bandwidths are of NVIDIA's data sheets for each product; NVLink's
// figure there counts both directions. total_mib is nvidia-smi's; visible_mib is the least that
// CUDA's cudaMemGetInfo was seen to give as the total, which drivers since R510 keep below
// nvidia-smi's (its "Reserved", page tables and row remapping among it):
//   H100 SXM, PCIe, H800  81559 MiB, 79.10 GiB (torch's "total capacity of 79.10 GiB", 79.25 older)
//   H200                 143771 MiB, 139.72 GiB (likewise; 139.80 most often)
//   H100 NVL              95830 MiB, 93.00 GiB
//   H20                   97871 MiB, 95.00 GiB
//   A100 80 GB            81920 MiB, 81037 MiB (81920 with old drivers)
//   A100 40 GB            40960 MiB, 39.38 GiB
//   L40S                  46068 MiB, 44.39 GiB
//   B200                 183359 MiB, 178.35 GiB
#include "job/gpus.h"

#include "base/bytes.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define SXM_FP8   1979e12
#define SXM_BF16  989e12
#define PCIE5     55.5e9 // measured on an H200, pinned memory, 1 GiB
#define PCIE4     26e9   // half of it, less a little: 64 GB/s in both directions
#define PCIE_PEER 50e9   // between GPUs, through host bridges, of PCIe 5
#define LINK_USED 0.80   // of a link's peak, by large messages

static const struct gpu gpus[] = {
    {"H200", 143771, 143073, SXM_FP8, SXM_BF16, 4.8e12, "NVLink 4", 450e9, 0, PCIE5, true},
    {"H100", 81559, 80998, SXM_FP8, SXM_BF16, 3.35e12, "NVLink 4", 450e9, 0, PCIE5, true},
    {"H100-PCIe", 81559, 80998, 1513e12, 756e12, 2.0e12, "PCIe 5", PCIE_PEER, 0, PCIE5, true},
    {"H100-NVL", 95830, 95232, 1671e12, 835e12, 3.9e12, "NVLink 4 bridge", 300e9, 2, PCIE5, true},
    {"H800", 81559, 80998, SXM_FP8, SXM_BF16, 3.35e12, "NVLink 4", 200e9, 0, PCIE5, true},
    {"H20", 97871, 97280, 296e12, 148e12, 4.0e12, "NVLink 4", 450e9, 0, PCIE5, true},
    {"A100", 81920, 81037, 0, 312e12, 2.039e12, "NVLink 3", 300e9, 0, PCIE4, false},
    {"A100-PCIe", 81920, 81037, 0, 312e12, 1.935e12, "PCIe 4", PCIE4, 0, PCIE4, false},
    {"A100-40GB", 40960, 40325, 0, 312e12, 1.555e12, "NVLink 3", 300e9, 0, PCIE4, false},
    {"L40S", 46068, 45455, 733e12, 362e12, 0.864e12, "PCIe 4", PCIE4, 0, PCIE4, false},
    {"B200", 183359, 182630, 4500e12, 2250e12, 8.0e12, "NVLink 5", 900e9, 0, PCIE5, false},
};

// Rates of one port, which each GPU is assumed to have for itself; TCP gets less out of it than
// RDMA.
static const struct {
    const char *name;
    double rate, used;
} networks[] = {
    {"InfiniBand-HDR", 25e9, 0.8}, {"InfiniBand-NDR", 50e9, 0.8}, {"InfiniBand-XDR", 100e9, 0.8},
    {"RoCE-200", 25e9, 0.8},       {"RoCE-400", 50e9, 0.8},       {"Ethernet-25", 3.125e9, 0.6},
    {"Ethernet-100", 12.5e9, 0.6},
};

#define COUNT(list) (sizeof list / sizeof *list)

uint64_t gpu_visible_bytes(const struct gpu *gpu)
{
    return gpu->visible_mib << 20;
}

double gpu_link(const struct gpu *gpu, const struct fabric *fabric, int ranks, const char **name)
{
    bool joined = !gpu->link_gpus || ranks <= gpu->link_gpus;
    double link = joined ? gpu->link : PCIE_PEER;

    *name = joined ? gpu->link_name : "PCIe 5";
    if (ranks <= fabric->node_gpus)
        return link * LINK_USED;
    if (fabric->network * fabric->network_used >= link * LINK_USED)
        return link * LINK_USED;
    *name = fabric->network_name ? fabric->network_name : "the network";
    return fabric->network * fabric->network_used;
}

static void name_add(char *names, size_t size, const char *name)
{
    size_t used = strlen(names);

    snprintf(names + used, size - used, "%s%s", used ? ", " : "", name);
}

int gpu_find(const char *name, const struct gpu **out, struct fl_error *e)
{
    char names[256] = "";

    for (size_t i = 0; i < COUNT(gpus); i++) {
        if (strcasecmp(name, gpus[i].name) == 0) {
            *out = &gpus[i];
            return 0;
        }
        name_add(names, sizeof names, gpus[i].name);
    }
    return error_set(e, -EINVAL, "GPU '%.40s' is not known: use one of %s", name, names);
}

int network_find(const char *text, struct fabric *fabric, struct fl_error *e)
{
    char names[256] = "";
    uint64_t bytes;
    int rc;

    for (size_t i = 0; i < COUNT(networks); i++) {
        if (strcasecmp(text, networks[i].name) == 0) {
            fabric->network_name = networks[i].name;
            fabric->network = networks[i].rate;
            fabric->network_used = networks[i].used;
            return 0;
        }
        name_add(names, sizeof names, networks[i].name);
    }
    if (isalpha((unsigned char)*text))
        return error_set(e, -EINVAL,
                         "network '%.40s' is not known: use one of %s, or bytes a second as 50GB",
                         text, names);
    rc = bytes_parse(text, &bytes, e);
    if (rc < 0)
        return rc;
    if (!bytes)
        return error_set(e, -EINVAL, "must be above 0");
    fabric->network_name = NULL;
    fabric->network = (double)bytes;
    fabric->network_used = LINK_USED;
    return 0;
}
