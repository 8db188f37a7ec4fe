// SPDX-License-Identifier: Apache-2.0
// A plan for a person.
#include "job/plan_print.h"

#include "base/bytes.h"
#include "job/params.h"

#include <math.h>

#define NAME "  %-32s "

static const char *backend_of(const struct plan *plan)
{
    return plan->cpu ? "cpu" : "cuda";
}

static double share(uint64_t part, uint64_t whole)
{
    return 100.0 * (double)part / (double)whole;
}

static void parameters_print(FILE *out, const struct plan_view *v)
{
    const struct model *model = v->model;
    const struct plan *plan = v->plan;
    uint64_t all = plan->base_params + plan->trainable_params;
    double block = (double)params_reported_block(model) / 1e9;
    double embedding = (double)params_reported_embedding(model) / 1e9;

    fprintf(out, "Parameters of a rank\n");
    fprintf(out, "  %.4fM Params (%.4fM Trainable [%.4f%%])\n", (double)all / 1e6,
            (double)plan->trainable_params / 1e6, share(plan->trainable_params, all));
    fprintf(out, "  base %llu, LoRA %llu\n", (unsigned long long)plan->base_params,
            (unsigned long long)plan->trainable_params);
    fprintf(out, "Parameters of the model\n");
    fprintf(out, "  Total number of parameters in billions: %.2f\n", block + embedding);
    fprintf(out, "  transformer block %.2f, embedding %.2f, both without routers and head norms\n",
            block, embedding);
    fprintf(out, "  base %llu, LoRA %llu\n", (unsigned long long)plan->base_params_total,
            (unsigned long long)plan->trainable_params_total);
}

static void layout_print(FILE *out, const struct plan_view *v)
{
    const struct spec *spec = v->spec;
    const struct model *model = v->model;
    const struct layout *layout = &v->plan->layout;

    fprintf(out, "Layout\n");
    fprintf(out, "  %d ranks: TP %d, DP %d, EP %d, %d x every expert; %d of %d experts a rank\n",
            layout->world, layout->tp, layout->dp, layout->ep, layout->replicas,
            layout->experts_local, model->experts);
    if (v->plan->cpu)
        fprintf(out, "  on CPUs, %d thread%s a rank%s\n", v->threads, v->threads == 1 ? "" : "s",
                v->threads == 1
                    ? ": a rank takes as many as it has cores, each with scratch of its "
                      "own; give --threads N to count them"
                    : "");
    else if (spec->backend == BACKEND_AUTO)
        fprintf(out, "  on GPUs; without `backend: cuda` this version's trainer takes CPUs\n");
    if (v->gap.what)
        fprintf(out, "  not run by this version yet: %s: %s\n", v->gap.what, v->gap.instead);
    fprintf(out, "  an iteration is %d samples: %d micro-batch%s a rank of %d x %d tokens\n",
            spec->global_batch_size, layout->accumulation, layout->accumulation == 1 ? "" : "es",
            spec->micro_batch_size, spec->max_length);
}

// Of the dry run. Categories peak at different times, the total is that of one moment.
static void dry_print(FILE *out, const struct plan *plan)
{
    char text[BYTES_TEXT];

    if (!plan->dry)
        return;
    fprintf(out, "  %-32s %12s  %s\n", "reached at", "", plan->peak_where);
    fprintf(out, "  %-32s %12s  %s, at %s\n", "largest transient",
            bytes_format(plan->largest_bytes, text), memory_category_name(plan->largest_category),
            plan->largest_where);
    fprintf(out, "  %-32s %12s  granules of 2 MiB\n", "mapped",
            bytes_format(plan->mapped_bytes, text));
}

static void beside_print(FILE *out, const char *title, const struct plan_term *terms, int count,
                         uint64_t bytes)
{
    char text[BYTES_TEXT];

    if (!count)
        return;
    fprintf(out, "  %-32s %12s\n", title, bytes_format(bytes, text));
    for (int i = 0; i < count; i++)
        fprintf(out, "    %-30s %12s  %s\n", terms[i].name, bytes_format(terms[i].bytes, text),
                terms[i].formula);
}

static void bytes_print(FILE *out, const struct plan_view *v)
{
    const struct plan *plan = v->plan;
    char text[BYTES_TEXT];

    fprintf(out, "Memory of a rank at its peak, %s backend\n", backend_of(plan));
    for (int c = 0; c < MEMORY_CATEGORIES; c++) {
        fprintf(out, "  %-32s %12s\n", memory_category_name((enum memory_category)c),
                bytes_format(plan->bytes[c], text));
        for (int i = 0; i < plan->term_count; i++)
            if ((int)plan->terms[i].category == c)
                fprintf(out, "    %-30s %12s  %s\n", plan->terms[i].name,
                        bytes_format(plan->terms[i].bytes, text), plan->terms[i].formula);
    }
    fprintf(out, "  %-32s %12s  %llu bytes\n", "total", bytes_format(plan->total_bytes, text),
            (unsigned long long)plan->total_bytes);
    dry_print(out, plan);
    beside_print(out, "outside the arena", plan->outside, plan->outside_count, plan->outside_bytes);
    fprintf(out, "  %-32s %12s\n", "needed on the device", bytes_format(plan_need(plan), text));
    if (v->cap_bytes)
        fprintf(out, "  %-32s %12s%s\n", "cap", bytes_format(v->cap_bytes, text),
                v->cap_bytes < plan_need(plan) ? "  it does not fit" : "");
    if (v->gpu)
        fprintf(out, "  %-32s %12s  %s has %llu MiB, its driver keeps %llu\n", "there is",
                bytes_format(gpu_visible_bytes(v->gpu), text), v->gpu->name,
                (unsigned long long)v->gpu->total_mib,
                (unsigned long long)(v->gpu->total_mib - v->gpu->visible_mib));
}

// Host memory and disk of the job.
static void host_print(FILE *out, const struct plan_view *v)
{
    const struct plan *plan = v->plan;
    int world = plan->layout.world;
    int node = world < v->fabric.node_gpus ? world : v->fabric.node_gpus;
    char text[BYTES_TEXT];

    fprintf(out, "Host memory and disk\n");
    if (plan->host_count) {
        beside_print(out, "host memory of a rank", plan->host, plan->host_count, plan->host_bytes);
        fprintf(out, NAME "%12s  %d ranks\n", "host memory of a node",
                bytes_format(plan->host_bytes * (uint64_t)node, text), node);
        if (v->host_cap_bytes)
            fprintf(out, NAME "%12s\n", "host memory there is",
                    bytes_format(v->host_cap_bytes, text));
    } else {
        fprintf(out, NAME "%12s  the dataset's tokens and small buffers aside\n",
                "host memory of a rank", "0 B");
    }
    if (v->index.tensors)
        fprintf(out, NAME "%12s  %zu tensors in %zu file%s\n", "checkpoint, of all ranks",
                v->index.bytes ? bytes_format(v->index.bytes, text) : "not told", v->index.tensors,
                v->index.files, v->index.files == 1 ? "" : "s");
    fprintf(out, NAME "%12s  %llu fp32; while it saves, twice that\n", "disk of the adapters",
            bytes_format(plan->disk_bytes, text), (unsigned long long)plan->trainable_params_total);
    fprintf(out,
            NAME "%12s  two moments, fp32 main parameters are the adapters; not written by this "
                 "version yet\n",
            "disk of states to resume with", bytes_format(plan->states_bytes, text));
}

static void run_print(FILE *out, const struct plan_view *v)
{
    fprintf(out, "Run\n");
    fprintf(out, NAME "%12.0f\n", "tokens of an iteration, at most",
            (double)v->spec->global_batch_size * v->spec->max_length);
    if (!v->iterations) {
        fprintf(out, NAME "%12s  of the dataset: give --samples N or --iterations N\n",
                "iterations", "by the size");
        return;
    }
    fprintf(out, NAME "%12lld\n", "iterations", (long long)v->iterations);
    fprintf(out, NAME "%12.6E\n", "learning rate at iteration 1", v->first_lr);
}

static void volumes_print(FILE *out, const struct estimate *e)
{
    char text[BYTES_TEXT];
    bool any = false;

    fprintf(out, "Sent by a rank in an iteration\n");
    for (size_t i = 0; i < ESTIMATE_VOLUMES; i++) {
        double bytes = *estimate_time(e, &estimate_volumes[i]);
        any |= bytes > 0;
        if (bytes > 0)
            fprintf(out, NAME "%12s  %s\n", estimate_volumes[i].name,
                    bytes_format((uint64_t)bytes, text), estimate_volumes[i].what);
    }
    if (!any)
        fprintf(out, NAME "%12s\n", "nothing", "0 B");
}

static void times_print(FILE *out, const struct estimate *e)
{
    for (size_t i = 0; i < ESTIMATE_TIMES; i++) {
        double seconds = *estimate_time(e, &estimate_times[i]);
        if (seconds > 0)
            fprintf(out, NAME "%9.1f ms  %s\n", estimate_times[i].name, seconds * 1e3,
                    estimate_times[i].what);
    }
}

static void duration_print(FILE *out, double seconds)
{
    long minutes = lround(seconds / 60);

    fprintf(out, NAME "%7ld h %02ld\n", "the whole run", minutes / 60, minutes % 60);
}

static void fabric_print(FILE *out, const struct plan_view *v)
{
    const struct fabric *f = &v->fabric;
    const struct gpu *gpu = v->gpu;

    fprintf(out, "  assumed: nodes of %d GPUs, %s between them at %.4g GB/s", f->node_gpus,
            gpu->link_name, gpu->link * 1e-9);
    if (gpu->link_gpus)
        fprintf(out, " for %d, PCIe beyond", gpu->link_gpus);
    fprintf(out, ", %s to other nodes at %.4g GB/s, PCIe to host memory at %.4g GB/s\n",
            f->network_name ? f->network_name : "the network given", f->network * 1e-9,
            gpu->host_link * 1e-9);
    if (gpu->fp8 <= 0)
        fprintf(out, "  %s has no FP8 products: frozen weights are counted at its bf16 peak\n",
                gpu->name);
}

static void estimate_print(FILE *out, const struct plan_view *v)
{
    const struct estimate *e = &v->estimate;

    if (!v->gpu)
        return;
    volumes_print(out, e);
    fprintf(out, "Time of an iteration on %s, an estimate scaled from steps measured on an H200\n",
            v->gpu->name);
    times_print(out, e);
    fprintf(out, NAME "%9.1f ms  %s\n", "iteration", e->step_s * 1e3,
            "balanced routing, full micro-batches");
    fprintf(out, NAME "%12.0f\n", "tokens a second, at most", e->tokens / e->step_s);
    if (v->iterations)
        duration_print(out, e->step_s * (double)v->iterations);
    fabric_print(out, v);
}

void plan_print(FILE *out, const struct plan_view *v)
{
    parameters_print(out, v);
    layout_print(out, v);
    bytes_print(out, v);
    host_print(out, v);
    run_print(out, v);
    estimate_print(out, v);
}
