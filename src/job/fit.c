// SPDX-License-Identifier: Apache-2.0
// What to change so that a job fits, and soonest.
#include "job/fit.h"

#include "job/runnable.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define WORLDS_MOST 64 // times as many GPUs
#define TP_MOST     8
#define RANK_LEAST  8
#define SAME_TIME   1e-9 // estimates this close are equal
#define VALUES      32

// Values a key may take, the job's own first.
struct values {
    int count, at[VALUES];
};

static void value_add(struct values *v, int value)
{
    for (int i = 0; i < v->count; i++)
        if (v->at[i] == value)
            return;
    if (v->count < VALUES)
        v->at[v->count++] = value;
}

static struct fit_choice choice_of(const struct spec *spec, int world)
{
    return (struct fit_choice){
        .world = world,
        .ep = spec->expert_parallel,
        .tp = spec->tensor_parallel,
        .micro_batch = spec->micro_batch_size,
        .rank = spec->lora_rank,
        .recompute = spec->recompute == RECOMPUTE_AUTO ? RECOMPUTE_FULL : spec->recompute,
        .recompute_part = spec->recompute_part,
        .layer_inputs = spec->layer_inputs,
        .shard_frozen = spec->shard_frozen,
        .optimizer_offload = spec->optimizer_offload,
    };
}

struct spec fit_apply(const struct spec *spec, const struct fit_choice *c)
{
    struct spec changed = *spec;

    changed.expert_parallel = c->ep;
    changed.tensor_parallel = c->tp;
    changed.micro_batch_size = c->micro_batch;
    changed.recompute = c->recompute;
    changed.recompute_part = c->recompute_part;
    changed.layer_inputs = c->layer_inputs;
    changed.shard_frozen = c->shard_frozen;
    changed.optimizer_offload = c->optimizer_offload;
    if (c->rank != spec->lora_rank) { // at the same scale
        changed.lora_alpha = spec->lora_alpha * c->rank / spec->lora_rank;
        changed.lora_rank = c->rank;
    }
    return changed;
}

static int changes_count(const struct spec *spec, int world, const struct fit_choice *c)
{
    const struct fit_choice own = choice_of(spec, world);
    bool selective = c->recompute == RECOMPUTE_SELECTIVE;

    return (c->world != world) + (c->ep != own.ep) + (c->tp != own.tp) +
           (c->micro_batch != own.micro_batch) + (c->rank != own.rank) +
           (c->recompute != own.recompute ||
            (selective && c->recompute_part != own.recompute_part)) +
           (c->layer_inputs != own.layer_inputs) + (c->shard_frozen != own.shard_frozen) +
           (c->optimizer_offload != own.optimizer_offload);
}

// Fills what follows from a choice. False: no such layout, or it does not fit.
static bool choice_judge(const struct fit_request *r, struct fit_choice *c)
{
    struct spec spec = fit_apply(r->spec, c);
    struct estimate estimate;
    struct runnable_gap gap;
    struct plan plan;
    struct fl_error e;
    int node = c->world < r->fabric.node_gpus ? c->world : r->fabric.node_gpus;

    if (c->ep < 1 || c->tp < 1 || c->micro_batch < 1 || c->rank < 1) // half of 1
        return false;
    if (plan_make(&spec, r->model, c->world, 0, &plan, &e) < 0)
        return false;
    c->need = plan_need(&plan);
    c->host = plan.host_bytes;
    if (r->cap_bytes && c->need > r->cap_bytes)
        return false;
    if (r->host_bytes && c->host * (uint64_t)node > r->host_bytes)
        return false;
    estimate_make(&spec, r->model, &plan, r->gpu, &r->fabric, &estimate);
    c->step_s = estimate.step_s;
    c->written = runnable_network(&spec);
    c->runs = !runnable_gap(&spec, !plan.cpu, r->gpu, c->world, &gap);
    c->changes = changes_count(r->spec, r->world, c);
    return true;
}

// How near this version is to running it.
static int nearness(const struct fit_choice *c)
{
    return c->runs + c->written;
}

// The nearest to what runs, of these the soonest.
static bool goes_before(const struct fit_choice *a, const struct fit_choice *b)
{
    if (nearness(a) != nearness(b))
        return nearness(a) > nearness(b);
    if (a->step_s < b->step_s * (1 - SAME_TIME) || b->step_s < a->step_s * (1 - SAME_TIME))
        return a->step_s < b->step_s;
    return a->changes < b->changes;
}

// Whether b adds nothing to a: it is neither sooner nor fewer changes nor runs where a does not.
static bool covers(const struct fit_choice *a, const struct fit_choice *b)
{
    return nearness(a) >= nearness(b) && a->step_s <= b->step_s * (1 + SAME_TIME) &&
           a->changes <= b->changes;
}

static void choice_take(struct fit_choice *choices, int *count, const struct fit_choice *c)
{
    int at, kept = 0;

    for (int i = 0; i < *count; i++)
        if (covers(&choices[i], c))
            return;
    for (int i = 0; i < *count; i++)
        if (!covers(c, &choices[i]))
            choices[kept++] = choices[i];
    for (at = 0; at < kept && goes_before(&choices[at], c);)
        at++;
    if (kept == FIT_CHOICES)
        kept--;
    if (at > kept)
        return;
    memmove(&choices[at + 1], &choices[at], (size_t)(kept - at) * sizeof *choices);
    choices[at] = *c;
    *count = kept + 1;
}

// Every way to keep and recompute for one layout.
static void memory_search(const struct fit_request *r, struct fit_choice c,
                          struct fit_choice *choices, int *count)
{
    static const struct {
        enum recompute recompute;
        enum recompute_part part;
    } ways[] = {{RECOMPUTE_FULL, RECOMPUTE_EXPERTS},
                {RECOMPUTE_SELECTIVE, RECOMPUTE_EXPERTS},
                {RECOMPUTE_SELECTIVE, RECOMPUTE_ATTENTION},
                {RECOMPUTE_NONE, RECOMPUTE_EXPERTS}};

    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
        for (int inputs = LAYER_INPUTS_DEVICE; inputs <= LAYER_INPUTS_HOST; inputs++)
            for (int switches = 0; switches < 4; switches++) {
                c.recompute = ways[w].recompute;
                c.recompute_part = ways[w].part;
                c.layer_inputs = (enum layer_inputs)inputs;
                c.shard_frozen = switches & 1;
                c.optimizer_offload = switches & 2;
                if (choice_judge(r, &c))
                    choice_take(choices, count, &c);
            }
}

static void layouts_search(const struct fit_request *r, int world, int rank,
                           struct fit_choice *choices, int *count)
{
    struct fit_choice c = choice_of(r->spec, world);
    struct values ep = {0}, tp = {0}, micro = {0};

    for (int n = 1; n <= world && n <= r->model->experts; n++)
        if (world % n == 0 && r->model->experts % n == 0)
            value_add(&ep, n);
    value_add(&tp, r->spec->tensor_parallel);
    for (int n = 1; n <= TP_MOST; n *= 2)
        value_add(&tp, n);
    for (int n = r->spec->micro_batch_size; n >= 1; n--)
        if (r->spec->micro_batch_size % n == 0)
            value_add(&micro, n);
    c.rank = rank;
    for (int i = 0; i < ep.count; i++)
        for (int j = 0; j < tp.count; j++)
            for (int k = 0; k < micro.count; k++) {
                c.ep = ep.at[i];
                c.tp = tp.at[j];
                c.micro_batch = micro.at[k];
                memory_search(r, c, choices, count);
            }
}

int fit_search(const struct fit_request *r, struct fit_choice choices[FIT_CHOICES], int *count,
               struct fl_error *e)
{
    struct plan plan;
    int rc;

    *count = 0;
    layouts_search(r, r->world, r->spec->lora_rank, choices, count);
    for (int rank = r->spec->lora_rank / 2; *count == 0 && rank >= RANK_LEAST; rank /= 2)
        layouts_search(r, r->world, rank, choices, count);
    for (int times = 2; *count == 0 && times <= WORLDS_MOST; times *= 2)
        layouts_search(r, r->world * times, r->spec->lora_rank, choices, count);
    if (*count)
        return 0;
    rc = plan_make(r->spec, r->model, r->world, 0, &plan, e); // is it the job that is wrong?
    return rc;
}

struct text {
    char *at;
    size_t size, used;
};

__attribute__((format(printf, 2, 3))) static void say(struct text *t, const char *format, ...)
{
    va_list args;
    int n;

    if (t->used >= t->size)
        return;
    if (t->used)
        t->used += (size_t)snprintf(t->at + t->used, t->size - t->used, ", ");
    if (t->used >= t->size)
        return;
    va_start(args, format);
    n = vsnprintf(t->at + t->used, t->size - t->used, format, args);
    va_end(args);
    t->used += n > 0 ? (size_t)n : 0;
}

static const char *recompute_name(const struct fit_choice *c)
{
    return c->recompute == RECOMPUTE_NONE           ? "none"
           : c->recompute == RECOMPUTE_FULL         ? "full"
           : c->recompute_part == RECOMPUTE_EXPERTS ? "selective, recompute_modules experts"
                                                    : "selective, recompute_modules attention";
}

static void changes_say(const struct spec *spec, int world, const struct fit_choice *c,
                        struct text *t)
{
    static const char *const inputs[] = {"device", "fp8", "host"};
    const struct fit_choice own = choice_of(spec, world);

    if (c->world != world)
        say(t, "%d GPUs", c->world);
    if (c->ep != own.ep)
        say(t, "expert_model_parallel_size %d", c->ep);
    if (c->tp != own.tp)
        say(t, "tensor_model_parallel_size %d", c->tp);
    if (c->micro_batch != own.micro_batch)
        say(t, "micro_batch_size %d", c->micro_batch);
    if (c->rank != own.rank)
        say(t, "lora_rank %d, lora_alpha %g", c->rank, spec->lora_alpha * c->rank / own.rank);
    if (c->recompute != own.recompute ||
        (c->recompute == RECOMPUTE_SELECTIVE && c->recompute_part != own.recompute_part))
        say(t, "recompute_granularity %s", recompute_name(c));
    if (c->layer_inputs != own.layer_inputs)
        say(t, "layer_inputs %s", inputs[c->layer_inputs]);
    if (c->shard_frozen != own.shard_frozen)
        say(t, "shard_frozen %s", c->shard_frozen ? "true" : "false");
    if (c->optimizer_offload != own.optimizer_offload)
        say(t, "optimizer_offload %s", c->optimizer_offload ? "true" : "false");
}

char *fit_changes(const struct spec *spec, int world, const struct fit_choice *c,
                  char text[FIT_CHANGES])
{
    struct text t = {.at = text, .size = FIT_CHANGES};

    changes_say(spec, world, c, &t);
    if (!t.used)
        snprintf(text, FIT_CHANGES, "nothing");
    return text;
}

// A change of one key, measured against the job as it is.
static void single_add(const struct fit_request *any, const struct fit_choice *own,
                       const struct fit_choice *c, struct fit_single *singles, int *count)
{
    struct fit_choice changed = *c;
    struct fit_single *s = &singles[*count];
    char text[FIT_CHANGES];

    if (*count == FIT_SINGLES || changes_count(any->spec, any->world, c) != 1 ||
        !choice_judge(any, &changed))
        return;
    snprintf(s->change, sizeof s->change, "%s", fit_changes(any->spec, any->world, c, text));
    s->device_saved = (int64_t)own->need - (int64_t)changed.need;
    s->host_saved = (int64_t)own->host - (int64_t)changed.host;
    s->step_more_s = changed.step_s - own->step_s;
    s->runs = changed.runs;
    ++*count;
}

int fit_singles(const struct fit_request *r, struct fit_single singles[FIT_SINGLES], int *count,
                struct fl_error *e)
{
    struct fit_request any = *r;
    struct fit_choice own = choice_of(r->spec, r->world), c;
    struct plan plan;
    int rc = plan_make(r->spec, r->model, r->world, 0, &plan, e);

    *count = 0;
    any.cap_bytes = any.host_bytes = 0;
    if (rc < 0 || !choice_judge(&any, &own))
        return rc;
#define SINGLE(member, value)                                                                      \
    (c = own, c.member = (value), single_add(&any, &own, &c, singles, count))
    SINGLE(shard_frozen, !own.shard_frozen);
    SINGLE(optimizer_offload, !own.optimizer_offload);
    for (int i = LAYER_INPUTS_DEVICE; i <= LAYER_INPUTS_HOST; i++)
        SINGLE(layer_inputs, (enum layer_inputs)i);
    for (int i = RECOMPUTE_FULL; i <= RECOMPUTE_SELECTIVE; i++)
        SINGLE(recompute, (enum recompute)i);
    SINGLE(micro_batch, own.micro_batch / 2);
    SINGLE(rank, own.rank / 2);
    SINGLE(ep, own.ep * 2);
    SINGLE(ep, own.ep / 2);
    SINGLE(tp, own.tp * 2);
    SINGLE(world, own.world * 2);
#undef SINGLE
    return 0;
}
