// SPDX-License-Identifier: Apache-2.0
// A training job of a test: any checkpoint or shape, on either backend.
#include "golden/job.h"

#include "base/memory.h"
#include "base/philox.h"
#include "train/backend.h"
#include "train/planned.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct golden_config golden_tiny = {
    .model = FL_SOURCE_DIR "/tests/data/tiny-qwen3-moe-fp8",
    .values = FL_SOURCE_DIR "/tests/data/golden/golden.safetensors",
};

void golden_must(int rc, const char *call, const struct fl_error *e)
{
    if (rc == 0)
        return;
    printf("Bail out! %s: %s\n", call, e->text);
    exit(1);
}

static const struct tensor *tensor_find(struct golden *g, const char *name)
{
    const struct tensor *tensor = g->file ? safetensors_find(g->file, name) : NULL;

    if (!tensor)
        golden_must(error_set(&g->e, -1, "%s lacks %s", g->config->values, name), "values", &g->e);
    return tensor;
}

void *golden_tensor(struct golden *g, const char *name, size_t *count)
{
    const struct tensor *tensor = tensor_find(g, name);
    void *data = memory_zeroed(tensor->bytes, 1);

    GOLDEN_OK(g, safetensors_read(g->file, tensor, 0, data, tensor->bytes, &g->e));
    *count = tensor->bytes / 4;
    return data;
}

double golden_scalar(struct golden *g, const char *name)
{
    size_t count;
    float *data = golden_tensor(g, name, &count), value = data[0];

    free(data);
    return (double)value;
}

bool golden_has(const struct golden *g, const char *name)
{
    return g->file && safetensors_find(g->file, name);
}

static uint32_t random_u32(uint32_t seed, size_t i)
{
    const uint32_t counter[4] = {(uint32_t)i, (uint32_t)((uint64_t)i >> 32), 0, 0},
                   key[2] = {seed, 7};
    uint32_t random[4];

    philox4x32(counter, key, random);
    return random[0];
}

// What the trainer would read from a job's file. The optimizer is the golden file's.
static void spec_make(struct golden *g)
{
    const struct golden_config *c = g->config;
    int rank = c->rank, samples = c->samples, length = c->length;
    double alpha;
    char text[4][32];

    if (g->file) {
        const struct tensor *ids = tensor_find(g, "input_ids");
        samples = (int)ids->shape[0];
        length = (int)ids->shape[1];
        rank = (int)tensor_find(g, "lora.layers.0.self_attn.q_proj.lora_A")->shape[0];
    }
    alpha = golden_has(g, "lora.alpha") ? golden_scalar(g, "lora.alpha") : 2 * rank;
    snprintf(text[0], sizeof text[0], "%d", rank);
    snprintf(text[1], sizeof text[1], "%g", alpha);
    snprintf(text[2], sizeof text[2], "%d", samples);
    snprintf(text[3], sizeof text[3], "%d", length);
    {
        const char *words[] = {"--model",
                               c->model,
                               "--dataset",
                               "synth://",
                               "--backend",
                               c->cuda ? "cuda" : "cpu",
                               "--numerics",
                               c->numerics == NUMERICS_EXACT ? "exact" : "fp8",
                               "--target_modules",
                               "q_proj",
                               "k_proj",
                               "v_proj",
                               "linear_proj",
                               "linear_fc1",
                               "linear_fc2",
                               "--lora_dropout",
                               "0",
                               "--lora_rank",
                               text[0],
                               "--lora_alpha",
                               text[1],
                               "--micro_batch_size",
                               text[2],
                               "--global_batch_size",
                               text[2],
                               "--max_length",
                               text[3],
                               "--recompute_granularity",
                               c->recompute ? c->recompute : "full",
                               "--lr",
                               "1e-3",
                               "--adam_beta2",
                               "0.95",
                               "--weight_decay",
                               "0.1",
                               "--clip_grad",
                               "1"};
        GOLDEN_OK(g,
                  spec_load(sizeof words / sizeof *words, (char *const *)words, &g->spec, &g->e));
    }
}

static void batch_make(struct golden *g)
{
    struct batch *b = &g->batch;
    int length = g->spec->max_length;
    size_t count;
    int32_t *labels = golden_has(g, "labels") ? golden_tensor(g, "labels", &count) : NULL;

    b->samples = g->spec->micro_batch_size;
    b->tokens = b->samples * length;
    count = (size_t)b->tokens;
    b->ids = g->file ? golden_tensor(g, "input_ids", &count) : memory_zeroed(count, 4);
    b->targets = memory_zeroed(count, sizeof *b->targets);
    b->positions = memory_zeroed(count, sizeof *b->positions);
    b->keys = memory_zeroed(count, sizeof *b->keys);
    b->starts = memory_zeroed((size_t)b->samples + 1, sizeof *b->starts);
    for (int t = 0; t < b->tokens && !g->file; t++)
        b->ids[t] = (int32_t)(random_u32(1, (size_t)t) % (uint32_t)g->model.vocab);
    for (int t = 0; t < b->tokens; t++) {
        b->positions[t] = t % length;
        b->keys[t] = (uint64_t)t;
        b->targets[t] = labels ? labels[t] : t % length < length - 1 ? b->ids[t + 1] : -1;
        b->target_count += b->targets[t] >= 0;
    }
    free(labels);
    for (int s = 0; s <= b->samples; s++)
        b->starts[s] = s * length;
}

// A of a Kaiming start, B about as large as after some training.
static void adapters_random(struct golden *g)
{
    real *params = memory_zeroed(g->count, sizeof *params);
    const struct adapters *all = g->adapters;

    for (const struct adapter *a = all->list; a < all->list + all->count; a++)
        for (int half = 0; half < 2; half++) {
            size_t first = half ? a->b : a->a, n = (size_t)a->rank;
            double spread = half ? 0.02 : 1 / sqrt(a->in);
            n *= (size_t)(half ? a->out : a->in);
            for (size_t i = first; i < first + n; i++)
                params[i] = (real)((2 * (double)random_u32(2, i) * 0x1p-32 - 1) * spread);
        }
    GOLDEN_OK(g, g->ops->upload(g->ops, all->params, params, g->count * sizeof *params, &g->e));
    free(params);
}

static void model_make(struct golden *g)
{
    const struct golden_config *c = g->config;
    int threads = omp_get_max_threads();

    GOLDEN_OK(g, model_load(c->model, &g->model, &g->e));
    if (c->layers)
        g->model.layers = c->layers;
    if (c->vocab)
        g->model.vocab = c->vocab;
    GOLDEN_OK(g, planned_make(g->spec, &g->model, 1, threads, 0, &g->plan, &g->e));
    GOLDEN_OK(g, layout_make(g->spec, &g->model, 1, 0, &g->plan.layout, &g->e));
}

static void network_make(struct golden *g)
{
    struct fl_error *e = &g->e;
    const struct layout *layout = &g->plan.layout;
    int threads = omp_get_max_threads();

    GOLDEN_OK(g, backend_open(g->spec, &g->model, 0, 0, &g->arena, &g->ops, e));
    GOLDEN_OK(g, comm_self_create(&g->comm, e));
    GOLDEN_OK(g, model_weights_create(&g->model, layout, g->arena, &g->weights, e));
    GOLDEN_OK(g, model_weights_load(g->weights, g->config->model, &g->model, layout, threads,
                                    g->ops, NULL, e));
    GOLDEN_OK(g, adapters_create(g->spec, &g->model, layout, g->arena, &g->adapters, e));
    g->count = g->adapters->replicated + g->adapters->expert;
    GOLDEN_OK(g, optimizer_create(&(struct optimizer_config){.spec = g->spec,
                                                             .adapters = g->adapters,
                                                             .ops = g->ops,
                                                             .arena = g->arena,
                                                             .world = g->comm,
                                                             .replicas = g->comm},
                                  &g->optimizer, e));
    GOLDEN_OK(g, net_create(&(struct net_config){.spec = g->spec,
                                                 .model = &g->model,
                                                 .layout = layout,
                                                 .ops = g->ops,
                                                 .arena = g->arena,
                                                 .ep_comm = g->comm,
                                                 .weights = g->weights,
                                                 .adapters = g->adapters},
                            &g->net, e));
}

void golden_open(struct golden *g, const struct golden_config *config)
{
    size_t tokens, layers;

    memset(g, 0, sizeof *g);
    g->config = config;
    if (config->values)
        GOLDEN_OK(g, safetensors_open(config->values, &g->file, &g->e));
    spec_make(g);
    model_make(g);
    network_make(g);
    batch_make(g);
    if (!g->file)
        adapters_random(g);
    tokens = (size_t)g->batch.tokens;
    layers = (size_t)g->model.layers;
    g->hidden = memory_zeroed((layers + 1) * tokens * (size_t)g->model.hidden, sizeof(real));
    g->router_logits = memory_zeroed(layers * tokens * (size_t)g->model.experts, sizeof(real));
    g->logits = memory_zeroed(tokens * (size_t)g->model.vocab, sizeof(real));
    g->routing = memory_zeroed(layers * tokens * (size_t)g->model.top_k, sizeof *g->routing);
}

void golden_close(struct golden *g)
{
    free(g->routing);
    free(g->logits);
    free(g->router_logits);
    free(g->hidden);
    free(g->batch.starts);
    free(g->batch.keys);
    free(g->batch.positions);
    free(g->batch.targets);
    free(g->batch.ids);
    net_destroy(g->net);
    optimizer_destroy(g->optimizer);
    adapters_destroy(g->adapters);
    model_weights_destroy(g->weights);
    comm_destroy(g->comm);
    ops_destroy(g->ops);
    arena_destroy(g->arena);
    spec_destroy(g->spec);
    safetensors_close(g->file);
}

char *golden_name(const struct adapter *a, const char *kind, char half, char name[128])
{
    const char *module = a->target == LORA_Q      ? "q_proj"
                         : a->target == LORA_K    ? "k_proj"
                         : a->target == LORA_V    ? "v_proj"
                         : a->target == LORA_PROJ ? "o_proj"
                         : a->target == LORA_FC1  ? "gate_up"
                                                  : "down";

    if (a->expert < 0)
        snprintf(name, 128, "%s.layers.%d.self_attn.%s.lora_%c", kind, a->layer, module, half);
    else
        snprintf(name, 128, "%s.layers.%d.mlp.experts.%d.%s.lora_%c", kind, a->layer, a->expert,
                 module, half);
    return name;
}

void golden_params_read(struct golden *g, const char *kind, real *host)
{
    const struct adapters *all = g->adapters;
    char name[128];

    for (const struct adapter *a = all->list; a < all->list + all->count; a++)
        for (int half = 0; half < 2; half++) {
            size_t count, expected = (size_t)a->rank * (size_t)(half ? a->out : a->in);
            float *data = golden_tensor(g, golden_name(a, kind, "AB"[half], name), &count);
            if (count != expected)
                golden_must(error_set(&g->e, -1, "%s has another size", name), "values", &g->e);
            for (size_t i = 0; i < count; i++)
                host[(half ? a->b : a->a) + i] = (real)data[i];
            free(data);
        }
}

void golden_adapters(struct golden *g)
{
    real *params = memory_zeroed(g->count, sizeof *params);

    golden_params_read(g, "lora", params);
    GOLDEN_OK(
        g, g->ops->upload(g->ops, g->adapters->params, params, g->count * sizeof *params, &g->e));
    free(params);
}

static void see(void *context, const char *what, int layer, const real *values, int rows, int cols)
{
    struct golden *g = context;
    size_t count = (size_t)rows * (size_t)cols;

    if (!strcmp(what, "hidden"))
        memcpy(g->hidden + (size_t)layer * count, values, count * sizeof *values);
    else if (!strcmp(what, "router_logits"))
        memcpy(g->router_logits + (size_t)layer * count, values, count * sizeof *values);
    else if (!strcmp(what, "logits"))
        memcpy(g->logits + (size_t)layer * (size_t)cols, values, count * sizeof *values);
    else if (!strcmp(what, "experts"))
        for (size_t i = 0; i < count; i++)
            g->routing[(size_t)layer * count + i] = (int32_t)values[i];
}

static void gradients_make(struct golden *g, const struct net_probe *probe)
{
    net_probe_set(g->net, probe);
    GOLDEN_OK(g, optimizer_clear(g->optimizer, &g->e));
    GOLDEN_OK(g, net_train(g->net, &g->batch, 1, 1.0 / (double)g->batch.target_count, 0, &g->loss,
                           &g->e));
}

void golden_train(struct golden *g, const int32_t *routing)
{
    gradients_make(g, &(struct net_probe){.see = see, .context = g, .routing = routing});
}

double golden_mean_loss(const struct golden *g)
{
    return g->loss.loss_sum / (double)g->loss.targets;
}

double golden_step(struct golden *g)
{
    double norm;

    gradients_make(g, &(struct net_probe){0});
    GOLDEN_OK(g, optimizer_reduce(g->optimizer, &norm, &g->e));
    GOLDEN_OK(g, optimizer_step(g->optimizer, g->spec->lr, norm, &g->e));
    return norm;
}

void golden_download(struct golden *g, const real *device, real *host)
{
    GOLDEN_OK(g, g->ops->download(g->ops, host, device, g->count * sizeof *host, &g->e));
}
