// SPDX-License-Identifier: Apache-2.0
// How far our own network is from golden values, and one backend from another.
#include "golden/golden.h"

#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    float *theirs = golden_tensor(g, name, &count);
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
    x->base_loss = relative(golden_mean_loss(g), golden_scalar(g, "base.loss"));
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
    real *ours = memory_zeroed(g->count, sizeof *ours);
    real *theirs = memory_zeroed(g->count, sizeof *theirs);

    golden_train(g, NULL);
    x->lora_loss = relative(golden_mean_loss(g), golden_scalar(g, "lora.loss"));
    if (golden_has(g, "lora.logits"))
        x->lora_logits = distance_to(g, "lora.logits", g->logits);
    golden_download(g, all->grads, ours);
    golden_params_read(g, "grad", theirs);
    for (const struct adapter *a = all->list; a < all->list + all->count; a++) {
        size_t rank = (size_t)a->rank;
        worsen(&x->gradients, distance(ours + a->a, theirs + a->a, rank * (size_t)a->in));
        worsen(&x->gradients, distance(ours + a->b, theirs + a->b, rank * (size_t)a->out));
    }
    free(theirs);
    free(ours);
}

static void training_measure(struct golden *g, int most, struct golden_exact *x)
{
    size_t steps;
    float *losses = golden_tensor(g, "train.loss", &steps);
    float *norms = golden_tensor(g, "train.grad_norm", &steps);

    for (int i = 0; i < most; i++) {
        double norm = golden_step(g);
        worsen(&x->train_loss, relative(golden_mean_loss(g), (double)losses[i]));
        worsen(&x->train_norm, relative(norm, (double)norms[i]));
    }
    free(norms);
    free(losses);
}

void golden_exact_measure(struct golden_exact *x, const struct golden_config *config, int steps,
                          void (*break_it)(struct golden *g))
{
    struct golden_config exact = *config;
    struct golden g;

    memset(x, 0, sizeof *x);
    exact.numerics = NUMERICS_EXACT;
    golden_open(&g, &exact);
    if (break_it)
        break_it(&g);
    if (golden_has(&g, "base.loss"))
        base_measure(&g, x);
    golden_adapters(&g);
    lora_measure(&g, x);
    if (golden_has(&g, "train.loss"))
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

static bool all_zero(const real *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (x[i] != 0)
            return false;
    return true;
}

// A and B of every adapter, each by itself.
static void adapters_compare(const struct golden *g, const real *ours, const real *theirs,
                             struct golden_likeness *x)
{
    const struct adapters *all = g->adapters;
    double unlike = 0, off = 0;

    for (const struct adapter *a = all->list; a < all->list + all->count; a++)
        for (int half = 0; half < 2; half++) {
            size_t at = half ? a->b : a->a, n = (size_t)a->rank * (size_t)(half ? a->out : a->in);
            double cosine, ratio, before = unlike;
            // An expert that no token came to.
            if (all_zero(ours + at, n) && all_zero(theirs + at, n)) {
                x->without++;
                continue;
            }
            compare(ours + at, theirs + at, n, &cosine, &ratio);
            worsen(&unlike, 1 - cosine);
            worsen(&off, fabs(ratio - 1));
            if (unlike > before)
                golden_name(a, "", "AB"[half], x -> worst);
        }
    x->adapter_cosine = 1 - unlike;
    x->adapter_norm_ratio = 1 + off;
}

void golden_compare(struct golden *g, const int32_t *routing, double loss, const real *gradients,
                    struct golden_likeness *x)
{
    real *ours = memory_zeroed(g->count, sizeof *ours);

    memset(x, 0, sizeof *x);
    golden_train(g, routing);
    golden_download(g, g->adapters->grads, ours);
    x->loss = fabs(golden_mean_loss(g) - loss);
    compare(ours, gradients, g->count, &x->cosine, &x->norm_ratio);
    adapters_compare(g, ours, gradients, x);
    free(ours);
}

void golden_fp8_measure(struct golden_fp8 *x, const struct golden_config *config,
                        void (*break_it)(struct golden *g))
{
    struct golden_config cpu = *config;
    struct golden_likeness free_routing;
    struct golden exact, g;
    real *theirs;

    memset(x, 0, sizeof *x);
    // The file holds router logits of the base model only. The adapters change the routing, so the
    // routing to replay is the exact run's, whose gradients are the file's to 5e-5.
    cpu.cuda = false;
    cpu.numerics = NUMERICS_EXACT;
    golden_open(&exact, &cpu);
    golden_adapters(&exact);
    golden_train(&exact, NULL);
    golden_open(&g, config);
    golden_adapters(&g);
    if (break_it)
        break_it(&g);
    theirs = memory_zeroed(g.count, sizeof *theirs);
    golden_params_read(&g, "grad", theirs);
    golden_compare(&g, exact.routing, golden_scalar(&g, "lora.loss"), theirs, &x->replayed);
    golden_compare(&g, NULL, golden_scalar(&g, "lora.loss"), theirs, &free_routing);
    x->replayed.loss = free_routing.loss;
    x->free_cosine = free_routing.cosine;
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

char *golden_likeness_judge(const struct golden_likeness *x, char text[256])
{
    text[0] = 0;
    judge(text, x->loss <= 0.02, "loss");
    judge(text, x->cosine >= 0.99, "cosine");
    judge(text, fabs(x->norm_ratio - 1) <= 0.04, "norm_ratio");
    judge(text, x->adapter_cosine >= 0.95, "adapter_cosine");
    judge(text, fabs(x->adapter_norm_ratio - 1) <= 0.12, "adapter_norm_ratio");
    return text;
}

char *golden_fp8_judge(const struct golden_fp8 *x, char text[256])
{
    golden_likeness_judge(&x->replayed, text);
    judge(text, x->free_cosine >= 0.985, "free_cosine");
    return text;
}

static double wider(double limit, double floor)
{
    return fmax(limit, 2 * floor);
}

char *golden_sharp_judge(const struct golden_likeness *x, const struct golden_likeness *floor,
                         char text[256])
{
    const struct golden_likeness still = {
        .cosine = 1, .norm_ratio = 1, .adapter_cosine = 1, .adapter_norm_ratio = 1};
    const struct golden_likeness *f = floor ? floor : &still;

    text[0] = 0;
    judge(text, x->loss <= wider(2e-3, f->loss), "loss");
    judge(text, 1 - x->cosine <= wider(1e-3, 1 - f->cosine), "cosine");
    judge(text, fabs(x->norm_ratio - 1) <= wider(0.01, fabs(f->norm_ratio - 1)), "norm_ratio");
    judge(text, 1 - x->adapter_cosine <= wider(1e-3, 1 - f->adapter_cosine), "adapter_cosine");
    judge(text, fabs(x->adapter_norm_ratio - 1) <= wider(0.01, f->adapter_norm_ratio - 1),
          "adapter_norm_ratio");
    return text;
}

static void gains_move(float *gains, int count, uint32_t *state)
{
    for (int i = 0; i < count; i++) {
        *state = *state * 1664525 + 1013904223;
        gains[i] *= 1 + 1e-4f * ((float)(*state >> 8) * 0x1p-23f - 1);
    }
}

void golden_floor(struct golden *g, const int32_t *routing, double loss, const real *gradients,
                  struct golden_likeness *x)
{
    uint32_t state = 1;

    for (int i = 0; i < g->model.layers; i++) {
        struct layer_weights *w = &g->weights->layers[i];
        gains_move(w->input_norm, g->model.hidden, &state);
        gains_move(w->post_norm, g->model.hidden, &state);
        gains_move(w->q_norm, g->model.head_dim, &state);
        gains_move(w->k_norm, g->model.head_dim, &state);
    }
    golden_compare(g, routing, loss, gradients, x);
}
