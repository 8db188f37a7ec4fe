// SPDX-License-Identifier: Apache-2.0
// place/: whose GPU is whose, and where every rank runs, on stored topologies whose tables were
// checked by hand and are compared to the letter.
#include "unit/check.h"

#include "place/gpu.h"
#include "place/near.h"
#include "place/place.h"
#include "place/regroup.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOPOLOGIES FL_SOURCE_DIR "/tests/data/topologies"
#define RANKS_MOST 16
#define N          GPU_NONE
#define H          GPU_HIDDEN

// ---- tables

struct golden {
    const char *topology;
    int devices, ranks, ep;
    const char *visible, *allowed; // allowed "": the machine
    const char *table;
};

static const struct golden goldens[] = {
    {"nvswitch-8gpu", 8, 8, 8, "0,1,2,3,4,5,6,7", "", "nvswitch-8gpu"},
    {"nvswitch-8gpu", 8, 4, 2, "2,3,4,5", "4-11,20-27", "nvswitch-8gpu-cpuset"},
    {"nvswitch-8gpu", 8, 2, 1, "0,4", "0-7", "nvswitch-8gpu-far"},
    {"pcie-4gpu", 4, 4, 4, "0,1,2,3", "", "pcie-4gpu"},
    {"pcie-4gpu", 4, 8, 2, "0,1,2,3", "", "pcie-4gpu-shared"},
    {"nvlink-pairs-4gpu", 4, 4, 2, "0,2,1,3", "", "nvlink-pairs-4gpu"},
    {"nvlink-pairs-4gpu", 4, 4, 2, "0,1,2,3", "", "nvlink-pairs-4gpu-regrouped"},
    {"nvlink-pairs-4gpu", 4, 4, 4, "0,1,2,3", "", "nvlink-pairs-4gpu-crossing"},
    {"one-socket-8gpu", 8, 8, 8, "0,1,2,3,4,5,6,7", "", "one-socket-8gpu"},
    {"vm-1gpu", 1, 1, 1, "0", "", "vm-1gpu"},
    {"vm-1gpu", 1, 6, 6, "0", "", "vm-1gpu-crowded"},
};

static const struct golden hwloc_goldens[] = {
    {"24em64t-2n6c2t-pci", 3, 3, 2, "0,1,2", "", "hwloc-24em64t-2n6c2t-pci"},
    {"64intel64-3g2n+2n-irregulargroups+pci", 2, 2, 2, "0,1", "",
     "hwloc-64intel64-3g2n+2n-irregulargroups+pci"},
    {"power8gpudistances", 4, 4, 2, "0,1,2,3", "", "hwloc-power8gpudistances"},
};

// A topology, its devices, and a request on all of it with ranks counted from 0.
struct machine {
    hwloc_topology_t topology;
    hwloc_bitmap_t allowed;
    struct device devices[DEVICES_MAX];
    int count, gpus[RANKS_MOST];
    uint32_t global[RANKS_MOST];
};

static struct machine machine_load(const char *folder, const char *name)
{
    struct machine machine;
    struct fl_error e;
    char path[512];

    snprintf(path, sizeof path, "%s/%s.xml", folder, name);
    check_ok(place_topology_load(path, &machine.topology, &e), &e);
    assert_false(hwloc_topology_is_thissystem(machine.topology)); // the file's, not this one
    machine.count = devices_find(NULL, machine.topology, machine.devices, DEVICES_MAX);
    machine.allowed = hwloc_bitmap_dup(hwloc_topology_get_topology_cpuset(machine.topology));
    for (uint32_t i = 0; i < RANKS_MOST; i++)
        machine.global[i] = i;
    return machine;
}

static void machine_free(struct machine *machine)
{
    hwloc_bitmap_free(machine->allowed);
    hwloc_topology_destroy(machine->topology);
}

static struct place_request request_of(const struct machine *machine, int ranks, int ep)
{
    return (struct place_request){
        .ranks = ranks,
        .global = machine->global,
        .ep = ep,
        .devices = machine->devices,
        .device_count = machine->count,
        .gpus = machine->gpus,
        .allowed = machine->allowed,
    };
}

static struct gpu_view view_of(const char *visible, uint32_t local_rank, uint32_t local_ranks)
{
    return (struct gpu_view){.visible = visible,
                             .allocated = "",
                             .bind = "",
                             .local_rank = local_rank,
                             .local_ranks = local_ranks};
}

static struct placement *decide(const struct machine *machine, const struct place_request *request)
{
    struct placement *placement;
    struct fl_error e;

    check_ok(place_decide(machine->topology, request, &placement, &e), &e);
    return placement;
}

static void table_compare(const struct placement *placement, const char *name)
{
    char path[512], expected[8192], *table = placement_table(placement);
    size_t size;
    FILE *file;

    snprintf(path, sizeof path, TOPOLOGIES "/%s.txt", name);
    file = fopen(path, "r");
    if (!file)
        fail_msg("%s: cannot be opened", path);
    size = fread(expected, 1, sizeof expected - 1, file);
    expected[size] = 0;
    fclose(file);
    if (strcmp(table, expected) != 0)
        fail_msg("%s:\n%s\ninstead of\n%s", name, table, expected);
    free(table);
}

static void golden_run(const char *folder, const struct golden *golden)
{
    struct machine machine = machine_load(folder, golden->topology);
    struct gpu_view view = view_of(golden->visible, 0, (uint32_t)golden->ranks);
    struct place_request request = request_of(&machine, golden->ranks, golden->ep);
    struct placement *placement;

    assert_int_equal(machine.count, golden->devices);
    if (golden->allowed[0])
        hwloc_bitmap_list_sscanf(machine.allowed, golden->allowed);
    gpu_assign(&view, machine.devices, machine.count, machine.gpus);
    request.regrouped = place_regroup(machine.topology, &request, machine.gpus);
    placement = decide(&machine, &request);
    table_compare(placement, golden->table);
    placement_destroy(placement);
    machine_free(&machine);
}

static void golden_tables(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++)
        golden_run(TOPOLOGIES, &goldens[i]);
}

// Real machines, as hwloc's own tests have them: contrib/fetch-hwloc-topologies.
static void golden_tables_of_hwloc(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof hwloc_goldens / sizeof *hwloc_goldens; i++)
        golden_run(getenv("FL_HWLOC_TOPOLOGIES"), &hwloc_goldens[i]);
}

// ---- properties of a placement

static void ranks_are_disjoint(void **state)
{
    static const char *const names[] = {"nvswitch-8gpu", "pcie-4gpu", "one-socket-8gpu", "vm-1gpu"};
    (void)state;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        struct machine machine = machine_load(TOPOLOGIES, names[n]);
        for (int ranks = 1; ranks <= 8; ranks++) {
            struct place_request request = request_of(&machine, ranks, 1);
            struct gpu_view view = view_of("0,1,2,3,4,5,6,7", 0, (uint32_t)ranks);
            hwloc_bitmap_t taken = hwloc_bitmap_alloc();
            struct placement *placement;
            gpu_assign(&view, machine.devices, machine.count, machine.gpus);
            placement = decide(&machine, &request);
            for (int i = 0; i < ranks; i++) {
                const struct place_rank *rank = &placement->rank[i];
                if (!rank->cpus)
                    continue;
                assert_true(hwloc_bitmap_isincluded(rank->cpus, machine.allowed));
                assert_false(hwloc_bitmap_intersects(taken, rank->cpus));
                hwloc_bitmap_or(taken, taken, rank->cpus);
            }
            placement_destroy(placement);
            hwloc_bitmap_free(taken);
        }
        machine_free(&machine);
    }
}

// Ranks without a GPU beside ranks with one: these come first, nobody shares.
static void wishes_within_wishes(void **state)
{
    struct machine machine = machine_load(TOPOLOGIES, "pcie-4gpu");
    struct place_request request = request_of(&machine, 3, 1);
    struct placement *placement;
    (void)state;
    machine.gpus[0] = GPU_NONE;
    machine.gpus[1] = 0;
    machine.gpus[2] = 1;
    placement = decide(&machine, &request);
    assert_int_equal(placement->rank[0].cores, 6);
    assert_true(hwloc_bitmap_isset(placement->rank[0].cpus, 0));
    assert_int_equal(placement->rank[1].cores, 3);
    assert_true(hwloc_bitmap_isset(placement->rank[1].cpus, 6));
    placement_destroy(placement);
    machine_free(&machine);
}

static void a_binding_of_the_users_is_kept(void **state)
{
    struct machine machine = machine_load(TOPOLOGIES, "nvswitch-8gpu");
    struct place_request request = request_of(&machine, 2, 2);
    struct placement *placement;
    (void)state;
    machine.gpus[0] = 0;
    machine.gpus[1] = 7;
    request.keep = "the user's --cpu-bind";
    placement = decide(&machine, &request);
    for (int i = 0; i < 2; i++) {
        assert_null(placement->rank[i].cpus);
        assert_int_equal(placement->rank[i].cores, 0);
        assert_string_equal(placement->rank[i].reason, "left as it is: the user's --cpu-bind");
        assert_string_equal(placement->rank[i].group, "0: nvlink 0");
    }
    assert_string_equal(placement->rank[1].nic, "mlx5_7");
    assert_int_equal(placement->warnings, 0);
    placement_destroy(placement);
    machine_free(&machine);
}

// A GPU for each task: every task decides its own part of what a task that sees all would decide.
static void hidden_tasks_agree(void **state)
{
    struct machine machine = machine_load(TOPOLOGIES, "nvswitch-8gpu");
    struct place_request request = request_of(&machine, 8, 8);
    struct gpu_view all = view_of("0,1,2,3,4,5,6,7", 0, 8);
    struct placement *whole;
    (void)state;
    gpu_assign(&all, machine.devices, machine.count, machine.gpus);
    whole = decide(&machine, &request);
    request.hides_peers = true;
    for (uint32_t i = 0; i < 8; i++) {
        char index[4];
        struct gpu_view view = view_of(index, i, 8);
        struct placement *own;
        snprintf(index, sizeof index, "%u", i);
        view.on_node = 8;
        assert_true(gpu_hidden(&view));
        gpu_assign(&view, machine.devices, machine.count, machine.gpus);
        for (uint32_t k = 0; k < 8; k++)
            assert_int_equal(machine.gpus[k], k == i ? (int)i : GPU_HIDDEN);
        own = decide(&machine, &request);
        assert_true(hwloc_bitmap_isequal(own->rank[i].cpus, whole->rank[i].cpus));
        assert_null(own->rank[(i + 1) % 8].cpus);
        assert_non_null(strstr(own->rank[(i + 1) % 8].reason, "its own task"));
        assert_string_equal(own->rank[i].group, "0: unknown");
        assert_int_equal(own->warnings, 1);
        assert_non_null(strstr(own->warning[0], "hides their peers"));
        placement_destroy(own);
    }
    placement_destroy(whole);
    machine_free(&machine);
}

// A group over several nodes, and ranks dealt round the nodes.
static void groups_over_nodes(void **state)
{
    struct machine machine = machine_load(TOPOLOGIES, "nvswitch-8gpu");
    struct place_request request = request_of(&machine, 4, 4);
    struct placement *placement;
    (void)state;
    for (int i = 0; i < 4; i++) {
        machine.gpus[i] = i;
        machine.global[i] = (uint32_t)(2 * i + 1);
    }
    placement = decide(&machine, &request);
    assert_string_equal(placement->rank[0].group, "0: nvlink 0, more nodes");
    assert_string_equal(placement->rank[3].group, "1: nvlink 0, more nodes");
    placement_destroy(placement);
    machine_free(&machine);
}

static void orders_of_groups(void **state)
{
    static const struct {
        int ranks, ep, gpus[6], order[6];
    } cases[] = {
        {4, 2, {0, 3, 1, 4}, {0, 1, 3, 4}}, // islands by their first GPU
        {4, 2, {3, 0, 4, 1}, {3, 4, 0, 1}},
        {4, 2, {0, 1, 3, 4}, {0, 1, 3, 4}},             // right as it is
        {4, 4, {0, 3, 1, 4}, {0, 3, 1, 4}},             // no order is
        {6, 2, {0, 3, 1, 4, 2, 5}, {0, 3, 1, 4, 2, 5}}, // three of each: neither
        {6, 3, {0, 3, 1, 4, 2, 5}, {0, 1, 2, 3, 4, 5}},
        {4, 1, {0, 3, 1, 4}, {0, 3, 1, 4}},
        {4, 2, {0, 3, 0, 3}, {0, 3, 0, 3}}, // shared
        {4, 2, {0, 3, 1, N}, {0, 3, 1, N}},
        {4, 2, {0, 3, 1, 6}, {0, 3, 1, 6}}, // of no known island
    };
    struct island islands[7] = {{ISLAND_NVLINK, 0}, {ISLAND_NVLINK, 0}, {ISLAND_NVLINK, 0},
                                {ISLAND_NVLINK, 1}, {ISLAND_NVLINK, 1}, {ISLAND_NVLINK, 1}};
    uint32_t global[6] = {12, 13, 14, 15, 16, 17};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int gpus[6], size = cases[i].ranks * (int)sizeof *gpus;
        bool changes = memcmp(cases[i].gpus, cases[i].order, (size_t)size) != 0;
        memcpy(gpus, cases[i].gpus, sizeof gpus);
        assert_int_equal(regroup(islands, global, cases[i].ranks, cases[i].ep, gpus), changes);
        assert_memory_equal(gpus, cases[i].order, (size_t)size);
    }
}

static void refusals(void **state)
{
    struct machine machine = machine_load(TOPOLOGIES, "vm-1gpu");
    struct place_request request = request_of(&machine, 1, 1);
    struct placement *placement;
    hwloc_topology_t topology;
    struct fl_error e;
    (void)state;
    check_error(place_topology_load("/nonexistent.xml", &topology, &e), &e,
                "/nonexistent.xml: No such");
    check_error(place_topology_load(FL_SOURCE_DIR "/LICENSE", &topology, &e), &e,
                "hwloc cannot read it as a topology");
    machine.gpus[0] = 1;
    check_error(place_decide(machine.topology, &request, &placement, &e), &e,
                "rank 0 has GPU 1 of 1");
    machine.gpus[0] = 0;
    request.ep = 0;
    check_error(place_decide(machine.topology, &request, &placement, &e), &e,
                "1 ranks, expert parallel 0: at least 1 each");
    request.ep = 1;
    hwloc_bitmap_zero(machine.allowed);
    check_error(place_decide(machine.topology, &request, &placement, &e), &e,
                "no processing unit is allowed");
    check_error(gpu_mig_refuse("MIG-1", 8, &e), &e,
                "MIG-1: MIG instances cannot reach each other, expert parallel 8 needs whole GPUs");
    machine_free(&machine);
}

// ---- the driver's folders

static char root[] = "/tmp/fl-place-XXXXXX";

__attribute__((format(printf, 2, 3))) static void file_write(const char *text, const char *format,
                                                             ...)
{
    char path[512];
    va_list args;
    FILE *file;

    va_start(args, format);
    vsnprintf(path, sizeof path, format, args);
    va_end(args);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        (void)mkdir(path, 0755);
        *slash = '/';
    }
    file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

// Two GPUs whose device files are numbered against PCI order, one closed by the device cgroup.
static int root_make(void **state)
{
    (void)state;
    if (!mkdtemp(root))
        return -1;
    file_write("Model: \t\t NVIDIA H100\nIRQ:   \t\t 16\n"
               "GPU UUID: \t GPU-aaaa0000-1111-2222-3333-444444444444\n"
               "Bus Location: \t 0000:22:00.0\nDevice Minor: \t 0\n",
               "%s/proc/driver/nvidia/gpus/0000:22:00.0/information", root);
    file_write("GPU UUID: \t GPU-?\nDevice Minor: \t 1\n",
               "%s/proc/driver/nvidia/gpus/0000:12:00.0/information", root);
    file_write("", "%s/proc/driver/nvidia/gpus/notes/information", root);
    file_write("2-3\n", "%s/sys/bus/pci/devices/0000:22:00.0/local_cpulist", root);
    file_write("", "%s/dev/nvidia0", root);
    return 0;
}

static int root_remove(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

static void devices_of_the_driver(void **state)
{
    struct machine machine = machine_load(TOPOLOGIES, "nvswitch-8gpu");
    struct device devices[DEVICES_MAX];
    (void)state;
    assert_int_equal(devices_find(root, machine.topology, devices, DEVICES_MAX), 2);
    assert_string_equal(devices[0].pci, "0000:12:00.0");
    assert_string_equal(devices[0].uuid, "GPU-00000000-1111-2222-3333-000000000012"); // hwloc's
    assert_int_equal(devices[0].minor, 1);
    assert_false(devices[0].open);
    assert_string_equal(devices[1].pci, "0000:22:00.0");
    assert_string_equal(devices[1].uuid, "GPU-aaaa0000-1111-2222-3333-444444444444");
    assert_int_equal(devices[1].minor, 0);
    assert_true(devices[1].open);
    assert_string_equal(devices[1].cpus, "2-3");
    assert_int_equal(devices_find(root, machine.topology, devices, 1), 1);
    assert_int_equal(devices_find("/nonexistent", machine.topology, devices, DEVICES_MAX), 8);
    machine_free(&machine);
}

// A topology without PCI devices, as without hwloc's plugins: the kernel's list serves.
static void near_without_pci(void **state)
{
    struct machine machine = machine_load(TOPOLOGIES, "vm-1gpu");
    struct device device = {.pci = "0000:99:00.0", .cpus = "2-3"};
    struct island island;
    hwloc_bitmap_t cpus = near_cpus(machine.topology, &device);
    char text[32];
    (void)state;
    hwloc_bitmap_list_snprintf(text, sizeof text, cpus);
    assert_string_equal(text, "2-3");
    hwloc_bitmap_free(cpus);
    device.cpus[0] = 0;
    cpus = near_cpus(machine.topology, &device);
    hwloc_bitmap_list_snprintf(text, sizeof text, cpus);
    assert_string_equal(text, "0-3");
    hwloc_bitmap_free(cpus);
    islands_find(machine.topology, &device, 1, &island);
    assert_true(island.kind == ISLAND_PACKAGE && island.number == 0);
    machine_free(&machine);
    machine = machine_load(TOPOLOGIES, "pcie-4gpu"); // two packages, and nobody tells which
    islands_find(machine.topology, &device, 1, &island);
    assert_true(island.kind == ISLAND_UNKNOWN);
    machine_free(&machine);
}

// ---- whose GPU is whose

static const struct {
    const char *visible, *allocated, *bind;
    int on_node;
    uint32_t local_rank, local_ranks;
    const char *closed; // minors of device files the cgroup closes
    int gpus[4];
} assignments[] = {
    // all GPUs to every task: minors are 3,2,1,0 in PCI order
    {"0,1,2,3", "0,1,2,3", "", 4, 0, 4, "", {0, 1, 2, 3}},
    {"0,1,2,3", "0,1,2,3", "", 4, 3, 4, "", {0, 1, 2, 3}},
    {"3,1", "3,1", "", 2, 0, 2, "", {3, 1}},
    {"1,2", "1,2", "", 2, 2, 4, "", {1, 1, 2, 2}}, // two ranks a GPU
    {"", "", "", 0, 0, 2, "", {N, N}},
    {"NoDevFiles", "", "", 0, 0, 2, "", {N, N}},
    {"9", "9", "", 1, 0, 1, "", {N}},
    // renumbered by the device cgroup: minors 1 and 0 are open, which are PCI's 2 and 3
    {"0,1", "0,1", "", 2, 0, 2, "23", {2, 3}},
    {"0", "1", "", 1, 0, 1, "230", {2}},
    // renumbered, and every device file looks open: Slurm's own numbers tell
    {"0,1", "0,2", "", 2, 0, 2, "", {3, 1}},
    {"0", "3", "", 1, 0, 1, "", {0}},
    // UUIDs, their beginnings, PCI addresses
    {"GPU-cc,GPU-aa", "", "", 2, 0, 2, "", {2, 0}},
    {"gpu-cc", "", "", 1, 0, 1, "", {N}}, // as CUDA, which knows no such prefix
    {"GPU-", "", "", 1, 0, 1, "", {N}},
    {"GPU-cc00,0000:02:00.0", "", "", 2, 1, 2, "", {2, 1}},
    {"GPU-ee", "", "", 1, 0, 1, "", {N}},
    {"MIG-GPU-bb00/1/0", "", "", 1, 0, 1, "", {1}},
    {"MIG-1234", "", "", 1, 0, 1, "", {N}},
    // a GPU for each task
    {"2", "2", "gpu:closest", 4, 2, 4, "", {H, H, 2, H}},
    {"2", "1", "gpu:per_task:1", 4, 1, 4, "", {3, 2, 1, 0}},
    {"1", "1", "gpu:per_task:1", 4, 1, 4, "", {H, 1, H, H}}, // CUDA's number is not Slurm's
    {"0", "3", "gpu:per_task:1", 4, 3, 4, "012", {3, 2, 1, 0}},
    {"0", "1", "gpu:per_task:1", 4, 1, 4, "023", {3, 2, 1, 0}},
    {"0", "1", "gpu:per_task:1", 2, 1, 2, "023", {H, 2}}, // which others, is not told
    // two for each task, a map
    {"0,1", "2,3", "gpu:per_task:2", 4, 1, 2, "01", {H, 1}}, // minors run against CUDA
    {"0", "2", "gpu:map_gpu:1,2", 2, 1, 2, "013", {2, 1}},
    {"0", "1", "gpu:map_gpu:1,2", 2, 0, 2, "023", {2, 1}},
    {"0", "0", "gpu:map_gpu:1,2", 2, 0, 2, "123", {3, H}}, // not what the map says
    {"0", "1", "gpu:map_gpu:", 2, 0, 2, "023", {2, H}},
};

static void gpus_are_assigned(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof assignments / sizeof *assignments; i++) {
        struct device devices[4] = {
            {"0000:01:00.0", "GPU-aa00", 3, true, ""},
            {"0000:02:00.0", "GPU-bb00", 2, true, ""},
            {"0000:03:00.0", "GPU-cc00", 1, true, ""},
            {"0000:04:00.0", "GPU-dd00", 0, true, ""},
        };
        struct gpu_view view =
            view_of(assignments[i].visible, assignments[i].local_rank, assignments[i].local_ranks);
        int gpus[4];
        view.allocated = assignments[i].allocated;
        view.bind = assignments[i].bind;
        view.on_node = assignments[i].on_node;
        for (int d = 0; d < 4; d++)
            devices[d].open = !strchr(assignments[i].closed, '0' + devices[d].minor);
        gpu_assign(&view, devices, 4, gpus);
        for (uint32_t r = 0; r < view.local_ranks; r++)
            if (gpus[r] != assignments[i].gpus[r])
                fail_msg("assignment %zu (%s): local rank %u has %d instead of %d", i, view.visible,
                         r, gpus[r], assignments[i].gpus[r]);
    }
}

static struct gpu_choice choose(const char *visible, uint32_t local_rank, uint32_t local_ranks)
{
    struct gpu_view view = view_of(visible, local_rank, local_ranks);

    return gpu_choose(&view);
}

static void gpu_choices(void **state)
{
    struct gpu_view view = view_of("2,3", 1, 2);
    struct gpu_choice c;
    (void)state;
    c = choose("0,1,2,3", 2, 4);
    assert_true(c.count == 4 && c.device == 2 && !c.mig);
    assert_string_equal(c.name, "2");
    c = choose("GPU-aaaa,GPU-bbbb", 3, 4); // two ranks a GPU
    assert_true(c.device == 1);
    assert_string_equal(c.name, "GPU-bbbb");
    assert_true(choose("GPU-aaaa,GPU-bbbb", 1, 4).device == 0);
    assert_true(choose("MIG-1,MIG-2", 1, 2).mig);
    assert_true(choose("", 0, 4).count == 0);
    assert_true(choose("0", 5, 4).count == 0);
    assert_int_equal(gpu_count("4,5,6"), 3);
    assert_false(gpu_hidden(&view));
    view.on_node = 4; // two of its own
    assert_true(gpu_hidden(&view));
    assert_int_equal(gpu_choose(&view).device, 1);
    view.visible = "3";
    assert_int_equal(gpu_choose(&view).device, 0);
}

// test_place hwloc: the tables of hwloc's topologies alone.
int main(int argc, char **argv)
{
    const struct CMUnitTest of_hwloc[] = {cmocka_unit_test(golden_tables_of_hwloc)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_tables),         cmocka_unit_test(ranks_are_disjoint),
        cmocka_unit_test(wishes_within_wishes),  cmocka_unit_test(a_binding_of_the_users_is_kept),
        cmocka_unit_test(hidden_tasks_agree),    cmocka_unit_test(groups_over_nodes),
        cmocka_unit_test(orders_of_groups),      cmocka_unit_test(refusals),
        cmocka_unit_test(devices_of_the_driver), cmocka_unit_test(near_without_pci),
        cmocka_unit_test(gpus_are_assigned),     cmocka_unit_test(gpu_choices),
    };
    if (argc == 2 && !strcmp(argv[1], "hwloc"))
        return cmocka_run_group_tests_name("place hwloc", of_hwloc, root_make, root_remove);
    return cmocka_run_group_tests_name("place", tests, root_make, root_remove);
}
