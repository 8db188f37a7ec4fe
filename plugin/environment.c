// SPDX-License-Identifier: Apache-2.0
// What a task finds in its environment: who it is, its GPU, allocators, threads, rendezvous.
#include "environment.h"

#include "bind.h"
#include "launch.h"
#include "values.h"

#include <errno.h>
#include <slurm/slurm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 4096

static const char *text_get(spank_t spank, const char *name, char *text, int size)
{
    return spank_getenv(spank, name, text, size) == ESPANK_SUCCESS ? text : NULL;
}

static void text_read(spank_t spank, const char *name, char *text, int size)
{
    if (!text_get(spank, name, text, size))
        text[0] = 0;
}

struct gpu_view environment_view(const struct environment *environment)
{
    return (struct gpu_view){
        .visible = environment->visible,
        .allocated = environment->gpus,
        .bind = environment->gpu_bind,
        .on_node = environment->node_gpus,
        .local_rank = environment->local_rank,
        .local_ranks = environment->local_ranks,
    };
}

static void bindings_read(spank_t spank, struct environment *environment)
{
    char type[64];

    text_read(spank, "SLURM_CPU_BIND_TYPE", type, sizeof type);
    environment->cpu_masked = !strncmp(type, "mask_", 5) || !strncmp(type, "map_", 4);
    text_read(spank, "SLURM_CPU_BIND_LIST", environment->cpu_masks, sizeof environment->cpu_masks);
    text_read(spank, "SLURM_MEM_BIND_TYPE", type, sizeof type);
    environment->memory_bound = *type && strcmp(type, "none") != 0;
}

static void gpus_read(spank_t spank, struct environment *environment)
{
    char count[16];
    struct gpu_view view;

    text_read(spank, "CUDA_VISIBLE_DEVICES", environment->visible, sizeof environment->visible);
    text_read(spank, "SLURM_STEP_GPUS", environment->gpus, sizeof environment->gpus);
    text_read(spank, "SLURMD_TRES_BIND", environment->gpu_bind, sizeof environment->gpu_bind);
    text_read(spank, "SLURM_GPUS_ON_NODE", count, sizeof count);
    environment->node_gpus = atoi(count);
    view = environment_view(environment);
    environment->gpu = gpu_choose(&view);
    environment->gpu_hidden = gpu_hidden(&view);
}

int environment_read(spank_t spank, const struct launch *launch, struct environment *environment,
                     struct fl_error *e)
{
    uint16_t cpus = 0;
    int local_id;

    memset(environment, 0, sizeof *environment);
    if (spank_get_item(spank, S_TASK_GLOBAL_ID, &environment->rank) ||
        spank_get_item(spank, S_TASK_ID, &local_id) || local_id < 0)
        return error_set(e, -EINVAL, "slurmstepd does not tell the task's number");
    environment->local_rank = (uint32_t)local_id;
    environment->local_ranks = launch->local_tasks;
    (void)spank_get_item(spank, S_STEP_CPUS_PER_TASK, &environment->cpus_per_task);
    (void)spank_get_item(spank, S_JOB_NCPUS, &cpus);
    environment->job_cpus = cpus;
    bindings_read(spank, environment);
    gpus_read(spank, environment);
    if (environment->gpu.mig && launch->stamp.ep > 1)
        return gpu_mig_refuse(environment->gpu.name, launch->stamp.ep, e);
    return 0;
}

static int number_set(spank_t spank, const char *name, int64_t value)
{
    char text[24];

    snprintf(text, sizeof text, "%lld", (long long)value);
    return spank_setenv(spank, name, text, 1);
}

// One name's settings serve for the other where that is unset.
static void allocators_set(spank_t spank)
{
    static const char *const names[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
    char texts[2][TEXT_MAX], merged[TEXT_MAX];
    const char *old[2];

    for (int i = 0; i < 2; i++) {
        spank_err_t rc = spank_getenv(spank, names[i], texts[i], sizeof texts[i]);
        if (rc == ESPANK_NOSPACE)
            return; // too long to be extended, and never to be cut
        old[i] = rc == ESPANK_SUCCESS ? texts[i] : NULL;
    }
    for (int i = 0; i < 2; i++) {
        const char *settings = old[i] ? old[i] : old[!i] ? old[!i] : "";
        if (!values_allocator(settings, merged, sizeof merged))
            spank_setenv(spank, names[i], merged, 1);
    }
}

// host:port of the step's first node, alike for all ranks.
static void rendezvous_set(spank_t spank, const struct launch *launch)
{
    char nodes[TEXT_MAX], text[TEXT_MAX], *first;
    __typeof__(slurm_hostlist_create(nodes)) hosts; // its name means another type from 23.11 on

    if (!text_get(spank, "SLURM_STEP_NODELIST", nodes, sizeof nodes))
        return;
    hosts = slurm_hostlist_create(nodes);
    if (!hosts)
        return;
    first = slurm_hostlist_shift(hosts);
    if (first) {
        snprintf(text, sizeof text, "%s:%d", first,
                 values_port(launch->stamp.job, launch->stamp.step));
        spank_setenv(spank, "NCCL_COMM_ID", text, 1);
    }
    free(first);
    slurm_hostlist_destroy(hosts);
}

static void threads_set(spank_t spank, const struct environment *environment)
{
    int allowed = bind_cpus_allowed(), cpus = bind_cpus_online();
    char text[24];

    snprintf(text, sizeof text, "%d",
             values_threads(environment->cpus_per_task, environment->cores, allowed));
    spank_setenv(spank, "OMP_NUM_THREADS", text, 0);
    if (environment->job_cpus && (int)environment->job_cpus < cpus)
        cpus = (int)environment->job_cpus;
    if ((int)environment->local_ranks > cpus)
        spank_setenv(spank, "OMPI_MCA_mpi_yield_when_idle", "1", 0);
}

int environment_write(spank_t spank, const struct launch *launch,
                      const struct environment *environment, struct fl_error *e)
{
    if (number_set(spank, "FP8_LORA_RANK", environment->rank) ||
        number_set(spank, "FP8_LORA_WORLD", launch->tasks) ||
        number_set(spank, "FP8_LORA_LOCAL_RANK", environment->local_rank) ||
        number_set(spank, "FP8_LORA_EP", launch->stamp.ep) ||
        number_set(spank, "FP8_LORA_DP", launch->stamp.dp) ||
        spank_setenv(spank, "CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1))
        return error_set(e, -ENOMEM, "cannot set the task's environment");
    if (environment->gpu.count)
        number_set(spank, "FP8_LORA_DEVICE", environment->gpu.device);
    else
        spank_unsetenv(spank, "FP8_LORA_DEVICE");
    allocators_set(spank);
    rendezvous_set(spank, launch);
    threads_set(spank, environment);
    return 0;
}
