// SPDX-License-Identifier: Apache-2.0
// Another order of the same GPUs, where the given one tears expert-parallel groups apart.
#include "place/regroup.h"

#include <string.h>

static bool same(const struct island *a, const struct island *b)
{
    return a->kind == b->kind && a->number == b->number;
}

static bool crosses(const struct island *islands, const uint32_t *global, int ranks, int ep,
                    const int *gpus)
{
    for (int i = 0; i < ranks; i++)
        for (int k = 0; k < i; k++)
            if (global[i] / (uint32_t)ep == global[k] / (uint32_t)ep &&
                !same(&islands[gpus[i]], &islands[gpus[k]]))
                return true;
    return false;
}

bool regroup(const struct island *islands, const uint32_t *global, int ranks, int ep, int *gpus)
{
    int sorted[DEVICES_MAX], count = 0;

    if (ranks > DEVICES_MAX || ep < 2)
        return false;
    for (int i = 0; i < ranks; i++) {
        if (gpus[i] < 0 || islands[gpus[i]].kind == ISLAND_UNKNOWN)
            return false;
        for (int k = 0; k < i; k++)
            if (gpus[k] == gpus[i])
                return false;
    }
    if (!crosses(islands, global, ranks, ep, gpus))
        return false;
    for (int i = 0; i < ranks; i++) { // islands in the order of their first GPUs
        bool met = false;
        for (int k = 0; k < i; k++)
            met |= same(&islands[gpus[k]], &islands[gpus[i]]);
        for (int k = i; k < ranks && !met; k++)
            if (same(&islands[gpus[k]], &islands[gpus[i]]))
                sorted[count++] = gpus[k];
    }
    if (crosses(islands, global, ranks, ep, sorted))
        return false;
    memcpy(gpus, sorted, (size_t)ranks * sizeof *gpus);
    return true;
}
