// SPDX-License-Identifier: Apache-2.0
// The tiny checkpoint and its golden values beside our own network.
#include "golden/golden.h"

#include "unit/check.h"

#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECKPOINT FL_SOURCE_DIR "/tests/data/tiny-qwen3-moe-fp8"
#define VALUES     FL_SOURCE_DIR "/tests/data/golden/golden.safetensors"

static void *tensor_read(struct golden *g, const char *name, size_t *count)
{
    const struct tensor *tensor = safetensors_find(g->file, name);
    void *data;

    if (!tensor)
        fail_msg("golden.safetensors lacks %s", name);
    data = memory_zeroed(tensor->bytes, 1);
    check_ok(safetensors_read(g->file, tensor, 0, data, tensor->bytes, &g->e), &g->e);
    *count = tensor->bytes / 4;
    return data;
}

static double scalar_read(struct golden *g, const char *name)
{
    size_t count;
    float *data = tensor_read(g, name, &count), value = data[0];

    free(data);
    return (double)value;
}

static void batch_make(struct golden *g)
{
    const struct tensor *ids = safetensors_find(g->file, "input_ids");
    struct batch *b = &g->batch;
    size_t count;
    int length;

    b->ids = tensor_read(g, "input_ids", &count);
    length = (int)ids->shape[1];
    b->samples = (int)ids->shape[0];
    b->tokens = (int)count;
    b->targets = memory_zeroed(count, sizeof *b->targets);
    b->positions = memory_zeroed(count, sizeof *b->positions);
    b->keys = memory_zeroed(count, sizeof *b->keys);
    b->starts = memory_zeroed((size_t)b->samples + 1, sizeof *b->starts);
    for (int t = 0; t < b->tokens; t++) {
        b->positions[t] = t % length;
        b->keys[t] = (uint64_t)t;
        b->targets[t] = t % length < length - 1 ? b->ids[t + 1] : -1;
        b->target_count += b->targets[t] >= 0;
    }
    for (int s = 0; s <= b->samples; s++)
        b->starts[s] = s * length;
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

void golden_open(struct golden *g, enum numerics numerics)
{
    struct fl_error *e = &g->e;
    size_t tokens, layers;

    memset(g, 0, sizeof *g);
    g->spec =
        (struct spec){.source = (char *)"golden",
                      .numerics = numerics,
                      .lora_targets = LORA_Q | LORA_K | LORA_V | LORA_PROJ | LORA_FC1 | LORA_FC2,
                      .lora_rank = 8,
                      .lora_alpha = 16,
                      .tensor_parallel = 1,
                      .expert_parallel = 1,
                      .micro_batch_size = 2,
                      .global_batch_size = 2};
    check_ok(safetensors_open(VALUES, &g->file, e), e);
    check_ok(model_load(CHECKPOINT, &g->model, e), e);
    check_ok(layout_make(&g->spec, &g->model, 1, 0, &g->layout, e), e);
    check_ok(arena_create_host(0, &g->arena, e), e);
    check_ok(ops_cpu_create(&g->model, numerics, g->arena, &g->ops, e), e);
    check_ok(comm_self_create(&g->comm, e), e);
    check_ok(model_weights_create(&g->model, &g->layout, g->arena, &g->weights, e), e);
    check_ok(model_weights_load(g->weights, CHECKPOINT, &g->model, &g->layout, 1, NULL, NULL, e),
             e);
    check_ok(adapters_create(&g->spec, &g->model, &g->layout, g->arena, &g->adapters, e), e);
    check_ok(net_create(&(struct net_config){.spec = &g->spec,
                                             .model = &g->model,
                                             .layout = &g->layout,
                                             .ops = g->ops,
                                             .arena = g->arena,
                                             .ep_comm = g->comm,
                                             .weights = g->weights,
                                             .adapters = g->adapters},
                        &g->net, e),
             e);
    batch_make(g);
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
    adapters_destroy(g->adapters);
    model_weights_destroy(g->weights);
    comm_destroy(g->comm);
    ops_destroy(g->ops);
    arena_destroy(g->arena);
    safetensors_close(g->file);
}

// "lora.layers.1.mlp.experts.3.gate_up.lora_A"
static char *adapter_name(const struct adapter *a, const char *kind, char half, char name[128])
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

static void params_read(struct golden *g, const char *kind, real *to)
{
    const struct adapters *all = g->adapters;
    char name[128];

    for (const struct adapter *a = all->list; a < all->list + all->count; a++)
        for (int half = 0; half < 2; half++) {
            size_t count;
            float *data = tensor_read(g, adapter_name(a, kind, "AB"[half], name), &count);
            assert_int_equal(count, (size_t)a->rank * (size_t)(half ? a->out : a->in));
            for (size_t i = 0; i < count; i++)
                to[(half ? a->b : a->a) + i] = (real)data[i];
            free(data);
        }
}

void golden_adapters(struct golden *g)
{
    params_read(g, "lora", g->adapters->params);
}

static size_t params_count(const struct golden *g)
{
    return g->adapters->replicated + g->adapters->expert;
}

void golden_train(struct golden *g, const int32_t *routing)
{
    net_probe_set(g->net, &(struct net_probe){.see = see, .context = g, .routing = routing});
    check_ok(g->ops->zero(g->ops, g->adapters->grads, params_count(g) * sizeof(real), &g->e),
             &g->e);
    check_ok(
        net_train(g->net, &g->batch, 1, 1.0 / (double)g->batch.target_count, 0, &g->loss, &g->e),
        &g->e);
}

double golden_mean_loss(const struct golden *g)
{
    return g->loss.loss_sum / (double)g->loss.targets;
}

static double distance(const real *ours, const real *theirs, size_t count)
{
    double difference = 0, norm = 0;

    for (size_t i = 0; i < count; i++) {
        difference += pow((double)ours[i] - (double)theirs[i], 2);
        norm += pow((double)theirs[i], 2);
    }
    return sqrt(difference / norm);
}

static double distance_to(struct golden *g, const char *name, const real *ours)
{
    size_t count;
    float *theirs = tensor_read(g, name, &count);
    double d = distance(ours, theirs, count);

    free(theirs);
    return d;
}

static double relative(double ours, double theirs)
{
    return fabs(ours - theirs) / fabs(theirs);
}

// A distance that is not a number is the worst of all.
static void worsen(double *worst, double d)
{
    if (!(d <= *worst))
        *worst = isnan(d) ? INFINITY : d;
}

static void base_measure(struct golden *g, struct golden_exact *x)
{
    size_t tokens = (size_t)g->batch.tokens;
    char name[64];

    golden_train(g, NULL);
    x->base_loss = relative(golden_mean_loss(g), scalar_read(g, "base.loss"));
    x->logits = distance_to(g, "base.logits", g->logits);
    for (int i = 0; i <= g->model.layers; i++) {
        snprintf(name, sizeof name, "base.hidden.%d", i);
        worsen(&x->hidden,
               distance_to(g, name, g->hidden + (size_t)i * tokens * (size_t)g->model.hidden));
    }
    for (int i = 0; i < g->model.layers; i++) {
        snprintf(name, sizeof name, "base.router_logits.%d", i);
        worsen(
            &x->router_logits,
            distance_to(g, name, g->router_logits + (size_t)i * tokens * (size_t)g->model.experts));
    }
}

static void lora_measure(struct golden *g, struct golden_exact *x)
{
    const struct adapters *all = g->adapters;
    real *theirs = memory_zeroed(params_count(g), sizeof *theirs);

    golden_train(g, NULL);
    x->lora_loss = relative(golden_mean_loss(g), scalar_read(g, "lora.loss"));
    x->lora_logits = distance_to(g, "lora.logits", g->logits);
    params_read(g, "grad", theirs);
    for (const struct adapter *a = all->list; a < all->list + all->count; a++) {
        size_t rank = (size_t)a->rank;
        worsen(&x->gradients, distance(all->grads + a->a, theirs + a->a, rank * (size_t)a->in));
        worsen(&x->gradients, distance(all->grads + a->b, theirs + a->b, rank * (size_t)a->out));
    }
    free(theirs);
}

static void training_measure(struct golden *g, int most, struct golden_exact *x)
{
    size_t count = params_count(g), steps;
    float *losses = tensor_read(g, "train.loss", &steps);
    float *norms = tensor_read(g, "train.grad_norm", &steps);
    real *m = memory_zeroed(count, sizeof *m), *v = memory_zeroed(count, sizeof *v);
    const struct moment first = {.values = m}, second = {.values = v};
    struct adamw adamw = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

    assert_int_equal(steps, GOLDEN_STEPS);
    for (int i = 0; i < most; i++) {
        double squares, norm;
        golden_train(g, NULL);
        check_ok(g->ops->sum_squares(g->ops, g->adapters->grads, count, &squares, &g->e), &g->e);
        norm = sqrt(squares);
        worsen(&x->train_loss, relative(golden_mean_loss(g), (double)losses[i]));
        worsen(&x->train_norm, relative(norm, (double)norms[i]));
        adamw.step = i + 1;
        check_ok(g->ops->adamw(g->ops, &adamw, fmin(1, 1 / (norm + 1e-6)), count,
                               g->adapters->params, g->adapters->grads, &first, &second, &g->e),
                 &g->e);
    }
    free(v);
    free(m);
    free(norms);
    free(losses);
}

void golden_exact_measure(struct golden_exact *x, int steps, void (*break_it)(struct golden *g))
{
    struct golden g;

    memset(x, 0, sizeof *x);
    golden_open(&g, NUMERICS_EXACT);
    if (break_it)
        break_it(&g);
    base_measure(&g, x);
    golden_adapters(&g);
    lora_measure(&g, x);
    training_measure(&g, steps, x);
    golden_close(&g);
}

static void compare(const real *ours, const real *theirs, size_t count, double *cosine,
                    double *norm_ratio)
{
    double dot = 0, us = 0, them = 0;

    for (size_t i = 0; i < count; i++) {
        dot += (double)ours[i] * (double)theirs[i];
        us += (double)ours[i] * (double)ours[i];
        them += (double)theirs[i] * (double)theirs[i];
    }
    *cosine = dot / sqrt(us * them);
    *norm_ratio = sqrt(us / them);
}

// A and B of every adapter, each by itself.
static void adapters_compare(struct golden *g, const real *theirs, struct golden_fp8 *x)
{
    const struct adapters *all = g->adapters;
    double unlike = 0, off = 0;

    for (const struct adapter *a = all->list; a < all->list + all->count; a++)
        for (int half = 0; half < 2; half++) {
            size_t at = half ? a->b : a->a;
            double cosine, ratio;
            compare(all->grads + at, theirs + at, (size_t)a->rank * (size_t)(half ? a->out : a->in),
                    &cosine, &ratio);
            worsen(&unlike, 1 - cosine);
            worsen(&off, fabs(ratio - 1));
        }
    x->adapter_cosine = 1 - unlike;
    x->adapter_norm_ratio = 1 + off;
}

void golden_fp8_measure(struct golden_fp8 *x, void (*break_it)(struct golden *g))
{
    struct golden exact, g;
    real *theirs;
    double ratio;

    memset(x, 0, sizeof *x);
    // The file holds router logits of the base model only. The adapters change the routing, so the
    // routing to replay is the exact run's, whose gradients are the file's to 5e-5.
    golden_open(&exact, NUMERICS_EXACT);
    golden_adapters(&exact);
    golden_train(&exact, NULL);
    golden_open(&g, NUMERICS_FP8);
    golden_adapters(&g);
    if (break_it)
        break_it(&g);
    theirs = memory_zeroed(params_count(&g), sizeof *theirs);
    params_read(&g, "grad", theirs);
    golden_train(&g, exact.routing);
    compare(g.adapters->grads, theirs, params_count(&g), &x->cosine, &x->norm_ratio);
    adapters_compare(&g, theirs, x);
    golden_train(&g, NULL);
    x->loss = fabs(golden_mean_loss(&g) - scalar_read(&g, "lora.loss"));
    compare(g.adapters->grads, theirs, params_count(&g), &x->free_cosine, &ratio);
    free(theirs);
    golden_close(&g);
    golden_close(&exact);
}

static void judge(char text[256], bool good, const char *name)
{
    size_t used = strlen(text);

    if (!good)
        snprintf(text + used, 256 - used, "%s%s", used ? " " : "", name);
}

char *golden_exact_judge(const struct golden_exact *x, char text[256])
{
    text[0] = 0;
    judge(text, x->base_loss <= 1e-5, "base_loss");
    judge(text, x->router_logits <= 1e-5, "router_logits");
    judge(text, x->hidden <= 1e-5, "hidden");
    judge(text, x->logits <= 1e-5, "logits");
    judge(text, x->lora_loss <= 1e-5, "lora_loss");
    judge(text, x->lora_logits <= 1e-5, "lora_logits");
    judge(text, x->gradients <= 5e-5, "gradients");
    judge(text, x->train_loss <= 1e-4, "train_loss");
    judge(text, x->train_norm <= 1e-4, "train_norm");
    return text;
}

char *golden_fp8_judge(const struct golden_fp8 *x, char text[256])
{
    text[0] = 0;
    judge(text, x->loss <= 0.02, "loss");
    judge(text, x->cosine >= 0.99, "cosine");
    judge(text, fabs(x->norm_ratio - 1) <= 0.04, "norm_ratio");
    judge(text, x->adapter_cosine >= 0.95, "adapter_cosine");
    judge(text, fabs(x->adapter_norm_ratio - 1) <= 0.12, "adapter_norm_ratio");
    judge(text, x->free_cosine >= 0.985, "free_cosine");
    return text;
}
