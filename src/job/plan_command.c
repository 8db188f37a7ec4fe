// SPDX-License-Identifier: Apache-2.0
// `fp8-lora plan`: a job's parameters and bytes, without a GPU and without weights.
#include "job/plan_command.h"

#include "base/bytes.h"
#include "base/file.h"
#include "base/log.h"
#include "job/flags.h"
#include "job/job_write.h"
#include "job/plan_print.h"
#include "train/planned.h"
#include "train/schedule.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MOST     65536
#define THREADS_MOST   4096
#define NODE_GPUS_MOST 1024
#define JOB_LIMIT      (1u << 20) // bytes

struct request {
    int ranks;   // 0: what the job says
    int threads; // of a rank of the CPU backend
    uint64_t cap_bytes, host_bytes;
    bool json, explain, fit;
    const struct gpu *gpu;
    struct fabric fabric;
    int64_t iterations, samples; // 0: not given
    const char *output;          // of the job that fits
};

static void usage(FILE *out)
{
    fputs(
        "usage: fp8-lora plan [OPTION]... JOB.yaml\n"
        "       fp8-lora plan [OPTION]... -- sft --FLAG VALUE ...\n"
        "\n"
        "Prints what a job needs: parameters, bytes of one rank by category, host memory, disk,\n"
        "traffic and an estimate of its time, from the job and the model's config.json alone.\n"
        "\n"
        "  --explain           how the count arises, where the memory goes, what to change\n"
        "  --fit               what fits a cap, soonest first; with --output the changed job.yaml\n"
        "  --gpu-memory SIZE   cap of a rank's device; fail when it needs more (--cap; with --fit "
        "the\n"
        "                      GPU's own memory less what its driver keeps if not given)\n"
        "  --host-memory SIZE  memory of a node that --fit may use\n"
        "  --output FILE       of --fit, the job with the first choice taken\n"
        "  --ranks N           ranks of the job (default: NPROC_PER_NODE before sft, else\n"
        "                      expert_model_parallel_size)\n"
        "  --threads N         of a rank on CPUs, each with scratch of its own (default: 1)\n"
        "  --gpu NAME          H200, H100 (default), H100-PCIe, H100-NVL, H800, H20, A100,\n"
        "                      A100-PCIe, A100-40GB, L40S, B200\n"
        "  --node-gpus N       GPUs of a node (default: 8)\n"
        "  --network SPEED     of a GPU to other nodes: InfiniBand-HDR, -NDR (default), -XDR,\n"
        "                      RoCE-200, -400, Ethernet-25, -100, or bytes a second as 50GB\n"
        "  --samples N         of the dataset: iterations and the run's time\n"
        "  --iterations N      likewise\n"
        "  --json              print JSON\n"
        "  --help-flags        print every key and flag of a job\n",
        out);
}

static int whole_read(const char *name, const char *text, int64_t most, int64_t *out,
                      struct fl_error *e)
{
    char *end;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || *end || errno || value < 1 || value > most)
        return error_set(e, -EINVAL, "%s: '%.40s' is not in [1, %lld]", name, text,
                         (long long)most);
    *out = value;
    return 0;
}

static int size_read(const char *name, const char *text, uint64_t *out, struct fl_error *e)
{
    if (bytes_parse(text, out, e))
        return error_prefix(e, "%s", name);
    return *out ? 0 : error_set(e, -EINVAL, "%s: must be above 0", name);
}

enum {
    RANKS = 1,
    THREADS,
    CAP,
    HOST,
    JSON,
    EXPLAIN,
    FIT,
    OUTPUT,
    GPU,
    NODE_GPUS,
    NETWORK,
    SAMPLES,
    ITERATIONS,
    HELP_FLAGS
};

static int option_take(int option, struct request *r, struct fl_error *e)
{
    int64_t n = 0;
    int rc = 0;

    switch (option) {
    case RANKS:
        rc = whole_read("--ranks", optarg, RANKS_MOST, &n, e);
        r->ranks = (int)n;
        break;
    case THREADS:
        rc = whole_read("--threads", optarg, THREADS_MOST, &n, e);
        r->threads = (int)n;
        break;
    case CAP:
        rc = size_read("--gpu-memory", optarg, &r->cap_bytes, e);
        break;
    case HOST:
        rc = size_read("--host-memory", optarg, &r->host_bytes, e);
        break;
    case GPU:
        rc = gpu_find(optarg, &r->gpu, e);
        break;
    case NODE_GPUS:
        rc = whole_read("--node-gpus", optarg, NODE_GPUS_MOST, &n, e);
        r->fabric.node_gpus = (int)n;
        break;
    case NETWORK:
        rc = network_find(optarg, &r->fabric, e);
        if (rc < 0)
            error_prefix(e, "--network");
        break;
    case SAMPLES:
        rc = whole_read("--samples", optarg, INT64_MAX / 1000000, &r->samples, e);
        break;
    case ITERATIONS:
        rc = whole_read("--iterations", optarg, INT64_MAX / 1000000, &r->iterations, e);
        break;
    case JSON:
        r->json = true;
        break;
    case EXPLAIN:
        r->explain = true;
        break;
    case FIT:
        r->fit = true;
        break;
    default:
        r->output = optarg;
    }
    return rc;
}

// 1: the answer was printed.
static int options_read(int argc, char **argv, struct request *request, struct fl_error *e)
{
    static const struct option options[] = {
        {"ranks", required_argument, NULL, RANKS},
        {"threads", required_argument, NULL, THREADS},
        {"cap", required_argument, NULL, CAP},
        {"gpu-memory", required_argument, NULL, CAP},
        {"host-memory", required_argument, NULL, HOST},
        {"json", no_argument, NULL, JSON},
        {"explain", no_argument, NULL, EXPLAIN},
        {"fit", no_argument, NULL, FIT},
        {"output", required_argument, NULL, OUTPUT},
        {"gpu", required_argument, NULL, GPU},
        {"node-gpus", required_argument, NULL, NODE_GPUS},
        {"network", required_argument, NULL, NETWORK},
        {"samples", required_argument, NULL, SAMPLES},
        {"iterations", required_argument, NULL, ITERATIONS},
        {"help", no_argument, NULL, 'h'},
        {"help-flags", no_argument, NULL, HELP_FLAGS},
        {NULL, 0, NULL, 0},
    };
    int option, rc;

    opterr = 0;
    while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1)
        switch (option) {
        case 'h':
            usage(stdout);
            return 1;
        case HELP_FLAGS:
            flags_print(stdout);
            return 1;
        case ':':
            return error_set(e, -EINVAL, "%s has no value", argv[optind - 1]);
        case '?':
            return error_set(e, -EINVAL,
                             "unknown option '%.80s': a job's own flags stand behind `--`",
                             argv[optind - 1]);
        default:
            rc = option_take(option, request, e);
            if (rc < 0)
                return rc;
        }
    if (request->output && !request->fit)
        return error_set(e, -EINVAL, "--output is what --fit writes: give both");
    if (optind == argc)
        return error_set(e, -EINVAL, "give a job file, or the job's flags behind `--`");
    return 0;
}

static int ranks_of(const struct request *request, const struct spec *spec)
{
    if (request->ranks)
        return request->ranks;
    return spec->nproc_per_node ? spec->nproc_per_node : spec->expert_parallel;
}

// Iterations, the first learning rate, the estimate.
static void view_fill(const struct request *r, struct plan_view *v)
{
    const struct spec *spec = v->spec;

    v->cap_bytes = r->cap_bytes;
    v->host_cap_bytes = r->host_bytes;
    v->fabric = r->fabric;
    v->choice_count = -1;
    v->threads = r->threads;
    if (!runnable_gap(spec, !v->plan->cpu, r->gpu, v->plan->layout.world, &v->gap))
        v->gap = (struct runnable_gap){0};
    v->iterations = r->iterations       ? r->iterations
                    : spec->train_iters ? spec->train_iters
                                        : r->samples / spec->global_batch_size * spec->epochs;
    if (v->iterations) {
        struct schedule schedule = schedule_make(spec, v->iterations);
        v->first_lr = schedule_lr(&schedule, spec->global_batch_size);
    }
    if (v->plan->cpu)
        return;
    v->gpu = r->gpu;
    estimate_make(spec, v->model, v->plan, v->gpu, &v->fabric, &v->estimate);
}

static int fit(const struct request *r, struct plan_view *v, struct fl_error *e)
{
    const struct fit_request request = {
        .spec = v->spec,
        .model = v->model,
        .world = v->plan->layout.world,
        .cap_bytes = v->cap_bytes,
        .host_bytes = r->host_bytes,
        .gpu = r->gpu,
        .fabric = r->fabric,
    };
    int rc = 0;

    if (v->plan->cpu && (r->fit || r->explain))
        return r->fit
                   ? error_set(e, -EINVAL,
                               "%s: --fit is of GPUs: take backend cpu and numerics exact out of "
                               "the job",
                               v->spec->source)
                   : 0;
    if (r->explain)
        rc = fit_singles(&request, v->singles, &v->single_count, e);
    if (rc == 0 && r->fit)
        rc = fit_search(&request, v->choices, &v->choice_count, e);
    return rc;
}

// The job with the first choice taken. path: of its file; NULL: it was given as flags.
static int output_write(const struct request *r, const struct plan_view *v, const char *path,
                        struct fl_error *e)
{
    struct spec changed;
    char *text = NULL, *written = NULL;
    size_t bytes;
    int rc = 0;

    if (!r->output)
        return 0;
    if (v->choice_count < 1)
        return error_set(e, -ENOSPC, "%s: nothing fits: it is not written", r->output);
    changed = fit_apply(v->spec, &v->choices[0]);
    if (path)
        rc = file_read(path, JOB_LIMIT, &text, &bytes, e);
    if (rc == 0)
        rc = job_write(v->spec, &changed, text, path ? path : r->output, &written, e);
    if (rc == 0)
        rc = file_write(r->output, written, strlen(written), e);
    free(written);
    free(text);
    return rc;
}

static void answer_print(const struct request *r, const struct plan_view *v)
{
    if (r->json) {
        plan_print_json(stdout, v);
        return;
    }
    plan_print(stdout, v);
    if (r->explain)
        plan_explain(stdout, v);
    if (v->choice_count >= 0)
        plan_print_fit(stdout, v);
}

int plan_command(int argc, char **argv)
{
    struct request request = {.threads = 1, .fabric = FABRIC_PRESET};
    struct spec *spec = NULL;
    struct model model;
    struct plan plan;
    struct plan_view view = {.model = &model, .plan = &plan};
    struct fl_error e;
    int rc, status = 2;

    if (gpu_find(GPU_PRESET, &request.gpu, &e) < 0)
        goto out;
    rc = options_read(argc, argv, &request, &e);
    if (rc > 0)
        return 0;
    if (rc < 0)
        goto out;
    status = 1;
    if (request.fit && !request.cap_bytes)
        request.cap_bytes = gpu_visible_bytes(request.gpu);
    if (spec_load(argc - optind, argv + optind, &spec, &e) || model_load(spec->model, &model, &e) ||
        index_read(spec->model, &view.index, &e))
        goto out;
    rc = planned_make(spec, &model, ranks_of(&request, spec), request.threads, request.cap_bytes,
                      &plan, &e);
    if (rc && rc != -ENOSPC)
        goto out;
    view.spec = spec;
    view_fill(&request, &view);
    if (fit(&request, &view, rc ? NULL : &e) < 0 && !rc)
        goto out;
    answer_print(&request, &view);
    status = rc != 0;
    if (request.fit) { // a job that does not fit was the question
        status = view.choice_count < 1;
        if (output_write(&request, &view, argc - optind == 1 ? argv[optind] : NULL, &e) < 0)
            status = 1;
        else if (status)
            error_set(&e, -ENOSPC, "%s: nothing fits", spec->source);
    }
out:
    if (status) {
        fflush(stdout);
        log_error("%s", e.text);
    }
    spec_destroy(spec);
    return status;
}
