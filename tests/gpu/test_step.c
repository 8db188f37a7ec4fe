// SPDX-License-Identifier: Apache-2.0
// Whole training steps on the GPU: beside transformers' values, beside the CPU's numbers with the
// same quantisation, beside themselves, and their memory beside the plan.
//   test_step [--small | --time] [--cpu]                    --cpu: the CPU in the GPU's place
//   test_step [--cpu | --exact] --oracle CHECKPOINT VALUES  of tests/gpu/oracle.py
// From the repository's root.
#include "golden/golden.h"

#include "base/memory.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QWEN3_30B    "synth://" FL_SOURCE_DIR "/tests/data/configs/qwen3-30b-a3b.json?seed=1"
#define STEPS        4
#define SHARP_LAYERS 1 // for which the sharp limits hold whatever the order of right sums

static bool cuda = true, small, exact;
static int passed, failed, skipped;

__attribute__((format(printf, 2, 3))) static void report(bool ok, const char *format, ...)
{
    va_list arguments;

    printf("%sok %d - ", ok ? "" : "not ", passed + failed + 1);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    fflush(stdout);
    ok ? passed++ : failed++;
}

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// Layers of the 30B model.
static struct golden_config wide(void)
{
    return (struct golden_config){.model = QWEN3_30B,
                                  .cuda = cuda,
                                  .layers = small ? 1 : 2,
                                  .vocab = small ? 1024 : 8192,
                                  .rank = 16,
                                  .samples = 2,
                                  .length = small ? 64 : 512};
}

static void likeness_report(const char *name, const struct golden_likeness *x, const char *broken)
{
    report(!broken[0],
           "%s: loss off by %.5f; gradient: cosine %.5f, norm %.4f of the other's; of the worst "
           "adapter %.5f (%s), %.4f; %d without%s%s",
           name, x->loss, x->cosine, x->norm_ratio, x->adapter_cosine, x->worst,
           x->adapter_norm_ratio, x->without, broken[0] ? "; broken: " : "", broken);
}

// Peaks of the arena beside the plan's, 3 % apart at most, workspace 5 %.
static void memory_check(struct golden *g, const char *name)
{
    struct arena_stats stats;
    bool good = true;
    char text[512] = "";

    arena_stats_get(g->arena, &stats);
    for (int c = 0; c < MEMORY_CATEGORIES; c++) {
        double planned = (double)g->plan.bytes[c], off = (double)stats.peak[c] - planned;
        double limit = c == MEMORY_WORKSPACE ? 0.05 : 0.03;
        size_t used = strlen(text);
        if (planned == 0 && off == 0)
            continue;
        good = good && fabs(off) <= limit * planned;
        snprintf(text + used, sizeof text - used, " %s %.1f MiB %+.2f %%",
                 memory_category_name((enum memory_category)c), (double)stats.peak[c] / 0x1p20,
                 100 * off / planned);
    }
    report(good, "memory beside the plan, %s:%s", name, text);
}

static void golden_file(void)
{
    struct golden_config config = golden_tiny;
    struct golden_fp8 x;
    char broken[256], name[64];

    config.cuda = cuda;
    golden_fp8_measure(&x, &config, NULL);
    golden_fp8_judge(&x, broken);
    snprintf(name, sizeof name, "golden file (routing free: cosine %.4f)", x.free_cosine);
    likeness_report(name, &x.replayed, broken);
}

static void floor_print(const struct golden_likeness *floor)
{
    printf(
        "# by itself the CPU's step moves so far: loss %.5f; cosine %.5f, norm %.4f; worst adapter "
        "%.5f, %.4f\n",
        floor->loss, floor->cosine, floor->norm_ratio, floor->adapter_cosine,
        floor->adapter_norm_ratio);
}

// The same step by the CPU, whose routing is replayed. deep: more layers than the sharp limits hold
// for, so the CPU's floor is measured too.
static void sharp(const char *name, const struct golden_config *config, bool deep)
{
    struct golden_config cpu = *config;
    struct golden reference, g;
    struct golden_likeness x, floor;
    char broken[256], text[96];
    double start = now_s(), loss;
    int32_t *routing;
    size_t slots;
    real *theirs;

    cpu.cuda = false;
    golden_open(&reference, &cpu);
    golden_open(&g, config);
    if (config->values) {
        golden_adapters(&reference);
        golden_adapters(&g);
    }
    theirs = memory_zeroed(g.count, sizeof *theirs);
    golden_train(&reference, NULL);
    golden_download(&reference, reference.adapters->grads, theirs);
    loss = golden_mean_loss(&reference);
    slots = (size_t)g.model.layers * (size_t)g.batch.tokens * (size_t)g.model.top_k;
    routing = memory_zeroed(slots, sizeof *routing);
    memcpy(routing, reference.routing, slots * sizeof *routing);
    golden_compare(&g, routing, loss, theirs, &x);
    if (deep) {
        golden_floor(&reference, routing, loss, theirs, &floor);
        floor_print(&floor);
    }
    golden_sharp_judge(&x, deep ? &floor : NULL, broken);
    snprintf(text, sizeof text, "the CPU's fp8 step, %s", name);
    likeness_report(text, &x, broken);
    printf("# loss %.4f, %d tokens, %.1f s\n", golden_mean_loss(&g), g.batch.tokens,
           now_s() - start);
    golden_step(&g);
    memory_check(&g, name);
    free(routing);
    free(theirs);
    golden_close(&g);
    golden_close(&reference);
}

// What a run leaves behind.
struct left {
    double loss[STEPS], norm[STEPS];
    size_t bytes[3];
    void *data[3]; // parameters, moments
    double step_ms;
};

static struct moment moments[2]; // of the last update
static int (*adamw)(struct ops *ops, const struct adamw *adamw, double grad_scale, size_t count,
                    real *params, const real *grads, const struct moment *first,
                    const struct moment *second, struct fl_error *e);

static int adamw_seen(struct ops *ops, const struct adamw *a, double grad_scale, size_t count,
                      real *params, const real *grads, const struct moment *first,
                      const struct moment *second, struct fl_error *e)
{
    moments[0] = *first;
    moments[1] = *second;
    return adamw(ops, a, grad_scale, count, params, grads, first, second, e);
}

static void left_take(struct golden *g, struct left *left)
{
    const void *from[] = {g->adapters->params, moments[0].values, moments[1].values};

    for (int i = 0; i < 3; i++) {
        left->bytes[i] =
            i ? moment_values_bytes(moments[i - 1].type, g->count) : g->count * sizeof(real);
        left->data[i] = memory_zeroed(left->bytes[i], 1);
        GOLDEN_OK(g, g->ops->download(g->ops, left->data[i], from[i], left->bytes[i], &g->e));
    }
}

// memory: whether the plan is looked at too, under this name.
static void run(const struct golden_config *config, const char *memory, struct left *left)
{
    struct golden g;
    double start = 0;

    memset(left, 0, sizeof *left);
    golden_open(&g, config);
    adamw = g.ops->adamw;
    g.ops->adamw = adamw_seen;
    if (config->values)
        golden_adapters(&g);
    for (int i = 0; i < STEPS; i++) {
        if (i == 1) // the first one warms up
            start = now_s();
        left->norm[i] = golden_step(&g);
        left->loss[i] = golden_mean_loss(&g);
    }
    left_take(&g, left); // waits for the device
    left->step_ms = (now_s() - start) * 1e3 / (STEPS - 1);
    if (memory)
        memory_check(&g, memory);
    golden_close(&g);
}

static bool same(const struct left *a, const struct left *b)
{
    bool good =
        !memcmp(a->loss, b->loss, sizeof a->loss) && !memcmp(a->norm, b->norm, sizeof a->norm);

    for (int i = 0; i < 3; i++)
        good = good && a->bytes[i] == b->bytes[i] && !memcmp(a->data[i], b->data[i], a->bytes[i]);
    return good;
}

static void left_clear(struct left *left)
{
    for (int i = 0; i < 3; i++)
        free(left->data[i]);
}

// Runs of one seed end in the same bits, and so do those that compute other parts again.
static void repeated(const char *name, struct golden_config config)
{
    static const char *const ways[] = {"none", "selective"};
    struct left first, other;
    char text[96];

    config.recompute = "full";
    run(&config, NULL, &first);
    run(&config, NULL, &other);
    report(same(&first, &other) && first.norm[0] > 0 && isfinite(first.norm[STEPS - 1]),
           "%s: %d steps twice: losses %.6f ... %.6f, adapters and moments are the same bits", name,
           STEPS, first.loss[0], first.loss[STEPS - 1]);
    printf("# %s: %.2f and %.2f ms a step; no operation adds in an order of chance, so this costs "
           "nothing\n",
           name, first.step_ms, other.step_ms);
    left_clear(&other);
    for (int i = 0; i < 2; i++) {
        config.recompute = ways[i];
        snprintf(text, sizeof text, "%s, recompute %s", name, ways[i]);
        run(&config, text, &other);
        report(same(&first, &other), "%s: the bits of recompute full; %.2f ms a step", text,
               other.step_ms);
        left_clear(&other);
    }
    left_clear(&first);
}

// Where the two part: relative distances of what goes into every layer and into the head.
static void hidden_print(struct golden *g, const char *kind)
{
    size_t count = (size_t)g->batch.tokens * (size_t)g->model.hidden, found;
    char name[64];

    printf("# hidden states, %s:", kind);
    for (int i = 0; i <= g->model.layers; i++) {
        const real *ours = g->hidden + (size_t)i * count;
        double difference = 0, norm = 0;
        float *theirs;
        snprintf(name, sizeof name, "%s.hidden.%d", kind, i);
        theirs = golden_tensor(g, name, &found);
        for (size_t j = 0; j < count && found == count; j++) {
            difference += pow((double)ours[j] - (double)theirs[j], 2);
            norm += pow((double)theirs[j], 2);
        }
        printf(" %.1e", sqrt(difference / norm));
        free(theirs);
    }
    printf("\n");
}

// One kind of gradient of the oracle's file.
static void oracle_kind(struct golden *g, const char *kind, const int32_t *routing,
                        bool same_numerics, const struct golden_likeness *floor)
{
    real *theirs = memory_zeroed(g->count, sizeof *theirs);
    struct golden_likeness x;
    char name[128], broken[256];

    snprintf(name, sizeof name, "%s.loss", kind);
    golden_params_read(g, kind, theirs);
    golden_compare(g, routing, golden_scalar(g, name), theirs, &x);
    snprintf(name, sizeof name, "oracle, %s",
             !strcmp(kind, "fp8.grad") ? "transformers with the same quantisation"
                                       : "transformers in fp32");
    likeness_report(name, &x,
                    same_numerics ? golden_sharp_judge(&x, floor, broken)
                                  : golden_likeness_judge(&x, broken));
    hidden_print(g, kind);
    free(theirs);
}

static int32_t *routing_read(struct golden *g)
{
    size_t each = (size_t)g->batch.tokens * (size_t)g->model.top_k, count;
    int32_t *routing = memory_zeroed((size_t)g->model.layers * each, sizeof *routing);
    char name[64];

    for (int i = 0; i < g->model.layers; i++) {
        int32_t *layer;
        snprintf(name, sizeof name, "routing.%d", i);
        layer = golden_tensor(g, name, &count);
        if (count != each)
            golden_must(error_set(&g->e, -1, "%s has another size", name), "values", &g->e);
        memcpy(routing + (size_t)i * each, layer, each * sizeof *layer);
        free(layer);
    }
    return routing;
}

// Where the model is deep, how far the CPU's step moves by itself.
static void oracle_floor(const struct golden_config *config, const int32_t *routing,
                         struct golden_likeness *floor)
{
    struct golden_config cpu = *config;
    struct golden g;
    real *gradients;

    cpu.cuda = false;
    golden_open(&g, &cpu);
    golden_adapters(&g);
    gradients = memory_zeroed(g.count, sizeof *gradients);
    golden_train(&g, routing);
    golden_download(&g, g.adapters->grads, gradients);
    golden_floor(&g, routing, golden_mean_loss(&g), gradients, floor);
    floor_print(floor);
    free(gradients);
    golden_close(&g);
}

static void oracle(const char *checkpoint, const char *values)
{
    struct golden_config config = {.model = checkpoint,
                                   .values = values,
                                   .cuda = cuda,
                                   .numerics = exact ? NUMERICS_EXACT : NUMERICS_FP8};
    struct golden_likeness floor;
    struct golden g;
    int32_t *routing;
    bool deep;

    golden_open(&g, &config);
    golden_adapters(&g);
    routing = routing_read(&g);
    deep = g.model.layers > SHARP_LAYERS;
    oracle_kind(&g, "grad", routing, exact, NULL);
    if (!exact) {
        if (deep)
            oracle_floor(&config, routing, &floor);
        oracle_kind(&g, "fp8.grad", routing, true, deep ? &floor : NULL);
    }
    printf("# loss %.4f\n", golden_mean_loss(&g));
    golden_step(&g);
    memory_check(&g, "oracle's checkpoint");
    free(routing);
    golden_close(&g);
}

// Small: without what takes minutes on the CPU, or on the GPU under a sanitizer.
static void all(void)
{
    struct golden_config tiny = golden_tiny, synth = wide();

    tiny.cuda = cuda;
    golden_file();
    tiny.layers = 1;
    sharp("the first layer of the golden file's job", &tiny, false);
    tiny.layers = 2;
    sharp("its first two", &tiny, true);
    tiny.layers = 0;
    sharp("the golden file's job", &tiny, true);
    repeated("the golden file's job", tiny);
    if (!small || !cuda)
        sharp("layers of 30B", &synth, true);
    if (!small)
        repeated("layers of 30B", synth);
}

int main(int argc, char **argv)
{
    const char *checkpoint = NULL, *values = NULL;

    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--cpu"))
            cuda = false;
        else if (!strcmp(argv[i], "--exact"))
            cuda = false, exact = true;
        else if (!strcmp(argv[i], "--small"))
            small = true;
        else if (!strcmp(argv[i], "--oracle") && i + 2 < argc) {
            checkpoint = argv[++i];
            values = argv[++i];
        } else if (strcmp(argv[i], "--time") != 0) {
            fprintf(stderr,
                    "usage: test_step [--small | --time] [--cpu | --exact] [--oracle CHECKPOINT "
                    "VALUES]\n");
            return 2;
        }
    }
    if (cuda && ops_cuda_devices() == 0) {
        printf("ok 1 # SKIP no GPU is visible to this build\n");
        skipped = 1;
    } else if (checkpoint)
        oracle(checkpoint, values);
    else
        all();
    printf("1..%d\n", passed + failed + skipped);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed > 0;
}
