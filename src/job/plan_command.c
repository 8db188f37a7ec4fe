// SPDX-License-Identifier: Apache-2.0
// `fp8-lora plan`: a job's parameters and bytes, without a GPU and without weights.
#include "job/plan_command.h"

#include "base/bytes.h"
#include "base/log.h"
#include "job/flags.h"
#include "job/params.h"
#include "job/plan.h"
#include "train/planned.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MOST 65536

struct request {
    int ranks; // 0: what the job says
    uint64_t cap_bytes;
    bool json;
};

static void usage(FILE *out)
{
    fputs("usage: fp8-lora plan [--ranks N] [--cap SIZE] [--json] JOB.yaml\n"
          "       fp8-lora plan [--ranks N] [--cap SIZE] [--json] -- sft --FLAG VALUE ...\n"
          "\n"
          "Prints the parameters and the bytes of one rank, from the job and the model's\n"
          "config.json alone.\n"
          "\n"
          "  --ranks N      ranks of the job (default: NPROC_PER_NODE before sft, else\n"
          "                 expert_model_parallel_size)\n"
          "  --cap SIZE     fail when a rank needs more, for instance 80GiB\n"
          "  --json         print JSON\n"
          "  --help-flags   print every key and flag of a job\n",
          out);
}

// 1: the answer was printed.
static int options_read(int argc, char **argv, struct request *request, struct fl_error *e)
{
    enum { RANKS = 1, CAP, JSON, HELP, HELP_FLAGS };
    static const struct option options[] = {
        {"ranks", required_argument, NULL, RANKS},
        {"cap", required_argument, NULL, CAP},
        {"json", no_argument, NULL, JSON},
        {"help", no_argument, NULL, HELP},
        {"help-flags", no_argument, NULL, HELP_FLAGS},
        {NULL, 0, NULL, 0},
    };
    int option;

    opterr = 0;
    while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        char *end;
        long ranks;
        switch (option) {
        case RANKS:
            ranks = strtol(optarg, &end, 10);
            if (end == optarg || *end || ranks < 1 || ranks > RANKS_MOST)
                return error_set(e, -EINVAL, "--ranks: '%.40s' is not in [1, %d]", optarg,
                                 RANKS_MOST);
            request->ranks = (int)ranks;
            break;
        case CAP:
            if (bytes_parse(optarg, &request->cap_bytes, e))
                return error_prefix(e, "--cap");
            if (!request->cap_bytes)
                return error_set(e, -EINVAL, "--cap: must be above 0");
            break;
        case JSON:
            request->json = true;
            break;
        case 'h':
        case HELP:
            usage(stdout);
            return 1;
        case HELP_FLAGS:
            flags_print(stdout);
            return 1;
        case ':':
            return error_set(e, -EINVAL, "%s has no value", argv[optind - 1]);
        default:
            return error_set(e, -EINVAL,
                             "unknown option '%.80s': a job's own flags stand behind `--`",
                             argv[optind - 1]);
        }
    }
    if (optind == argc)
        return error_set(e, -EINVAL, "give a job file, or the job's flags behind `--`");
    return 0;
}

static const char *backend_of(const struct plan *plan)
{
    return plan->cpu ? "cpu" : "cuda";
}

static double share(uint64_t part, uint64_t whole)
{
    return 100.0 * (double)part / (double)whole;
}

static void parameters_print(const struct model *model, const struct plan *plan)
{
    uint64_t all = plan->base_params + plan->trainable_params;
    double block = (double)params_reported_block(model) / 1e9;
    double embedding = (double)params_reported_embedding(model) / 1e9;

    printf("Parameters of a rank\n");
    printf("  %.4fM Params (%.4fM Trainable [%.4f%%])\n", (double)all / 1e6,
           (double)plan->trainable_params / 1e6, share(plan->trainable_params, all));
    printf("  base %llu, LoRA %llu\n", (unsigned long long)plan->base_params,
           (unsigned long long)plan->trainable_params);
    printf("Parameters of the model\n");
    printf("  Total number of parameters in billions: %.2f\n", block + embedding);
    printf("  transformer block %.2f, embedding %.2f, both without routers and head norms\n", block,
           embedding);
    printf("  base %llu, LoRA %llu\n", (unsigned long long)plan->base_params_total,
           (unsigned long long)plan->trainable_params_total);
}

static void layout_print(const struct spec *spec, const struct model *model,
                         const struct layout *layout)
{
    printf("Layout\n");
    printf("  %d ranks: TP %d, DP %d, EP %d, %d x every expert; %d of %d experts a rank\n",
           layout->world, layout->tp, layout->dp, layout->ep, layout->replicas,
           layout->experts_local, model->experts);
    printf("  an iteration is %d samples: %d micro-batch%s a rank of %d x %d tokens\n",
           spec->global_batch_size, layout->accumulation, layout->accumulation == 1 ? "" : "es",
           spec->micro_batch_size, spec->max_length);
}

// Of the dry run. Categories peak at different times, the total is that of one moment.
static void dry_print(const struct plan *plan)
{
    char text[BYTES_TEXT];

    if (!plan->dry)
        return;
    printf("  %-32s %12s  %s\n", "reached at", "", plan->peak_where);
    printf("  %-32s %12s  %s, at %s\n", "largest transient",
           bytes_format(plan->largest_bytes, text), memory_category_name(plan->largest_category),
           plan->largest_where);
    printf("  %-32s %12s  granules of 2 MiB\n", "mapped", bytes_format(plan->mapped_bytes, text));
}

static void bytes_print(const struct plan *plan, uint64_t cap_bytes)
{
    char text[BYTES_TEXT];

    printf("Memory of a rank at its peak, %s backend\n", backend_of(plan));
    for (int c = 0; c < MEMORY_CATEGORIES; c++) {
        printf("  %-32s %12s\n", memory_category_name((enum memory_category)c),
               bytes_format(plan->bytes[c], text));
        for (int i = 0; i < plan->term_count; i++)
            if ((int)plan->terms[i].category == c)
                printf("    %-30s %12s  %s\n", plan->terms[i].name,
                       bytes_format(plan->terms[i].bytes, text), plan->terms[i].formula);
    }
    printf("  %-32s %12s  %llu bytes\n", "total", bytes_format(plan->total_bytes, text),
           (unsigned long long)plan->total_bytes);
    dry_print(plan);
    if (cap_bytes)
        printf("  %-32s %12s\n", "cap", bytes_format(cap_bytes, text));
}

static json_t *whole(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *terms_json(const struct plan *plan)
{
    json_t *terms = json_array();

    for (int i = 0; i < plan->term_count; i++) {
        const struct plan_term *t = &plan->terms[i];
        json_array_append_new(terms, json_pack("{ss ss ss so}", "category",
                                               memory_category_name(t->category), "name", t->name,
                                               "formula", t->formula, "bytes", whole(t->bytes)));
    }
    return terms;
}

// null without a dry run.
static json_t *dry_json(const struct plan *plan)
{
    json_t *at_peak;

    if (!plan->dry)
        return json_null();
    at_peak = json_object();
    for (int c = 0; c < MEMORY_CATEGORIES; c++)
        json_object_set_new(at_peak, memory_category_name((enum memory_category)c),
                            whole(plan->at_peak[c]));
    return json_pack("{so ss so s{so ss ss}}", "bytes_at_peak", at_peak, "peak_where",
                     plan->peak_where, "mapped_bytes", whole(plan->mapped_bytes),
                     "largest_transient", "bytes", whole(plan->largest_bytes), "category",
                     memory_category_name(plan->largest_category), "where", plan->largest_where);
}

static void json_print(const struct spec *spec, const struct plan *plan, uint64_t cap_bytes)
{
    const struct layout *layout = &plan->layout;
    json_t *bytes = json_object(), *notes = json_array(), *root;

    for (int c = 0; c < MEMORY_CATEGORIES; c++)
        json_object_set_new(bytes, memory_category_name((enum memory_category)c),
                            whole(plan->bytes[c]));
    for (size_t i = 0; i < spec->note_count; i++)
        json_array_append_new(notes, json_string(spec->notes[i]));
    root = json_pack(
        "{ss ss s{si si si si si si si} s{so so so so} so so so so so so}", "model", spec->model,
        "backend", backend_of(plan), "layout", "ranks", layout->world, "tp", layout->tp, "dp",
        layout->dp, "ep", layout->ep, "replicas", layout->replicas, "experts_local",
        layout->experts_local, "accumulation", layout->accumulation, "parameters", "base",
        whole(plan->base_params), "trainable", whole(plan->trainable_params), "base_total",
        whole(plan->base_params_total), "trainable_total", whole(plan->trainable_params_total),
        "bytes", bytes, "total_bytes", whole(plan->total_bytes), "cap_bytes", whole(cap_bytes),
        "dry_run", dry_json(plan), "terms", terms_json(plan), "notes", notes);
    json_dumpf(root, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(root);
}

static int ranks_of(const struct request *request, const struct spec *spec)
{
    if (request->ranks)
        return request->ranks;
    return spec->nproc_per_node ? spec->nproc_per_node : spec->expert_parallel;
}

int plan_command(int argc, char **argv)
{
    struct request request = {0};
    struct spec *spec = NULL;
    struct model model;
    struct plan plan;
    struct fl_error e;
    int rc, status = 2;

    rc = options_read(argc, argv, &request, &e);
    if (rc > 0)
        return 0;
    if (rc < 0)
        goto out;
    status = 1;
    if (spec_load(argc - optind, argv + optind, &spec, &e) || model_load(spec->model, &model, &e))
        goto out;
    rc = planned_make(spec, &model, ranks_of(&request, spec), 1, request.cap_bytes, &plan, &e);
    if (rc && rc != -ENOSPC)
        goto out;
    if (request.json) {
        json_print(spec, &plan, request.cap_bytes);
    } else {
        parameters_print(&model, &plan);
        layout_print(spec, &model, &plan.layout);
        bytes_print(&plan, request.cap_bytes);
    }
    status = rc != 0;
out:
    if (status) {
        fflush(stdout);
        log_error("%s", e.text);
    }
    spec_destroy(spec);
    return status;
}
