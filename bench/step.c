// SPDX-License-Identifier: Apache-2.0
// How long a training step takes on one GPU, in how much memory, and where the time goes:
//   step [--layers N] [--warmup N] [--steps N] [--traced N] [job.yaml | -- FLAGS]
// The job is one of fp8-lora-core's for one rank and data from synth://; without one it is the 30B
// model's step that bench/RESULTS.md tells of. Lines "figure NAME VALUE UNIT" are for programs.
#include "launches.h"
#include "timed_ops.h"

#include "base/memory.h"
#include "comm/comm.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "job/runnable.h"
#include "net/net.h"
#include "ops/cuda/cuda.h"
#include "train/optimizer.h"
#include "train/planned.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define GIB       0x1p30
#define PEAK_FP8  1979e12 // data sheet, dense
#define PEAK_BF16 989e12

struct options {
    int layers; // 0: the model's
    int warmup, steps, traced;
    int words; // of the job
    char **job;
};

struct bench {
    struct options options;
    int threads;
    struct spec *spec;
    struct model model;
    struct plan plan;
    struct arena *arena;
    struct ops *ops, *timed;
    struct spans *spans;
    struct comm *comm;
    struct model_weights *weights;
    struct adapters *adapters;
    struct net *net;
    struct optimizer *optimizer;
    struct dataset *data;
    struct loader *loader;
    struct batch *batch;
    int64_t iteration;
    double loss, norm, tokens, step_ms;
    FILE *figures; // in memory until the end
    char *figures_text;
    size_t figures_bytes;
};

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void figure(const struct bench *b, const char *name, double value, const char *unit)
{
    fprintf(b->figures, "figure %s %.6g %s\n", name, value, unit);
}

static int options_read(int argc, char **argv, struct options *o, struct fl_error *e)
{
    static char *preset[] = {"--model",
                             "synth://tests/data/configs/qwen3-30b-a3b.json",
                             "--dataset",
                             "synth://",
                             "--train_type",
                             "lora",
                             "--lora_rank",
                             "16",
                             "--lora_alpha",
                             "32",
                             "--lora_dropout",
                             "0",
                             "--micro_batch_size",
                             "2",
                             "--global_batch_size",
                             "2",
                             "--max_length",
                             "2048",
                             "--recompute_granularity",
                             "full",
                             "--lr",
                             "1e-5",
                             "--backend",
                             "cuda"};
    const struct {
        const char *name;
        int *value;
    } known[] = {{"--layers", &o->layers},
                 {"--warmup", &o->warmup},
                 {"--steps", &o->steps},
                 {"--traced", &o->traced}};
    int at = 1;

    *o = (struct options){.warmup = 2, .steps = 5, .traced = 2};
    while (at + 1 < argc && strcmp(argv[at], "--") != 0) {
        size_t i = 0, count = sizeof known / sizeof *known;
        while (i < count && strcmp(known[i].name, argv[at]) != 0)
            i++;
        if (i == count)
            break;
        *known[i].value = atoi(argv[at + 1]);
        at += 2;
    }
    if (at < argc && !strcmp(argv[at], "--"))
        at++;
    o->words = argc - at;
    o->job = argv + at;
    if (o->words == 0) {
        o->words = sizeof preset / sizeof *preset;
        o->job = preset;
    }
    if (o->layers < 0 || o->warmup < 0 || o->steps < 1 || o->traced < 0)
        return error_set(e, -EINVAL, "--steps at least 1, the others at least 0");
    return 0;
}

static int job_read(struct bench *b, struct fl_error *e)
{
    int rc = spec_load(b->options.words, b->options.job, &b->spec, e);

    if (rc == 0)
        rc = runnable_check(b->spec, 1, e);
    if (rc == 0 && b->spec->backend != BACKEND_CUDA)
        rc = error_set(e, -EINVAL, "backend: write cuda");
    if (rc == 0)
        rc = model_load(b->spec->model, &b->model, e);
    if (rc < 0)
        return rc;
    if (b->options.layers)
        b->model.layers = b->options.layers;
    rc = planned_make(b->spec, &b->model, 1, b->threads, 0, &b->plan, e);
    if (rc == 0)
        rc = runnable_shapes(b->spec, &b->model, &b->plan.layout, e);
    if (rc < 0)
        return rc;
    b->spec->recompute = b->plan.recompute;
    return layout_make(b->spec, &b->model, 1, 0, &b->plan.layout, e);
}

static int weights_make(struct bench *b, struct fl_error *e)
{
    struct load_stats stats;
    int rc = model_weights_create(&b->model, &b->plan.layout, b->arena, &b->weights, e);

    if (rc == 0)
        rc = model_weights_load(b->weights, b->spec->model, &b->model, &b->plan.layout, b->threads,
                                b->ops, &stats, e);
    if (rc < 0)
        return rc;
    printf("%s %.2f GiB of weights in %.1f s\n", stats.made ? "made" : "loaded",
           (double)stats.bytes / GIB, stats.seconds);
    if (!stats.made)
        figure(b, "load_rate", (double)stats.bytes / stats.seconds * 1e-9, "GB/s");
    return 0;
}

static int adapters_make(struct bench *b, struct fl_error *e)
{
    struct adapters start;
    int rc = adapters_create(b->spec, &b->model, &b->plan.layout, b->arena, &b->adapters, e);

    if (rc == 0)
        rc = adapters_host_copy(b->adapters, b->ops, &start, e);
    if (rc < 0)
        return rc;
    adapters_init(&start, b->spec->seed);
    rc = adapters_host_return(&start, b->ops, b->adapters, e);
    adapters_host_clear(&start, b->adapters);
    return rc;
}

static int data_make(struct bench *b, struct fl_error *e)
{
    const struct spec *spec = b->spec;
    const struct loader_options options = {
        .seed = spec->seed,
        .micro_batch_size = spec->micro_batch_size,
        .global_batch_size = spec->global_batch_size,
        .dp_size = 1,
        .max_length = spec->max_length,
    };
    int rc;

    if (!dataset_is_made(spec->datasets[0]))
        return error_set(e, -EINVAL, "dataset: write synth://");
    rc = dataset_make(spec->datasets[0], b->model.vocab, spec->max_length, &b->data, e);
    if (rc == 0)
        rc = loader_create(b->data, &options, &b->loader, e);
    if (rc == 0)
        b->batch = loader_batch_create(b->loader);
    return rc;
}

static int trainer_make(struct bench *b, struct fl_error *e)
{
    struct net_config config;
    struct optimizer_config optimizer;
    int rc = ops_cuda_use(0, e);

    if (rc == 0)
        rc = arena_create_device(0, &b->arena, e);
    if (rc == 0)
        rc = ops_cuda_create(&b->model, b->arena, &b->ops, e);
    if (rc == 0)
        rc = comm_self_create(&b->comm, e);
    if (rc < 0)
        return rc;
    b->spans = spans_create(cuda_of(b->ops)->stream);
    b->timed = timed_ops_create(b->ops, b->spans);
    if ((rc = weights_make(b, e)) < 0 || (rc = adapters_make(b, e)) < 0 ||
        (rc = data_make(b, e)) < 0)
        return rc;
    config = (struct net_config){
        .spec = b->spec,
        .model = &b->model,
        .layout = &b->plan.layout,
        .ops = b->timed,
        .arena = b->arena,
        .ep_comm = b->comm,
        .weights = b->weights,
        .adapters = b->adapters,
    };
    optimizer = (struct optimizer_config){
        .spec = b->spec,
        .adapters = b->adapters,
        .ops = b->timed,
        .arena = b->arena,
        .world = b->comm,
        .replicas = b->comm,
    };
    rc = net_create(&config, &b->net, e);
    return rc < 0 ? rc : optimizer_create(&optimizer, &b->optimizer, e);
}

// What the trainer does in an iteration, and then waits for the GPU.
static int step_run(struct bench *b, struct fl_error *e)
{
    int rounds = loader_rounds(b->loader, b->iteration), rc;
    int64_t targets = 0;

    b->loss = b->tokens = 0;
    for (int round = 0; round < rounds; round++) {
        loader_fill(b->loader, b->iteration, round, b->batch);
        targets += b->batch->target_count;
    }
    if ((rc = optimizer_clear(b->optimizer, e)) < 0)
        return rc;
    for (int round = 0; round < rounds; round++) {
        struct net_loss loss;
        loader_fill(b->loader, b->iteration, round, b->batch);
        rc = net_train(b->net, b->batch, (uint64_t)b->iteration, 1 / (double)targets, 1.0 / rounds,
                       &loss, e);
        if (rc < 0)
            return rc;
        b->loss += loss.loss_sum / (double)targets;
        b->tokens += b->batch->tokens;
    }
    b->iteration++;
    if ((rc = optimizer_reduce(b->optimizer, &b->norm, e)) < 0 ||
        (rc = optimizer_step(b->optimizer, b->spec->lr, b->norm, e)) < 0)
        return rc;
    rc = CUDA_CHECK(cudaStreamSynchronize(cuda_of(b->ops)->stream), e);
    if (rc == 0 && (!isfinite(b->loss) || !isfinite(b->norm) || b->norm == 0))
        return error_set(e, -EDOM, "step %lld: loss %g, gradient's norm %g",
                         (long long)b->iteration, b->loss, b->norm);
    return rc;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int steps_time(struct bench *b, struct fl_error *e)
{
    int n = b->options.steps, rc = 0;
    double *ms = memory_zeroed((size_t)n, sizeof *ms);

    for (int i = 0; i < b->options.warmup && rc == 0; i++)
        rc = step_run(b, e);
    for (int i = 0; i < n && rc == 0; i++) {
        double start = now_s();
        rc = step_run(b, e);
        ms[i] = (now_s() - start) * 1e3;
    }
    qsort(ms, (size_t)n, sizeof *ms, compare);
    b->step_ms = (ms[n / 2] + ms[(n - 1) / 2]) / 2;
    if (rc == 0) {
        printf("step: %.2f ms (median of %d, %.2f to %.2f), %.0f tokens/s; loss %.4f, gradient's "
               "norm %.4g\n",
               b->step_ms, n, ms[0], ms[n - 1], b->tokens / b->step_ms * 1e3, b->loss, b->norm);
        figure(b, "step_ms", b->step_ms, "ms");
        figure(b, "step_tokens_per_s", b->tokens / b->step_ms * 1e3, "tokens/s");
    }
    free(ms);
    return rc;
}

// Useful arithmetic: what is computed again does not count.
static void utilisation_print(const struct bench *b)
{
    struct work w = work_model(&b->model, b->batch->starts, b->batch->samples, b->spec->lora_rank,
                               b->spec->lora_targets);
    double rounds = b->tokens / b->batch->tokens;
    double other = (w.bf16 + w.attention_forward + w.attention_backward) * rounds;
    double fp8 = w.fp8 * rounds, seconds = b->step_ms * 1e-3;
    double peaks = (fp8 / PEAK_FP8 + other / PEAK_BF16) / seconds;

    printf("model: %.1f TFLOP a step (%.1f in FP8), %.0f TFLOP/s: %.1f %% of the FP8 peak, %.1f %% "
           "with each product at its precision's peak; floor of its arithmetic %.1f ms\n",
           (fp8 + other) * 1e-12, fp8 * 1e-12, (fp8 + other) / seconds * 1e-12,
           100 * (fp8 + other) / seconds / PEAK_FP8, 100 * peaks, work_floor_s(w) * rounds * 1e3);
    figure(b, "step_model_flops", (fp8 + other) * 1e-12, "TFLOP");
    figure(b, "step_mfu_fp8_peak", 100 * (fp8 + other) / seconds / PEAK_FP8, "%");
    figure(b, "step_mfu", 100 * peaks, "%");
}

static void memory_line(const struct bench *b, const char *name, double measured, double planned)
{
    char text[64];

    printf("| %-13s | %8.3f | %8.3f | %+6.1f%% |\n", name, measured / GIB, planned / GIB,
           planned > 0 ? 100 * (measured / planned - 1) : 0);
    snprintf(text, sizeof text, "step_memory_%s", name);
    figure(b, text, measured / GIB, "GiB");
    snprintf(text, sizeof text, "step_planned_%s", name);
    figure(b, text, planned / GIB, "GiB");
}

static void memory_print(const struct bench *b)
{
    struct arena_stats stats;
    size_t free_bytes = 0, total_bytes = 0;

    arena_stats_get(b->arena, &stats);
    printf("\n| memory, peaks | GiB      | planned  | off     |\n|---|--:|--:|--:|\n");
    for (int c = 0; c < MEMORY_CATEGORIES; c++)
        memory_line(b, memory_category_name((enum memory_category)c), (double)stats.peak[c],
                    (double)b->plan.bytes[c]);
    memory_line(b, "at-one-time", (double)stats.peak_total, (double)b->plan.total_bytes);
    memory_line(b, "mapped", (double)stats.mapped_total, (double)b->plan.mapped_bytes);
    if (cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess)
        memory_line(b, "device", (double)(total_bytes - free_bytes), (double)plan_need(&b->plan));
    printf("\nretries %llu; the plan's peak: %s\n\n", (unsigned long long)stats.retries,
           b->plan.peak_where);
}

static int traced_run(struct bench *b, enum spans_level level, struct fl_error *e)
{
    int rc = 0;

    spans_record(b->spans, level);
    for (int i = 0; i <= b->options.traced && rc == 0; i++) { // one more that begins the first
        rc = CUDA_CHECK(spans_step(b->spans), e);
        if (rc == 0 && i < b->options.traced)
            rc = step_run(b, e);
    }
    spans_record(b->spans, SPANS_NONE);
    return rc;
}

static int breakdown(struct bench *b, struct fl_error *e)
{
    int rc = traced_run(b, SPANS_OPERATIONS, e);

    if (rc < 0)
        return rc;
    launches_watch(b->spans);
    rc = traced_run(b, SPANS_LAUNCHES, e);
    launches_watch(NULL);
    if (rc == 0)
        spans_print(b->spans, b->step_ms, stdout);
    return rc;
}

static int bench_run(struct bench *b, struct fl_error *e)
{
    static const char *const ways[] = {"full", "none", "selective", "auto"};
    int rc = job_read(b, e);

    if (rc == 0)
        rc = trainer_make(b, e);
    if (rc < 0)
        return rc;
    printf("%s, %d layers, rank %d, %d x %d tokens, recompute %s%s, on %s\n", b->spec->model,
           b->model.layers, b->spec->lora_rank, b->spec->micro_batch_size, b->spec->max_length,
           ways[b->spec->recompute],
           b->spec->recompute != RECOMPUTE_SELECTIVE      ? ""
           : b->spec->recompute_part == RECOMPUTE_EXPERTS ? " of experts"
                                                          : " of attention",
           b->ops->name);
    rc = steps_time(b, e);
    if (rc < 0)
        return rc;
    utilisation_print(b);
    memory_print(b);
    fflush(stdout);
    rc = b->options.traced ? breakdown(b, e) : 0;
    fflush(b->figures);
    printf("\n%s", b->figures_text);
    return rc;
}

static void bench_clear(struct bench *b)
{
    batch_destroy(b->batch);
    loader_destroy(b->loader);
    dataset_destroy(b->data);
    optimizer_destroy(b->optimizer);
    net_destroy(b->net);
    adapters_destroy(b->adapters);
    model_weights_destroy(b->weights);
    ops_destroy(b->timed);
    spans_destroy(b->spans);
    ops_destroy(b->ops);
    arena_destroy(b->arena);
    comm_destroy(b->comm);
    spec_destroy(b->spec);
    if (b->figures)
        fclose(b->figures);
    free(b->figures_text);
}

int main(int argc, char **argv)
{
    struct bench b = {.threads = (int)sysconf(_SC_NPROCESSORS_ONLN)};
    struct fl_error e = {0};
    int rc = options_read(argc, argv, &b.options, &e);

    b.figures = open_memstream(&b.figures_text, &b.figures_bytes);
    if (rc == 0 && !b.figures)
        rc = error_set(&e, -ENOMEM, "no memory");
    if (rc == 0)
        rc = bench_run(&b, &e);
    if (rc < 0)
        fprintf(stderr, "step: %s\n", e.text);
    fflush(stdout);
    bench_clear(&b);
    return rc < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
