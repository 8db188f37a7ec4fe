// SPDX-License-Identifier: Apache-2.0
// The real plugin's placement in a small Slurm: shown on stored topologies, bound on this machine.
#include "unit/spank_host.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// The process's own, as in linux/mempolicy.h; -1 on a kernel without.
static int memory_policy(void)
{
    int policy;

    return syscall(SYS_get_mempolicy, &policy, NULL, 0UL, NULL, 0UL) ? -1 : policy;
}

// Runs task_init as local task of a step with this stamp and NAME=VALUE settings, after binding to
// the CPUs of mask (0: as it is); stderr and then the process's CPUs in text. Returns the status.
static int task_place(const char *stamp, uint32_t local_task, uint16_t cpus, unsigned long mask,
                      const char *const *settings, char text[4096])
{
    struct spank_handle spank = step_begin(stamp);
    int status, fds[2];
    size_t used = 0;
    ssize_t got;
    pid_t child;

    spank.cpus = cpus;
    if (getenv("TEST_TASKS"))
        spank.tasks = (uint32_t)atoi(getenv("TEST_TASKS"));
    step_init(&spank, true);
    assert_int_equal(pipe(fds), 0);
    child = fork();
    if (!child) {
        cpu_set_t set;
        dup2(fds[1], 2);
        close(fds[0]);
        close(fds[1]);
        CPU_ZERO(&set);
        for (size_t i = 0; i < 64; i++)
            if (mask >> i & 1)
                CPU_SET(i, &set);
        if (mask && sched_setaffinity(0, sizeof set, &set))
            _exit(70);
        for (; *settings; settings++) {
            char name[64];
            snprintf(name, sizeof name, "%.*s", (int)strcspn(*settings, "="), *settings);
            spank_setenv(&spank, name, strchr(*settings, '=') + 1, 1);
        }
        spank.local_task = local_task;
        task_init(&spank, argument_count, arguments);
        if (sched_getaffinity(0, sizeof set, &set))
            _exit(71);
        fprintf(stderr, "device %s\n",
                value_of(&spank, "FP8_LORA_DEVICE") ? value_of(&spank, "FP8_LORA_DEVICE") : "-");
        fprintf(stderr, "policy %d\n", memory_policy());
        fprintf(stderr, "CPUs");
        for (size_t i = 0; i < CPU_SETSIZE; i++)
            if (CPU_ISSET(i, &set))
                fprintf(stderr, " %zu", i);
        fprintf(stderr, ".\n");
        step_end(&spank);
        _exit(0);
    }
    close(fds[1]);
    while ((got = read(fds[0], text + used, 4095 - used)) > 0)
        used += (size_t)got;
    text[used] = 0;
    close(fds[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(finish(&spank, argument_count, arguments), 0);
    step_end(&spank);
    return status;
}

#define HGX FL_SOURCE_DIR "/tests/data/topologies/nvswitch-8gpu.xml"

static void check_says(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("'%s' does not hold '%s'", text, words);
}

// On a stored topology nothing is bound; the table tells what would be.
static void placement_is_shown(void **state)
{
    static const char *const both[] = {"CUDA_VISIBLE_DEVICES=2,5", "SLURM_STEP_GPUS=2,5",
                                       "SLURM_GPUS_ON_NODE=2", NULL};
    static const char *const own[] = {"CUDA_VISIBLE_DEVICES=2", "SLURM_GPUS_ON_NODE=2", NULL};
    static const char *const masked[] = {
        "SLURM_CPU_BIND_TYPE=mask_cpu:", "SLURM_CPU_BIND_LIST=0x1,0x2", "CUDA_VISIBLE_DEVICES=0,1",
        NULL};
    static const char *const unknown[] = {
        "SLURM_CPU_BIND_TYPE=mask_cpu:", "CUDA_VISIBLE_DEVICES=GPU-x,GPU-y", NULL};
    static const char *const no_gpu[] = {"SLURM_CPU_BIND_TYPE=mask_cpu:", NULL};
    static const char *const four[] = {"CUDA_VISIBLE_DEVICES=0,1,2,3", "SLURM_GPUS_ON_NODE=4",
                                       NULL};
    static const char *const mig[] = {"CUDA_VISIBLE_DEVICES=MIG-a,MIG-b", NULL};
    char text[4096];
    (void)state;
    setenv("HWLOC_XMLFILE", HGX, 1);
    assert_int_equal(task_place("77.0.2.1.1", 0, 999, 0, both, text), 0);
    check_says(text, "fp8-lora: placement on n0\n");
    check_says(text, "fp8-lora: rank  PCI ");
    check_says(text, "fp8-lora: 0     0000:32:00.0  GPU-00000002-1111-2222-3333-000000000032  "
                     "0-7,16-23   0     mlx5_2  0: nvlink 0  8 cores near the GPU\n");
    check_says(text, "fp8-lora: 1     0000:62:00.0  GPU-00000005-1111-2222-3333-000000000062  "
                     "8-15,24-31  1     mlx5_5  0: nvlink 0  8 cores near the GPU\n");
    assert_int_equal(task_place("77.0.2.1.1", 1, 999, 0, both, text), 0);
    assert_null(strstr(text, "placement on")); // one table a node
    check_says(text, "fp8-lora: placement: rank 1: GPU 0000:62:00.0, NIC mlx5_5, EP group 0: "
                     "nvlink 0: 8 cores near the GPU"); // in the debug log
    assert_int_equal(task_place("77.0.2.1.0", 0, 999, 0, both, text), 0);
    assert_null(strstr(text, "placement on"));
    assert_int_equal(task_place("77.0.2.1.3", 0, 999, 0, both, text), 0);
    check_says(text, "left as it is: the user's --cpu-bind");
    assert_int_equal(task_place("77.0.2.1.1", 0, 1, 0, both, text), 0);
    check_says(text, "left as it is: the job shares the node");
    assert_int_equal(task_place("77.0.2.1.1", 0, 999, 0, masked, text), 0);
    check_says(text, "left as it is: Slurm bound it, and does not tell to what");
    assert_int_equal(task_place("77.0.2.1.1", 0, 999, 0, unknown, text), 0);
    check_says(text, "left as it is: Slurm bound it, and which GPUs it has is not known");
    assert_int_equal(task_place("77.0.2.1.1", 0, 999, 0, no_gpu, text), 0);
    check_says(text, "left as it is: Slurm bound it\n");
    assert_int_equal(task_place("77.0.2.1.1", 0, 999, 0, own, text), 0);
    check_says(text, "hidden");
    check_says(text, "warning: tasks are bound to GPUs of their own, which hides their peers");
    assert_int_equal(task_place("77.0.2.1.2", 0, 999, 0, own, text), 0); // topology unread
    check_says(text, "warning: tasks are bound to GPUs of their own, which hides their peers");
    assert_int_equal(task_place("77.0.2.1.0", 1, 999, 0, mig, text), 1 << 8);
    check_says(text, "fp8-lora: MIG-b: MIG instances cannot reach each other");
    assert_int_equal(task_place("77.0.1.2.0", 1, 999, 0, mig, text), 0);
    // GPUs 0 and 2 are linked, and 1 and 3: whatever else is asked, groups of two stay together.
    setenv("HWLOC_XMLFILE", FL_SOURCE_DIR "/tests/data/topologies/nvlink-pairs-4gpu.xml", 1);
    setenv("TEST_TASKS", "4", 1);
    assert_int_equal(task_place("77.0.2.2.0", 1, 1, 0, four, text), 0);
    check_says(text, "device 2\n");
    assert_int_equal(task_place("77.0.2.2.2", 2, 999, 0, four, text), 0);
    check_says(text, "device 1\n");
    assert_int_equal(task_place("77.0.4.1.0", 0, 999, 0, four, text), 0);
    check_says(text, "device 0\n");
    check_says(text, "fp8-lora: warning: expert-parallel group 0 crosses NVLink islands");
    unsetenv("TEST_TASKS");
    setenv("HWLOC_XMLFILE", "/nonexistent.xml", 1);
    assert_int_equal(task_place("77.0.2.1.1", 0, 999, 0, both, text), 0);
    unsetenv("HWLOC_XMLFILE");
}

// On this machine, where it has two cores.
static void tasks_are_bound(void **state)
{
    static const char *const none[] = {NULL};
    static const char *const masks[] = {
        "SLURM_CPU_BIND_TYPE=mask_cpu:", "SLURM_CPU_BIND_LIST=0x2,0x1", "CUDA_VISIBLE_DEVICES=0",
        NULL};
    char texts[2][4096], kept[4096];
    cpu_set_t set;
    (void)state;
    if (sched_getaffinity(0, sizeof set, &set) || !CPU_ISSET(0, &set) || !CPU_ISSET(1, &set) ||
        CPU_COUNT(&set) != sysconf(_SC_NPROCESSORS_ONLN)) {
        print_message("needs a machine of two CPUs or more, all of them allowed\n");
        skip();
    }
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(task_place("77.0.2.1.0", i, 999, 0, none, texts[i]), 0);
    if (strstr(texts[0], "left as it is: 1 core for 2 ranks"))
        skip();                     // two CPUs of one core
    check_says(texts[0], "CPUs 0"); // ends of lines differ with the machine
    assert_null(strstr(texts[1], "CPUs 0"));
    assert_int_equal(task_place("77.0.2.1.2", 1, 999, 0, none, kept), 0);
    check_says(kept, "CPUs 0 1");
    // Slurm's own masks give way to a GPU, within what they cover together. This machine's cores,
    // as those of a stored topology that has a GPU near them.
    setenv("HWLOC_XMLFILE", FL_SOURCE_DIR "/tests/data/topologies/vm-1gpu.xml", 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
    assert_int_equal(task_place("77.0.2.1.0", 0, 999, 2, masks, texts[0]), 0);
    assert_int_equal(task_place("77.0.2.1.0", 1, 999, 1, masks, texts[1]), 0);
    check_says(texts[0], "CPUs 0.");
    check_says(texts[1], "CPUs 1.");
    // Those of the user do not.
    assert_int_equal(task_place("77.0.2.1.2", 0, 999, 2, masks, kept), 0);
    check_says(kept, "CPUs 1.");
    unsetenv("HWLOC_XMLFILE");
    unsetenv("HWLOC_THISSYSTEM");
}

// This machine's node 0 as the one near the last two GPUs of a stored topology.
static void memory_is_preferred(void **state)
{
    static const char *const near[] = {"CUDA_VISIBLE_DEVICES=2", NULL};
    static const char *const users[] = {"CUDA_VISIBLE_DEVICES=2", "SLURM_MEM_BIND_TYPE=local",
                                        NULL};
    char text[4096];
    cpu_set_t set;
    (void)state;
    if (sched_getaffinity(0, sizeof set, &set) || !CPU_ISSET(0, &set) || !CPU_ISSET(1, &set) ||
        sysconf(_SC_NPROCESSORS_ONLN) < 2 || memory_policy() < 0) {
        print_message("needs a machine of two CPUs or more, and a kernel that binds memory\n");
        skip();
    }
    setenv("HWLOC_XMLFILE", FL_SOURCE_DIR "/tests/data/topologies/pcie-4gpu.xml", 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
    assert_int_equal(task_place("77.0.1.2.0", 0, 9999, 0, near, text), 0);
    if (!strstr(text, "policy 1\n"))    // preferred
        check_says(text, "policy 5\n"); // or preferred among many
    assert_int_equal(task_place("77.0.1.2.0", 0, 9999, 0, users, text), 0);
    check_says(text, "policy 0\n");
    assert_int_equal(task_place("77.0.1.2.2", 0, 9999, 0, near, text), 0);
    check_says(text, "policy 0\n");
    unsetenv("HWLOC_XMLFILE");
    unsetenv("HWLOC_THISSYSTEM");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(placement_is_shown),
        cmocka_unit_test(tasks_are_bound),
        cmocka_unit_test(memory_is_preferred),
    };
    plugin_load();
    return cmocka_run_group_tests_name("spank_place", tests, NULL, NULL);
}
