// SPDX-License-Identifier: Apache-2.0
// The router on the device against fp64 and the CPU's operations; with --time, its rates
// at the 30B shapes.
#include "gpu_fixture.h"

#include "ops/cuda/routing.h"

struct shape {
    const char *name;
    int tokens, hidden, experts, top_k;
    bool normalise;
    int64_t capacity;
    float favour; // added to expert 1's logits, so that it takes nearly all
};

// A routing on the device and its copy on the host.
struct decision {
    struct routing device, host;
};

static struct decision decision_create(struct gpu *g, int tokens)
{
    size_t slots = (size_t)tokens * (size_t)g->model.top_k;
    size_t all = (size_t)tokens * (size_t)g->model.experts;
    struct decision d;

    d.device = (struct routing){.ids = gpu_alloc(g, slots * 4),
                                .kept = gpu_alloc(g, slots),
                                .logits = gpu_alloc(g, all * 4),
                                .probs = gpu_alloc(g, all * 4),
                                .weights = gpu_alloc(g, slots * 4),
                                .aux = gpu_alloc(g, 8)};
    ALLOC(slots, d.host.ids);
    ALLOC(slots, d.host.kept);
    ALLOC(all, d.host.logits);
    ALLOC(all, d.host.probs);
    ALLOC(slots, d.host.weights);
    ALLOC(1, d.host.aux);
    return d;
}

static void decision_read(struct gpu *g, struct decision *d, int tokens)
{
    size_t slots = (size_t)tokens * (size_t)g->model.top_k;
    size_t all = (size_t)tokens * (size_t)g->model.experts;

    gpu_read(g, d->host.ids, d->device.ids, slots * 4);
    gpu_read(g, d->host.kept, d->device.kept, slots);
    gpu_read(g, d->host.logits, d->device.logits, all * 4);
    gpu_read(g, d->host.probs, d->device.probs, all * 4);
    gpu_read(g, d->host.weights, d->device.weights, slots * 4);
    gpu_read(g, d->host.aux, d->device.aux, 8);
}

static void decision_destroy(struct decision *d)
{
    free(d->host.ids);
    free(d->host.kept);
    free(d->host.logits);
    free(d->host.probs);
    free(d->host.weights);
    free(d->host.aux);
}

// h [tokens, hidden] has a constant first column, through which expert 1 can be favoured; experts 2
// and 5 are twins.
struct inputs {
    float *h, *weight;
    void *device_h;
    float *device_weight;
};

static struct inputs inputs_create(struct gpu *g, const struct shape *s)
{
    size_t hidden = (size_t)s->hidden, experts = (size_t)s->experts;
    struct inputs in;
    uint16_t one = bf16_from_float(1);

    in.h = random_rows(g, s->tokens, s->hidden, 1, &in.device_h);
    for (int t = 0; t < s->tokens; t++) {
        in.h[(size_t)t * hidden] = 1;
        RUNTIME(cudaMemcpy((char *)in.device_h + (size_t)t * stream_row_bytes(s->hidden), &one, 2,
                           cudaMemcpyHostToDevice));
    }
    in.weight = random_floats(experts * hidden, 1 / sqrtf((float)s->hidden));
    in.weight[hidden] += s->favour;
    if (s->experts > 5)
        memcpy(in.weight + 5 * hidden, in.weight + 2 * hidden, hidden * sizeof(float));
    in.device_weight = gpu_copy(g, in.weight, experts * hidden * sizeof(float));
    return in;
}

static double logits_error(const struct shape *s, const struct inputs *in, const float *logits)
{
    size_t hidden = (size_t)s->hidden, experts = (size_t)s->experts;
    double *expected, worst = 0;

    ALLOC(experts, expected);
    for (size_t t = 0; t < (size_t)s->tokens; t++) {
        for (size_t i = 0; i < experts; i++) {
            expected[i] = 0;
            for (size_t c = 0; c < hidden; c++)
                expected[i] += (double)in->h[t * hidden + c] * (double)in->weight[i * hidden + c];
        }
        worst = fmax(worst, frobenius(logits + t * experts, expected, experts));
    }
    free(expected);
    return worst;
}

static double probs_error(const struct shape *s, const struct routing *r)
{
    size_t experts = (size_t)s->experts;
    double *expected, worst = 0;

    ALLOC(experts, expected);
    for (size_t t = 0; t < (size_t)s->tokens; t++) {
        double top = -INFINITY, sum = 0;
        for (size_t i = 0; i < experts; i++)
            top = fmax(top, (double)r->logits[t * experts + i]);
        for (size_t i = 0; i < experts; i++)
            sum += expected[i] = exp((double)r->logits[t * experts + i] - top);
        for (size_t i = 0; i < experts; i++)
            expected[i] /= sum;
        worst = fmax(worst, frobenius(r->probs + t * experts, expected, experts));
    }
    free(expected);
    return worst;
}

// ids, weights and kept follow from the probabilities to the last bit; with replay, from ids.
static int choice_mistakes(const struct shape *s, const struct routing *r, bool replay)
{
    size_t experts = (size_t)s->experts, top_k = (size_t)s->top_k;
    int mistakes = 0;

    for (size_t t = 0; t < (size_t)s->tokens; t++) {
        const float *probs = r->probs + t * experts;
        const int32_t *ids = r->ids + t * top_k;
        float sum = 0;
        for (size_t k = 0; k < top_k && !replay; k++) {
            int best = -1;
            for (int i = 0; i < s->experts; i++) {
                bool taken = false;
                for (size_t j = 0; j < k; j++)
                    taken |= ids[j] == i;
                if (!taken && (best < 0 || probs[i] > probs[best]))
                    best = i;
            }
            mistakes += ids[k] != best;
        }
        for (size_t k = 0; k < top_k; k++)
            sum += probs[ids[k]];
        for (size_t k = 0; k < top_k; k++)
            mistakes +=
                r->weights[t * top_k + k] != (s->normalise ? probs[ids[k]] / sum : probs[ids[k]]);
    }
    return mistakes;
}

static int kept_mistakes(const struct shape *s, const struct routing *r)
{
    int slots = s->tokens * s->top_k, mistakes = 0;

    for (int a = 0; a < slots; a++) {
        int64_t before = 0;
        for (int b = 0; b < slots && s->capacity > 0; b++)
            before += r->ids[a] == r->ids[b] &&
                      (r->weights[b] > r->weights[a] || (r->weights[b] == r->weights[a] && b < a));
        mistakes += r->kept[a] != (s->capacity <= 0 || before < s->capacity);
    }
    return mistakes;
}

static double aux_error(const struct shape *s, const struct routing *r)
{
    double expected = 0;

    for (int i = 0; i < s->experts && s->tokens; i++) {
        double mass = 0, slots = 0;
        for (int t = 0; t < s->tokens; t++)
            mass += (double)r->probs[(size_t)t * (size_t)s->experts + (size_t)i];
        for (int j = 0; j < s->tokens * s->top_k; j++)
            slots += r->ids[j] == i;
        expected += mass * slots * s->experts / ((double)s->top_k * s->tokens * s->tokens);
    }
    return fabs(*r->aux - expected) / (expected > 0 ? expected : 1);
}

static void backward_check(struct gpu *g, const struct shape *s, const struct inputs *in,
                           const struct decision *d, double aux_scale)
{
    size_t hidden = (size_t)s->hidden, experts = (size_t)s->experts, top_k = (size_t)s->top_k;
    size_t tokens = (size_t)s->tokens, slots = tokens * top_k;
    float *dweights = random_floats(slots, 1), *dh, *ours, *again;
    double *expected, *dlogits, *counts, worst = 0;
    void *device_dh, *copy, *device_dweights;

    ALLOC(tokens * hidden, expected);
    ALLOC(experts, dlogits);
    ALLOC(experts, counts);
    dh = random_rows(g, s->tokens, s->hidden, 0.1f, &device_dh);
    copy = gpu_alloc(g, tokens * stream_row_bytes(s->hidden));
    RUNTIME(cudaMemcpy(copy, device_dh, tokens * stream_row_bytes(s->hidden),
                       cudaMemcpyDeviceToDevice));
    device_dweights = gpu_copy(g, dweights, slots * sizeof *dweights);
    for (size_t j = 0; j < slots; j++)
        counts[d->host.ids[j]]++;
    for (size_t t = 0; t < tokens; t++) {
        const float *probs = d->host.probs + t * experts;
        const int32_t *ids = d->host.ids + t * top_k;
        double sum = 0, dot = 0;
        for (size_t k = 0; k < top_k; k++) {
            sum += (double)probs[ids[k]];
            dot += (double)dweights[t * top_k + k] * (double)probs[ids[k]];
        }
        for (size_t i = 0; i < experts; i++)
            dlogits[i] = aux_scale * s->experts * counts[i] /
                         ((double)s->top_k * (double)tokens * (double)tokens);
        for (size_t k = 0; k < top_k; k++)
            dlogits[ids[k]] += s->normalise
                                   ? (double)dweights[t * top_k + k] / sum - dot / (sum * sum)
                                   : (double)dweights[t * top_k + k];
        dot = 0;
        for (size_t i = 0; i < experts; i++)
            dot += (double)probs[i] * dlogits[i];
        for (size_t i = 0; i < experts; i++)
            for (size_t c = 0; c < hidden; c++)
                expected[t * hidden + c] +=
                    (double)probs[i] * (dlogits[i] - dot) * (double)in->weight[i * hidden + c];
    }
    for (size_t i = 0; i < tokens * hidden; i++)
        expected[i] = (double)bf16_round((float)(expected[i] + (double)dh[i]));
    OK(g, cuda_router_backward(g->ops, in->device_weight, s->tokens, &d->device, device_dweights,
                               aux_scale, device_dh, &g->e));
    OK(g, cuda_router_backward(g->ops, in->device_weight, s->tokens, &d->device, device_dweights,
                               aux_scale, copy, &g->e));
    ours = read_rows(g, device_dh, s->tokens, s->hidden);
    again = read_rows(g, copy, s->tokens, s->hidden);
    for (size_t t = 0; t < tokens; t++)
        worst = fmax(worst, frobenius(ours + t * hidden, expected + t * hidden, hidden));
    report(frobenius(ours, expected, tokens * hidden) <= 5e-4 && worst <= 2e-3 &&
               !memcmp(ours, again, tokens * hidden * sizeof *ours),
           "router backward, %s, aux %g: error %.1e, worst row's %.1e", s->name, aux_scale,
           frobenius(ours, expected, tokens * hidden), worst);
    free(dweights);
    free(dh);
    free(ours);
    free(again);
    free(expected);
    free(dlogits);
    free(counts);
}

// Other experts than the router's own, and kept as it lies there.
static void replay_check(struct gpu *g, const struct shape *s, const struct inputs *in)
{
    struct decision d = decision_create(g, s->tokens);
    size_t slots = (size_t)s->tokens * (size_t)s->top_k;
    int touched = 0;

    for (size_t j = 0; j < slots; j++)
        d.host.ids[j] =
            (int32_t)((j / (size_t)s->top_k + 3 * (j % (size_t)s->top_k)) % (size_t)s->experts);
    RUNTIME(cudaMemcpy(d.device.ids, d.host.ids, slots * 4, cudaMemcpyHostToDevice));
    OK(g, cuda_router_forward(g->ops, in->device_h, in->device_weight, s->tokens, s->capacity, true,
                              &d.device, &g->e));
    decision_read(g, &d, s->tokens);
    for (size_t j = 0; j < slots; j++)
        touched += d.host.kept[j] != 0xff;
    report(touched == 0 && choice_mistakes(s, &d.host, true) == 0 && aux_error(s, &d.host) < 1e-12,
           "router replayed, %s", s->name);
    decision_destroy(&d);
}

static void router_case(const struct shape *s)
{
    const struct model model = {.hidden = s->hidden,
                                .experts = s->experts,
                                .top_k = s->top_k,
                                .norm_topk_prob = s->normalise};
    size_t slots = (size_t)s->tokens * (size_t)s->top_k;
    struct decision d, cpu;
    struct inputs in;
    struct gpu g;
    double logits, probs, aux;
    int choice, kept, others = 0;

    gpu_open(&g, &model);
    d = decision_create(&g, s->tokens);
    cpu = decision_create(&g, s->tokens);
    in = inputs_create(&g, s);
    OK(&g, cuda_router_forward(g.ops, in.device_h, in.device_weight, s->tokens, s->capacity, false,
                               &d.device, &g.e));
    decision_read(&g, &d, s->tokens);
    logits = logits_error(s, &in, d.host.logits);
    probs = probs_error(s, &d.host);
    choice = choice_mistakes(s, &d.host, false);
    kept = kept_mistakes(s, &d.host);
    aux = aux_error(s, &d.host);
    OK(&g, g.cpu->router_forward(g.cpu, in.h, in.weight, s->tokens, s->capacity, false, &cpu.host,
                                 &g.e));
    for (size_t j = 0; j < slots; j++)
        others += cpu.host.ids[j] != d.host.ids[j] || cpu.host.kept[j] != d.host.kept[j];
    report(logits <= 1e-6 && probs <= 1e-6 && aux <= 1e-12 && choice == 0 && kept == 0 &&
               others * 200 <= (int)slots,
           "router, %s: logits %.1e, probabilities %.1e, aux %.1e, %d and %d wrong, "
           "%d of %zu slots unlike the CPU's",
           s->name, logits, probs, aux, choice, kept, others, slots);
    backward_check(&g, s, &in, &d, 0);
    backward_check(&g, s, &in, &d, s->tokens);
    replay_check(&g, s, &in);
    decision_destroy(&cpu);
    decision_destroy(&d);
    free(in.h);
    free(in.weight);
    gpu_close(&g);
}

static void router_nan(void)
{
    const struct shape s = {.tokens = 3, .hidden = 64, .experts = 40, .top_k = 33};
    const struct model model = {.hidden = 64, .experts = 40, .top_k = 33};
    const uint16_t nan = 0x7fff;
    struct decision d;
    struct inputs in;
    struct gpu g;
    uint64_t seen = 0;

    gpu_open(&g, &model);
    d = decision_create(&g, s.tokens);
    in = inputs_create(&g, &s);
    RUNTIME(cudaMemcpy((char *)in.device_h + 128, &nan, 2, cudaMemcpyHostToDevice));
    OK(&g, cuda_router_forward(g.ops, in.device_h, in.device_weight, s.tokens, 0, false, &d.device,
                               &g.e));
    decision_read(&g, &d, s.tokens);
    for (int k = 33; k < 66; k++)
        seen |= 1ull << d.host.ids[k];
    report(__builtin_popcountll(seen) == 33 && seen < 1ull << 40 && isnan(d.host.weights[33]) &&
               !isnan(d.host.weights[0]),
           "a NaN still gives different experts");
    decision_destroy(&d);
    free(in.h);
    free(in.weight);
    gpu_close(&g);
}

static void router_refusal(void)
{
    const struct model model = {.hidden = 8, .experts = 513, .top_k = 1};
    struct gpu g;

    gpu_open(&g, &model);
    report(cuda_router_forward(g.ops, NULL, NULL, 0, 0, false, &(struct routing){0}, &g.e) ==
                   -EINVAL &&
               strstr(g.e.text, "router: 513 experts, 1 a token"),
           "refused: %s", g.e.text);
    gpu_close(&g);
}

#define SETS 8

struct timed {
    struct inputs in[SETS];
    struct decision d[SETS];
    void *dh[SETS];
    float *dweights;
    int tokens;
};

static void forward_call(struct gpu *g, void *context, int set)
{
    struct timed *t = context;

    OK(g, cuda_router_forward(g->ops, t->in[set].device_h, t->in[set].device_weight, t->tokens, 0,
                              false, &t->d[set].device, &g->e));
}

static void capacity_call(struct gpu *g, void *context, int set)
{
    struct timed *t = context;

    OK(g, cuda_router_forward(g->ops, t->in[set].device_h, t->in[set].device_weight, t->tokens, 256,
                              false, &t->d[set].device, &g->e));
}

static void backward_call(struct gpu *g, void *context, int set)
{
    struct timed *t = context;

    OK(g, cuda_router_backward(g->ops, t->in[set].device_weight, t->tokens, &t->d[set].device,
                               t->dweights, 1, t->dh[set], &g->e));
}

static void time_all(void)
{
    const struct shape s = {.tokens = 4096, .hidden = 2048, .experts = 128, .top_k = 8};
    const struct model model = {.hidden = 2048, .experts = 128, .top_k = 8, .norm_topk_prob = true};
    struct timed t = {.tokens = s.tokens};
    double us;
    struct gpu g;

    gpu_open(&g, &model);
    for (int i = 0; i < SETS; i++) {
        t.in[i] = inputs_create(&g, &s);
        t.d[i] = decision_create(&g, s.tokens);
        t.dh[i] = gpu_alloc(&g, (size_t)s.tokens * 4096);
    }
    t.dweights = gpu_alloc(&g, (size_t)s.tokens * 8 * 4);
    us = gpu_time(&g, SETS, forward_call, &t);
    printf("# router forward, 4096 tokens: %.1f us, %.0f TFLOP/s of fp32\n", us,
           2.0 * s.tokens * s.hidden * s.experts / us * 1e-6);
    us = gpu_time(&g, SETS, capacity_call, &t);
    printf("# router forward with capacity: %.1f us\n", us);
    us = gpu_time(&g, SETS, backward_call, &t);
    printf("# router backward: %.1f us\n", us);
    for (int i = 0; i < SETS; i++) {
        decision_destroy(&t.d[i]);
        free(t.in[i].h);
        free(t.in[i].weight);
    }
    gpu_close(&g);
}

int main(int argc, char **argv)
{
    static const struct shape shapes[] = {
        {"one token", 1, 64, 8, 2, true, 0, 0},
        {"no token", 0, 64, 8, 2, true, 0, 0},
        {"no multiples", 129, 200, 60, 4, true, 0, 0},
        {"odd hidden", 100, 333, 160, 8, false, 6, 0},
        {"unaligned weights", 77, 130, 5, 5, true, 0, 0},
        {"capacity", 300, 130, 16, 4, true, 40, 0},
        {"one expert takes all", 500, 128, 16, 2, false, 33, 9},
        {"many experts", 70, 512, 512, 64, true, 0, 0},
        {"300 experts", 130, 768, 300, 33, true, 3, 0},
        {"30B", 600, 2048, 128, 8, true, 0, 0},
        {"long contraction", 40, 6144, 160, 8, true, 0, 0},
    };
    bool small = argc > 1 && !strcmp(argv[1], "--small");
    int devices = 0;

    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("1..0 # SKIP no GPU\n");
        return 0;
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (!small || shapes[i].hidden < 700)
            router_case(&shapes[i]);
    router_nan();
    router_refusal();
    if (argc > 1 && !strcmp(argv[1], "--time"))
        time_all();
    printf("1..%d\n", passed + failed);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0;
}
