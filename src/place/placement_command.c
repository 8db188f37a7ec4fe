// SPDX-License-Identifier: Apache-2.0
// `fp8-lora placement`: where ranks would run on this machine, or on one in an XML file.
#include "place/placement_command.h"

#include "base/log.h"
#include "base/memory.h"
#include "place/gpu.h"
#include "place/place.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MOST 1024

struct request {
    const char *xml;  // NULL: this machine
    const char *gpus; // NULL: all
    const char *cpus; // NULL: all
    int ranks, ep;    // ranks 0: one a GPU
};

static void usage(FILE *out)
{
    fputs(
        "usage: fp8-lora placement [--xml FILE] [--gpus LIST] [--cpus LIST] [--ranks N] [--ep N]\n"
        "\n"
        "Prints where the ranks of a node would run: GPU, CPUs, NUMA node, nearest NIC and what\n"
        "the GPUs of an expert-parallel group have between them.\n"
        "\n"
        "  --xml FILE   a topology that lstopo wrote, instead of this machine's\n"
        "  --gpus LIST  the job's GPUs, as CUDA_VISIBLE_DEVICES would name them (default: all)\n"
        "  --cpus LIST  the job's CPUs, for instance 0-15,64-79 (default: all)\n"
        "  --ranks N    ranks on the node (default: one a GPU)\n"
        "  --ep N       ranks of an expert-parallel group (default: 1)\n",
        out);
}

static int number_read(const char *name, const char *text, int *out, struct fl_error *e)
{
    char *end;
    long number = strtol(text, &end, 10);

    if (end == text || *end || number < 1 || number > RANKS_MOST)
        return error_set(e, -EINVAL, "--%s: '%.40s' is not in [1, %d]", name, text, RANKS_MOST);
    *out = (int)number;
    return 0;
}

// 1: the answer was printed.
static int options_read(int argc, char **argv, struct request *request, struct fl_error *e)
{
    enum { XML = 1, GPUS, CPUS, RANKS, EP, HELP };
    static const struct option options[] = {
        {"xml", required_argument, NULL, XML},
        {"gpus", required_argument, NULL, GPUS},
        {"cpus", required_argument, NULL, CPUS},
        {"ranks", required_argument, NULL, RANKS},
        {"ep", required_argument, NULL, EP},
        {"help", no_argument, NULL, HELP},
        {NULL, 0, NULL, 0},
    };
    int option, code;

    opterr = 0;
    while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        code = 0;
        switch (option) {
        case XML:
            request->xml = optarg;
            break;
        case GPUS:
            request->gpus = optarg;
            break;
        case CPUS:
            request->cpus = optarg;
            break;
        case RANKS:
            code = number_read("ranks", optarg, &request->ranks, e);
            break;
        case EP:
            code = number_read("ep", optarg, &request->ep, e);
            break;
        case 'h':
        case HELP:
            usage(stdout);
            return 1;
        case ':':
            return error_set(e, -EINVAL, "%s has no value", argv[optind - 1]);
        default:
            return error_set(e, -EINVAL, "unknown option '%.80s'", argv[optind - 1]);
        }
        if (code)
            return code;
    }
    if (optind < argc)
        return error_set(e, -EINVAL, "unexpected word '%.80s'", argv[optind]);
    return 0;
}

// 0,1,...,count-1
static char *list_all(int count)
{
    char *list = memory_string("");

    for (int i = 0; i < count; i++) {
        char *longer = memory_format("%s%s%d", list, i ? "," : "", i);
        free(list);
        list = longer;
    }
    return list;
}

static int gpus_read(const char *list, int ranks, int ep, const struct device *devices, int count,
                     int *gpus, struct fl_error *e)
{
    struct gpu_view view = {
        .visible = list, .allocated = "", .bind = "", .local_ranks = (uint32_t)ranks};
    struct gpu_choice choice = gpu_choose(&view);

    if (choice.mig && ep > 1)
        return gpu_mig_refuse(choice.name, (uint32_t)ep, e);
    gpu_assign(&view, devices, count, gpus);
    for (int i = 0; i < ranks && *list; i++)
        if (gpus[i] < 0)
            return error_set(e, -ENODEV, "--gpus: %.200s: rank %d's is not one of the %d GPUs here",
                             list, i, count);
    return 0;
}

static int cpus_read(const char *list, hwloc_bitmap_t allowed, struct fl_error *e)
{
    hwloc_bitmap_t given;

    if (!list)
        return 0;
    given = hwloc_bitmap_alloc();
    if (!given || hwloc_bitmap_list_sscanf(given, list) ||
        !hwloc_bitmap_intersects(given, allowed)) {
        hwloc_bitmap_free(given);
        return error_set(e, -EINVAL, "--cpus: '%.80s' names no CPU of this topology", list);
    }
    hwloc_bitmap_and(allowed, allowed, given);
    hwloc_bitmap_free(given);
    return 0;
}

static int placement_print(const struct request *request, struct fl_error *e)
{
    struct device devices[DEVICES_MAX];
    uint32_t global[RANKS_MOST];
    int gpus[RANKS_MOST], count, code;
    hwloc_topology_t topology;
    hwloc_bitmap_t allowed = NULL;
    struct placement *placement = NULL;
    char *all = NULL, *table = NULL;

    code = place_topology_load(request->xml, &topology, e);
    if (code)
        return code;
    count = devices_find(request->xml ? NULL : "", topology, devices, DEVICES_MAX);
    all = list_all(count);
    struct place_request place = {
        .ranks = request->ranks  ? request->ranks
                 : request->gpus ? gpu_count(request->gpus)
                                 : count,
        .global = global,
        .ep = request->ep,
        .devices = devices,
        .device_count = count,
        .gpus = gpus,
    };
    if (place.ranks < 1)
        place.ranks = 1;
    if (place.ranks > RANKS_MOST) {
        code = error_set(e, -EINVAL, "--gpus: more than %d", RANKS_MOST);
        goto out;
    }
    for (int i = 0; i < place.ranks; i++)
        global[i] = (uint32_t)i;
    allowed = hwloc_bitmap_dup(hwloc_topology_get_topology_cpuset(topology));
    place.allowed = allowed;
    code = cpus_read(request->cpus, allowed, e);
    if (!code)
        code = gpus_read(request->gpus ? request->gpus : all, place.ranks, place.ep, devices, count,
                         gpus, e);
    if (!code)
        place.regrouped = place_regroup(topology, &place, gpus);
    if (!code)
        code = place_decide(topology, &place, &placement, e);
    if (code)
        goto out;
    table = placement_table(placement);
    printf("%s", table ? table : "");
out:
    free(table);
    free(all);
    placement_destroy(placement);
    hwloc_bitmap_free(allowed);
    hwloc_topology_destroy(topology);
    return code;
}

int placement_command(int argc, char **argv)
{
    struct request request = {.ep = 1};
    struct fl_error e;
    int code = options_read(argc, argv, &request, &e);

    if (code == 1)
        return 0;
    if (code) {
        log_error("%s", e.text);
        return 2;
    }
    if (placement_print(&request, &e)) {
        log_error("%s", e.text);
        return 1;
    }
    return 0;
}
