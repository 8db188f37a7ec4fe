// SPDX-License-Identifier: Apache-2.0
// Which GPU is a local rank's, from the lists Slurm and CUDA know.
#include "place/gpu.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

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

bool gpu_hidden(const struct gpu_view *view)
{
    int count = gpu_count(view->visible);

    return view->local_ranks > 1 && count && count < view->on_node;
}

// Neighbouring ranks share a GPU when there are more ranks than GPUs. Of GPUs that only some ranks
// see, these take one after another.
static int entry_of_rank(const struct gpu_view *view, uint32_t local_rank)
{
    uint32_t count = (uint32_t)gpu_count(view->visible);

    if (gpu_hidden(view))
        return (int)(local_rank % count);
    if (view->local_ranks <= count)
        return (int)local_rank;
    return (int)((uint64_t)local_rank * count / view->local_ranks);
}

struct gpu_choice gpu_choose(const struct gpu_view *view)
{
    struct gpu_choice choice = {.count = gpu_count(view->visible)};
    const char *entry;
    int length;

    if (!choice.count || view->local_rank >= view->local_ranks)
        return (struct gpu_choice){0};
    choice.device = entry_of_rank(view, view->local_rank);
    entry = list_entry(view->visible, choice.device, &length);
    snprintf(choice.name, sizeof choice.name, "%.*s", length, entry);
    choice.mig = !strncmp(choice.name, "MIG-", 4);
    return choice;
}

int gpu_mig_refuse(const char *name, uint32_t ep, struct fl_error *e)
{
    return error_set(e, -EINVAL,
                     "%s: MIG instances cannot reach each other, expert parallel %u "
                     "needs whole GPUs; request them or use expert_parallel: 1",
                     name, ep);
}

// A whole entry that is a number below 1024, else -1.
static int entry_number(const char *entry, int length)
{
    char *rest;
    long number;

    if (!length || !isdigit((unsigned char)*entry))
        return -1;
    number = strtol(entry, &rest, 10);
    return rest == entry + length && number < 1024 ? (int)number : -1;
}

// The device of one of Slurm's own numbers, which are those of the device files.
static int device_of_number(const struct device *devices, int count, int number)
{
    bool told = false;

    if (number < 0)
        return GPU_NONE;
    for (int i = 0; i < count; i++) {
        if (devices[i].minor == number)
            return i;
        told |= devices[i].minor >= 0;
    }
    return !told && number < count ? number : GPU_NONE;
}

// The number at place among the sorted numbers of a list; -1: not there.
static int number_sorted(const char *list, int place)
{
    int count = gpu_count(list);

    for (int i = 0; i < count; i++) {
        int length, below = 0, number;
        const char *entry = list_entry(list, i, &length);
        number = entry_number(entry, length);
        for (int k = 0; k < count; k++) {
            entry = list_entry(list, k, &length);
            below += entry_number(entry, length) < number;
        }
        if (number >= 0 && below == place)
            return number;
    }
    return -1;
}

// Whether a list is 0,1,...,n-1 in any order.
static bool counts_from_zero(const char *list)
{
    int count = gpu_count(list);

    for (int i = 0; i < count; i++)
        if (number_sorted(list, i) != i)
            return false;
    return count > 0;
}

// A device cgroup hides the others, and CUDA counts what is left.
static int device_of_index(const struct gpu_view *view, const struct device *devices, int count,
                           int index)
{
    int open = 0;

    for (int i = 0; i < count; i++)
        open += devices[i].open;
    if (open == count && counts_from_zero(view->visible) && !counts_from_zero(view->allocated) &&
        gpu_count(view->visible) == gpu_count(view->allocated))
        return device_of_number(devices, count, number_sorted(view->allocated, index));
    for (int i = 0; i < count; i++)
        if (devices[i].open && index-- == 0)
            return i;
    return GPU_NONE;
}

// CUDA takes the beginning of a UUID too, when it is only one GPU's.
static int device_of_uuid(const struct device *devices, int count, const char *uuid, int length)
{
    int found = GPU_NONE;

    for (int i = 0; i < count; i++) {
        if (strncasecmp(devices[i].uuid, uuid, (size_t)length) != 0)
            continue;
        if (found != GPU_NONE)
            return GPU_NONE;
        found = i;
    }
    return found;
}

static int device_of_entry(const struct gpu_view *view, const struct device *devices, int count,
                           const char *entry, int length)
{
    int index = entry_number(entry, length);

    if (index >= 0)
        return device_of_index(view, devices, count, index);
    if (!strncmp(entry, "MIG-GPU-", 8)) // MIG-GPU-uuid/instance/compute
        return device_of_uuid(devices, count, entry + 4, (int)strcspn(entry + 4, "/,"));
    if (length > 4 && !strncmp(entry, "GPU-", 4))
        return device_of_uuid(devices, count, entry, length);
    for (int i = 0; i < count; i++)
        if ((int)strlen(devices[i].pci) == length &&
            !strncasecmp(devices[i].pci, entry, (size_t)length))
            return i;
    return GPU_NONE;
}

int gpu_of_choice(const struct gpu_view *view, const struct device *devices, int count,
                  const struct gpu_choice *choice)
{
    return device_of_entry(view, devices, count, choice->name, (int)strlen(choice->name));
}

// What Slurm's binding says of a rank's GPU, as one of Slurm's numbers; -1: nothing.
static int number_bound(const struct gpu_view *view, int count, uint32_t local_rank)
{
    const char *map = strstr(view->bind, "gpu:map_gpu:");
    int length;

    if (map) {
        const char *list = map + strlen("gpu:map_gpu:"), *entry;
        int entries = gpu_count(list);
        if (!entries)
            return -1;
        entry = list_entry(list, (int)(local_rank % (uint32_t)entries), &length);
        length = (int)strspn(entry, "0123456789");
        return entry_number(entry, length);
    }
    if (strstr(view->bind, "gpu:per_task:") &&
        view->on_node == count) { // the whole node's, dealt in order
        uint32_t share = (uint32_t)gpu_count(view->visible);
        int64_t number = (int64_t)share * local_rank + local_rank % share;
        return number < count ? (int)number : -1;
    }
    return -1;
}

void gpu_assign(const struct gpu_view *view, const struct device *devices, int count, int *gpus)
{
    bool told;
    int own;

    for (uint32_t i = 0; i < view->local_ranks; i++) {
        const char *entry;
        int length;
        gpus[i] = GPU_NONE;
        if (!*view->visible)
            continue;
        entry = list_entry(view->visible, entry_of_rank(view, i), &length);
        gpus[i] = device_of_entry(view, devices, count, entry, length);
    }
    if (!gpu_hidden(view))
        return;
    // Slurm's words are believed for the others where they are right for this task.
    own = gpus[view->local_rank];
    told = own >= 0 &&
           own == device_of_number(devices, count, number_bound(view, count, view->local_rank));
    for (uint32_t i = 0; i < view->local_ranks; i++)
        if (i != view->local_rank)
            gpus[i] =
                told ? device_of_number(devices, count, number_bound(view, count, i)) : GPU_HIDDEN;
}
