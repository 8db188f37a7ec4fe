// SPDX-License-Identifier: Apache-2.0
// Which GPU of a list is a local rank's.
#include "place/gpu.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int gpu_count(const char *list)
{
    int count = *list != 0;

    for (; *list; list++)
        count += *list == ',';
    return count;
}

// Start of the entry at index, and its length; index must be below gpu_count.
static const char *list_entry(const char *list, int index, int *length)
{
    while (index-- > 0)
        list = strchr(list, ',') + 1;
    *length = (int)strcspn(list, ",");
    return list;
}

// Neighbouring ranks share a GPU when there are more ranks than GPUs.
static int entry_of_rank(int count, uint32_t local_rank, uint32_t local_ranks)
{
    if (local_ranks <= (uint32_t)count)
        return (int)local_rank;
    return (int)((uint64_t)local_rank * (uint64_t)count / local_ranks);
}

struct gpu_choice gpu_choose(const char *visible, uint32_t local_rank, uint32_t local_ranks)
{
    struct gpu_choice choice = {.count = gpu_count(visible)};
    const char *entry;
    int length;

    if (!choice.count || local_rank >= local_ranks)
        return (struct gpu_choice){0};
    choice.device = entry_of_rank(choice.count, local_rank, local_ranks);
    entry = list_entry(visible, choice.device, &length);
    snprintf(choice.name, sizeof choice.name, "%.*s", length, entry);
    choice.mig = !strncmp(choice.name, "MIG-", 4);
    return choice;
}

int gpu_index(const char *indices, uint32_t local_rank, uint32_t local_ranks)
{
    int count = gpu_count(indices), length;
    const char *entry;
    char *rest;
    long index;

    if (!count || local_rank >= local_ranks)
        return -1;
    entry = list_entry(indices, entry_of_rank(count, local_rank, local_ranks), &length);
    if (!isdigit((unsigned char)*entry))
        return -1;
    index = strtol(entry, &rest, 10);
    return rest == entry + length && index < 1024 ? (int)index : -1;
}
