// SPDX-License-Identifier: Apache-2.0
// fp8-lora-core: one rank of a job. The plugin puts it in place of the job's command word; by hand:
// fp8-lora-core job.yaml, alone or under mpirun.
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/agree.h"
#include "data/job_data.h"
#include "data/loader.h"
#include "job/runnable.h"
#include "net/net.h"
#include "train/allowed.h"
#include "train/backend.h"
#include "train/cores.h"
#include "train/launch.h"
#include "train/planned.h"
#include "train/trainer.h"
#include "weights/adapters_out.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct core {
    struct launch launch;
    int threads; // of this rank
    struct comm *world, *ep, *replicas;
    struct spec *spec;
    struct model model;
    struct plan plan;
    struct slot *slot;
    struct arena *arena;
    struct ops *ops;
    struct model_weights *weights;
    struct adapters *adapters;
    struct net *net;
    struct job_data data;
    struct loader *train, *validation;
    struct trainer_end end;
    bool output_made; // the output folder is this job's
};

static bool first_rank(const struct core *core)
{
    return comm_rank(core->world) == 0;
}

static int ranks_meet(struct core *core, struct fl_error *e)
{
    if (core->launch.world == 1)
        return comm_self_create(&core->world, e);
    return comm_mpi_create(core->launch.world, &core->world, e);
}

static void recompute_settle(struct core *core)
{
    static const char *const names[] = {"full", "none", "selective, of the experts"};

    core->spec->recompute = core->plan.recompute;
    core->spec->recompute_part = RECOMPUTE_EXPERTS;
    if (first_rank(core))
        log_info("recompute_granularity auto: %s", names[core->plan.recompute]);
}

// What is asked for, and whether it fits: nothing is read but the job and config.json.
static int job_read(struct core *core, struct fl_error *e)
{
    struct allowed_warnings warnings;
    int rc = cores_threads(core->world, &core->threads, e);

    if (rc < 0)
        return rc;
    if (core->launch.word_count == 0)
        return error_set(e, -EINVAL, "usage: fp8-lora-core job.yaml, or -- and flags");
    rc = spec_load(core->launch.word_count, core->launch.words, &core->spec, e);
    if (rc == 0)
        rc = runnable_check(core->spec, core->launch.world, e);
    if (rc == 0)
        rc = backend_choose(core->spec, e);
    if (rc < 0)
        return rc;
    rc = model_load(core->spec->model, &core->model, e);
    if (rc == 0)
        rc = planned_make(core->spec, &core->model, core->launch.world, core->threads,
                          core->launch.cap, &core->plan, e);
    rc = allowed_check(&core->launch, core->spec, &core->plan, rc, &warnings, e);
    for (int i = 0; rc == 0 && first_rank(core) && i < warnings.count; i++)
        log_warn("%s", warnings.line[i].text);
    if (rc == 0)
        rc = runnable_shapes(core->spec, &core->model, &core->plan.layout, e);
    if (rc == 0 && core->spec->recompute == RECOMPUTE_AUTO)
        recompute_settle(core);
    if (rc == 0)
        rc = layout_make(core->spec, &core->model, core->launch.world, comm_rank(core->world),
                         &core->plan.layout, e);
    if (rc < 0 || !first_rank(core))
        return rc;
    for (size_t i = 0; i < core->spec->note_count; i++)
        log_info("%s", core->spec->notes[i]);
    core->output_made = access(core->spec->output_dir, F_OK) < 0;
    return folder_writable(core->spec->output_dir, e);
}

static int record_join(struct core *core, struct fl_error *e)
{
    int rc = slot_create(&core->plan, core->launch.local_rank, core->launch.cap, &core->slot, e);

    if (rc == 0)
        comm_watch(core->world, slot_watch, core->slot);
    return rc;
}

// Experts are spread over the ranks of an EP group; ranks of equal place in it are replicas.
static int groups_make(struct core *core, struct fl_error *e)
{
    const struct layout *l = &core->plan.layout;
    int rc = comm_split(core->world, l->ep_group, l->ep_rank, &core->ep, e);

    return rc < 0 ? rc : comm_split(core->world, l->ep_rank, l->ep_group, &core->replicas, e);
}

static int loader_open(struct core *core, bool validation, struct fl_error *e)
{
    const struct spec *spec = core->spec;
    const struct dataset *d = validation ? core->data.validation : core->data.train;
    struct loader_options options = {
        .validation = validation,
        .seed = spec->seed,
        .micro_batch_size = spec->micro_batch_size,
        .global_batch_size = spec->global_batch_size,
        .dp_rank = core->plan.layout.dp_rank,
        .dp_size = core->plan.layout.dp,
        .max_length = spec->max_length,
    };

    if (first_rank(core))
        log_info("%s: %zu samples, %zu tokens; dropped: %zu longer than %d tokens, %zu without an "
                 "answer",
                 validation ? "validation" : "training", d->samples, d->offsets[d->samples],
                 d->too_long, spec->max_length, d->no_target);
    return loader_create(d, &options, validation ? &core->validation : &core->train, e);
}

static int data_read(struct core *core, struct fl_error *e)
{
    int rc = job_data_read(core->spec, &core->model, &core->data, e);

    if (rc == 0)
        rc = loader_open(core, false, e);
    if (rc == 0 && core->data.validation)
        rc = loader_open(core, true, e);
    return rc;
}

static int backend_start(struct core *core, struct fl_error *e)
{
    int rc;

    cores_use(core->threads);
    // The cap is on the process; the arena gets what is left of it.
    rc = backend_open(core->spec, &core->model, core->launch.device,
                      core->launch.cap ? core->launch.cap - core->plan.outside_bytes : 0,
                      &core->arena, &core->ops, e);
    if (rc == 0)
        slot_gpu(core->slot, core->ops->name);
    return rc;
}

static int weights_load(struct core *core, struct fl_error *e)
{
    struct load_stats stats;
    int rc = model_weights_create(&core->model, &core->plan.layout, core->arena, &core->weights, e);

    if (rc == 0)
        rc = model_weights_load(core->weights, core->spec->model, &core->model, &core->plan.layout,
                                core->threads, core->ops, &stats, e);
    if (rc == 0 && first_rank(core))
        log_info("%s %.1f MiB in %.1f s (%.1f GB/s)%s%s", stats.made ? "made" : "loaded",
                 (double)stats.bytes / 0x1p20, stats.seconds,
                 (double)stats.bytes / stats.seconds * 1e-9,
                 core->launch.world > 1 ? " on rank 0" : "",
                 stats.quantised ? ", quantised to FP8" : "");
    return rc;
}

static int network_make(struct core *core, struct fl_error *e)
{
    struct net_config config;
    struct adapters start;
    int rc = adapters_create(core->spec, &core->model, &core->plan.layout, core->arena,
                             &core->adapters, e);

    if (rc == 0)
        rc = adapters_host_copy(core->adapters, core->ops, &start, e);
    if (rc < 0)
        return rc;
    adapters_init(&start, core->spec->seed);
    rc = adapters_host_return(&start, core->ops, core->adapters, e);
    adapters_host_clear(&start, core->adapters);
    if (rc < 0)
        return rc;
    config = (struct net_config){
        .spec = core->spec,
        .model = &core->model,
        .layout = &core->plan.layout,
        .ops = core->ops,
        .arena = core->arena,
        .ep_comm = core->ep,
        .weights = core->weights,
        .adapters = core->adapters,
    };
    return net_create(&config, &core->net, e);
}

static int adapters_save(void *context, struct fl_error *e)
{
    struct core *core = context;
    struct adapters trained;
    int rc = comm_agree(core->world, adapters_host_copy(core->adapters, core->ops, &trained, e),
                        NULL, e);

    if (rc == 0)
        rc = adapters_write(core->spec->output_dir, core->spec, &core->model, &core->plan.layout,
                            &trained, core->world, e);
    adapters_host_clear(&trained, core->adapters);
    return rc;
}

static int train(struct core *core, struct fl_error *e)
{
    const struct trainer_config config = {
        .spec = core->spec,
        .model = &core->model,
        .plan = &core->plan,
        .arena = core->arena,
        .ops = core->ops,
        .net = core->net,
        .adapters = core->adapters,
        .world = core->world,
        .replicas = core->replicas,
        .train = core->train,
        .validation = core->validation,
        .slot = core->slot,
        .save = adapters_save,
        .save_context = core,
    };
    return trainer_run(&config, &core->end, e);
}

// The last word of the record, of all nodes' ranks on the first node's.
static int record_finish(struct core *core, struct fl_error *e)
{
    char cause[RECORD_CAUSE];

    slot_memory(core->slot, core->arena);
    if (core->end.signal) {
        snprintf(cause, sizeof cause, "stopped by signal %d after iteration %lld, adapters saved",
                 core->end.signal, (long long)core->end.iterations);
        slot_state(core->slot, RANK_FAILED, cause);
    } else {
        slot_state(core->slot, RANK_DONE, NULL);
    }
    return slot_share(core->slot, core->world, e);
}

// The story. After every stage the ranks agree, so that one that fails takes all along with one
// message.
static int (*const stages[])(struct core *, struct fl_error *) = {
    job_read,     record_join,  groups_make, data_read,     backend_start,
    weights_load, network_make, train,       record_finish,
};

static int core_run(struct core *core, int *failed, struct fl_error *e)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < sizeof stages / sizeof *stages; i++)
        rc = comm_agree(core->world, stages[i](core, e), failed, e);
    return rc;
}

// One line from one rank; nothing is left of a job that never ran.
static void failure_tell(struct core *core, int failed, struct fl_error *e)
{
    if (e->code == -ENOMEM && core->launch.cap_source)
        error_prefix(e, "%s", core->launch.cap_source);
    if (core->slot && e->code == -ECONNABORTED)
        slot_explain(core->slot, e);
    if (core->slot && core->arena)
        slot_memory(core->slot, core->arena);
    if (core->slot)
        slot_state(core->slot, RANK_FAILED, e->text[0] ? e->text : "stopped with another rank");
    if (core->output_made)
        rmdir(core->spec->output_dir); // unless something is in it
    // Without text another rank of this node speaks.
    if (failed == comm_rank(core->world) && e->text[0])
        log_error("%s", e->text);
}

static void core_clear(struct core *core)
{
    loader_destroy(core->validation);
    loader_destroy(core->train);
    job_data_clear(&core->data);
    net_destroy(core->net);
    adapters_destroy(core->adapters);
    model_weights_destroy(core->weights);
    ops_destroy(core->ops);
    arena_destroy(core->arena);
    slot_destroy(core->slot);
    comm_destroy(core->replicas);
    comm_destroy(core->ep);
    comm_destroy(core->world);
    spec_destroy(core->spec);
    launch_clear(&core->launch);
}

int main(int argc, char **argv)
{
    struct core core = {0};
    struct fl_error e = {0};
    int status = EXIT_SUCCESS, failed = -1;

    cores_idle_asleep(argv);
    if (launch_read(argc, argv, &core.launch, &e) < 0 || ranks_meet(&core, &e) < 0) {
        if (core.launch.rank == 0)
            log_error("%s", e.text);
        return EXIT_FAILURE;
    }
    if (core_run(&core, &failed, &e) < 0) {
        status = EXIT_FAILURE;
        failure_tell(&core, failed, &e);
    } else if (core.end.signal) {
        status = 128 + core.end.signal;
        if (first_rank(&core))
            log_warn("signal %d: stopped after iteration %lld; the adapters are in %s",
                     core.end.signal, (long long)core.end.iterations, core.spec->output_dir);
    }
    if (!comm_alive(core.world)) { // messages may be under way to and from buffers, for ever
        fflush(NULL);
        _exit(status);
    }
    core_clear(&core);
    return status;
}
