// SPDX-License-Identifier: Apache-2.0
// place/: a GPU for every rank, and the cores near it, decided on a stored topology of two packages
// with eight two-thread cores and four GPUs each; the second package holds the first GPUs.
#include "unit/check.h"

#include "place/gpu.h"
#include "place/place.h"

#include <stdlib.h>

#define TOPOLOGY FL_SOURCE_DIR "/tests/data/topology/two-packages-8gpu.xml"

struct golden {
    int local_rank, local_ranks, gpus; // gpus: rank i has GPU i when there are any
    const char *allowed;               // "" : the machine
    const char *cpus;                  // "" : stays
    int numa;
    const char *reason;
};

static const struct golden goldens[] = {
    {0, 8, 8, "", "8-9,24-25", 1, "2 cores near GPU 0, NUMA node 1"},
    {3, 8, 8, "", "14-15,30-31", 1, "2 cores near GPU 3"},
    {4, 8, 8, "", "0-1,16-17", 0, "2 cores near GPU 4, NUMA node 0"},
    {7, 8, 8, "", "6-7,22-23", 0, "2 cores near GPU 7"},
    {0, 2, 8, "", "8-11,24-27", 1, "4 cores near GPU 0"},
    {1, 2, 8, "", "12-15,28-31", 1, "4 cores near GPU 1"},
    {0, 1, 8, "", "", -1, "Slurm bound it"},
    {0, 1, 8, "8-15", "", -1, "Slurm bound it"},
    {0, 2, 0, "", "0-7,16-23", 0, "8 cores, NUMA node 0"},
    {1, 2, 0, "", "8-15,24-31", 1, "8 cores, NUMA node 1"},
    {0, 2, 8, "0-11,16-27", "8-9,24-25", 1, "2 cores near GPU 0"},
    {1, 2, 8, "0-11", "10-11", 1, "2 cores near GPU 1"},
    {0, 2, 8, "0-7,16-23", "", -1, "Slurm bound it"},
    {0, 4, 8, "8-9,24-25", "", -1, "fewer than two cores"},
    {0, 16, 8, "", "", -1, "fewer than two cores"},
    {0, 4, 8, "0-7,8-9", "", -1, "fewer cores near the GPU than ranks"},
};

static void golden_decisions(void **state)
{
    hwloc_topology_t topology;
    struct fl_error e;
    (void)state;
    check_ok(place_topology_load(TOPOLOGY, &topology, &e), &e);
    for (size_t g = 0; g < sizeof goldens / sizeof *goldens; g++) {
        const struct golden *golden = &goldens[g];
        struct place_decision decision;
        int gpus[16];
        char cpus[128] = "";
        hwloc_bitmap_t allowed = hwloc_bitmap_dup(hwloc_topology_get_topology_cpuset(topology));
        if (golden->allowed[0])
            hwloc_bitmap_list_sscanf(allowed, golden->allowed);
        for (int i = 0; i < 16; i++)
            gpus[i] = i < golden->gpus ? i : -1;
        struct place_request request = {golden->local_rank, golden->local_ranks, gpus, allowed};
        check_ok(place_decide(topology, &request, &decision, &e), &e);
        if (decision.cpus)
            hwloc_bitmap_list_snprintf(cpus, sizeof cpus, decision.cpus);
        if (strcmp(cpus, golden->cpus) || decision.numa != golden->numa ||
            !strstr(decision.reason, golden->reason))
            fail_msg("golden %zu: cpus '%s' instead of '%s', NUMA %d, %s", g, cpus, golden->cpus,
                     decision.numa, decision.reason);
        place_decision_clear(&decision);
        hwloc_bitmap_free(allowed);
    }
    hwloc_topology_destroy(topology);
}

static void ranks_are_disjoint(void **state)
{
    hwloc_topology_t topology;
    struct fl_error e;
    int gpus[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    (void)state;
    check_ok(place_topology_load(TOPOLOGY, &topology, &e), &e);
    for (int ranks = 2; ranks <= 8; ranks++) {
        hwloc_bitmap_t taken = hwloc_bitmap_alloc();
        hwloc_bitmap_t all = hwloc_bitmap_dup(hwloc_topology_get_topology_cpuset(topology));
        for (int i = 0; i < ranks; i++) {
            struct place_request request = {i, ranks, gpus, all};
            struct place_decision decision;
            check_ok(place_decide(topology, &request, &decision, &e), &e);
            assert_true(decision.cores >= 1);
            assert_false(hwloc_bitmap_intersects(taken, decision.cpus));
            hwloc_bitmap_or(taken, taken, decision.cpus);
            place_decision_clear(&decision);
        }
        hwloc_bitmap_free(taken);
        hwloc_bitmap_free(all);
    }
    hwloc_topology_destroy(topology);
}

static void refusals(void **state)
{
    hwloc_topology_t topology;
    struct place_decision decision;
    struct fl_error e;
    int gpus[2] = {0, 9};
    (void)state;
    check_error(place_topology_load("/nonexistent.xml", &topology, &e), &e,
                "/nonexistent.xml: No such");
    check_error(place_topology_load(FL_SOURCE_DIR "/LICENSE", &topology, &e), &e,
                "hwloc cannot read it as a topology");
    check_ok(place_topology_load(TOPOLOGY, &topology, &e), &e);
    hwloc_bitmap_t all = hwloc_bitmap_dup(hwloc_topology_get_topology_cpuset(topology));
    struct place_request request = {0, 2, gpus, all};
    check_error(place_decide(topology, &request, &decision, &e), &e, "no GPU 9");
    request.local_rank = 2;
    check_error(place_decide(topology, &request, &decision, &e), &e, "local rank 2 of 2");
    hwloc_bitmap_free(all);
    hwloc_topology_destroy(topology);
}

static void gpu_choices(void **state)
{
    struct gpu_choice c;
    (void)state;
    c = gpu_choose("0,1,2,3", 2, 4);
    assert_true(c.count == 4 && c.device == 2 && !c.mig);
    assert_string_equal(c.name, "2");
    c = gpu_choose("GPU-aaaa,GPU-bbbb", 3, 4); // two ranks a GPU
    assert_true(c.device == 1);
    assert_string_equal(c.name, "GPU-bbbb");
    assert_true(gpu_choose("GPU-aaaa,GPU-bbbb", 1, 4).device == 0);
    assert_true(gpu_choose("MIG-1,MIG-2", 1, 2).mig);
    assert_true(gpu_choose("", 0, 4).count == 0);
    assert_true(gpu_choose("0", 5, 4).count == 0);
    assert_int_equal(gpu_count("4,5,6"), 3);
    assert_int_equal(gpu_index("4,5,6,7", 2, 4), 6);
    assert_int_equal(gpu_index("4,5", 3, 4), 5);
    assert_int_equal(gpu_index("", 0, 1), -1);
    assert_int_equal(gpu_index("GPU-x", 0, 1), -1);
    assert_int_equal(gpu_index(",,", 1, 3), -1);
    assert_int_equal(gpu_index("4x", 0, 1), -1);
    assert_int_equal(gpu_index("99999999999999999999", 0, 1), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_decisions),
        cmocka_unit_test(ranks_are_disjoint),
        cmocka_unit_test(refusals),
        cmocka_unit_test(gpu_choices),
    };
    return cmocka_run_group_tests_name("place", tests, NULL, NULL);
}
