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
        fprintf(out, "  %-32s %12s\n", "cap", bytes_format(v->cap_bytes, text));
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
                bytes_format(v->index.bytes, text), v->index.tensors, v->index.files,
                v->index.files == 1 ? "" : "s");
    fprintf(out, NAME "%12s  %llu fp32\n", "disk of the adapters",
            bytes_format(plan->disk_bytes, text), (unsigned long long)plan->trainable_params_total);
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

static void traffic_line(FILE *out, const char *name, double bytes, const char *what)
{
    char text[BYTES_TEXT];

    if (bytes > 0)
        fprintf(out, NAME "%12s  %s\n", name, bytes_format((uint64_t)bytes, text), what);
}

static void time_line(FILE *out, const char *name, double seconds, const char *what)
{
    if (seconds > 0)
        fprintf(out, NAME "%9.1f ms  %s\n", name, seconds * 1e3, what);
}

static void duration_print(FILE *out, double seconds)
{
    long minutes = lround(seconds / 60);

    fprintf(out, NAME "%7ld h %02ld\n", "the whole run", minutes / 60, minutes % 60);
}

static void estimate_print(FILE *out, const struct plan_view *v)
{
    const struct estimate *e = &v->estimate;

    if (!v->gpu)
        return;
    fprintf(out, "Sent by a rank in an iteration\n");
    traffic_line(out, "to the experts and back", e->exchange_bytes, "FP8 there, bf16 back");
    traffic_line(out, "gradients", e->gradient_bytes, "fp32, ring");
    traffic_line(out, "gathered weights", e->gather_bytes, "");
    traffic_line(out, "to and from host memory", e->host_bytes, "");
    if (e->exchange_bytes + e->gradient_bytes + e->gather_bytes + e->host_bytes == 0)
        fprintf(out, NAME "%12s\n", "nothing", "0 B");
    fprintf(out, "Time of an iteration on %s, an estimate\n", v->gpu->name);
    time_line(out, "frozen products", e->products_s, "FP8, 60 % of the peak, grouped 58 %");
    time_line(out, "attention", e->attention_s, "48 % of the bf16 peak, backward 36 %");
    time_line(out, "output layer", e->head_s, "72 % of the bf16 peak");
    time_line(out, "adapters", e->adapters_s, "20 % of the bf16 peak");
    time_line(out, "norms, quantising, moving", e->traffic_s, "88 % of the memory's bandwidth");
    time_line(out, "launches", e->launches_s, "0.2 ms a layer and micro-batch");
    time_line(out, "exchange with experts", e->exchange_s, "nothing of it overlapped");
    time_line(out, "gradients' reduction", e->gradients_s, "");
    time_line(out, "gathering, beyond computing", e->gather_s, "");
    time_line(out, "inputs' copies, likewise", e->inputs_s, "");
    time_line(out, "optimizer", e->optimizer_s, "");
    time_line(out, "iteration", e->step_s, "balanced routing, full micro-batches");
    fprintf(out, NAME "%12.0f\n", "tokens a second, at most", e->tokens / e->step_s);
    if (v->iterations)
        duration_print(out, e->step_s * (double)v->iterations);
    fprintf(
        out,
        "  assumed: nodes of %d GPUs, %.0f GB/s to a GPU of the node, %.0f GB/s to other nodes\n",
        v->fabric.node_gpus, v->gpu->link * 1e-9, v->fabric.network * 1e-9);
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
