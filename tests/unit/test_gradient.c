// SPDX-License-Identifier: Apache-2.0
// The whole backward pass against finite differences, in double precision, with everything on at
// once: packing, loss mask, aux loss, capacity, dropout, shared A, partial blocks.
#include "unit/check.h"

#include "base/floats.h"
#include "base/memory.h"
#include "base/philox.h"
#include "net/net.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define STEP       7
#define LOSS_SCALE 0.37
#define AUX_SCALE  0.8
#define TOLERANCE  1e-7

static const struct model tiny = {
    .layers = 2,
    .hidden = 192,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 48,
    .experts = 6,
    .top_k = 2,
    .expert_width = 192,
    .vocab = 61,
    .rms_eps = 1e-6,
    .rope_theta = 10000,
    .norm_topk_prob = true,
    .fp8 = true,
};

struct bench {
    struct fl_error e;
    struct spec spec;
    struct model model;
    struct layout layout;
    struct arena *arena;
    struct ops *ops;
    struct comm *comm;
    struct model_weights *weights;
    struct adapters *adapters;
    struct net *net;
    struct batch batch;
    size_t slots, params;
    int32_t *routing;
    uint8_t *kept;
    uint32_t drawn;
};

// Uniform in [-1, 1).
static double draw(struct bench *b)
{
    const uint32_t counter[4] = {b->drawn++, 0, 0, 0}, key[2] = {2024, 7};
    uint32_t random[4];

    philox4x32(counter, key, random);
    return 2 * (double)philox_uniform(random[0]) - 1;
}

static void floats_fill(struct bench *b, float *to, size_t count, double middle, double spread)
{
    for (size_t i = 0; i < count; i++)
        to[i] = (float)(middle + spread * draw(b));
}

static void matrix_fill(struct bench *b, const struct fp8_matrix *w)
{
    size_t count = (size_t)w->count * (size_t)w->rows * (size_t)w->cols;

    for (size_t i = 0; i < count; i++)
        w->data[i] = e4m3_from_float((float)(400 * draw(b)));
    floats_fill(b, w->scale, (size_t)w->count * (size_t)w->scale_rows * (size_t)w->scale_cols, 4e-4,
                1e-4);
}

static void weights_fill(struct bench *b)
{
    const struct model *m = &b->model;
    size_t hidden = (size_t)m->hidden, dim = (size_t)m->head_dim;

    for (size_t i = 0; i < (size_t)m->vocab * hidden; i++) {
        b->weights->embed[i] = bf16_from_float((float)draw(b));
        b->weights->head[i] = bf16_from_float((float)(0.2 * draw(b)));
    }
    floats_fill(b, b->weights->final_norm, hidden, 1, 0.2);
    for (int i = 0; i < m->layers; i++) {
        struct layer_weights *w = &b->weights->layers[i];
        floats_fill(b, w->input_norm, hidden, 1, 0.2);
        floats_fill(b, w->post_norm, hidden, 1, 0.2);
        floats_fill(b, w->q_norm, dim, 1, 0.2);
        floats_fill(b, w->k_norm, dim, 1, 0.2);
        floats_fill(b, w->router, (size_t)m->experts * hidden, 0, 0.15);
        matrix_fill(b, &w->qkv);
        matrix_fill(b, &w->proj);
        matrix_fill(b, &w->fc1);
        matrix_fill(b, &w->fc2);
    }
}

static void batch_fill(struct bench *b)
{
    static int32_t ids[24], targets[24], positions[24], starts[] = {0, 5, 6, 15, 24};
    static uint64_t keys[24];

    for (int s = 0; s < 4; s++)
        for (int t = starts[s]; t < starts[s + 1]; t++) {
            ids[t] = (int32_t)(30 + 30 * draw(b));
            targets[t] = t % 3 == 0 ? -1 : (int32_t)(30 + 30 * draw(b));
            positions[t] = t - starts[s];
            keys[t] = (uint64_t)t + (1ull << 33);
            b->batch.target_count += targets[t] >= 0;
        }
    b->batch.tokens = 24;
    b->batch.samples = 4;
    b->batch.ids = ids;
    b->batch.targets = targets;
    b->batch.positions = positions;
    b->batch.starts = starts;
    b->batch.keys = keys;
}

static void routing_keep(void *context, const char *what, int layer, const real *values, int rows,
                         int cols)
{
    struct bench *b = context;
    size_t count = (size_t)rows * (size_t)cols, first = (size_t)layer * count;

    for (size_t i = 0; i < count && !strcmp(what, "experts"); i++)
        b->routing[first + i] = (int32_t)values[i];
    for (size_t i = 0; i < count && !strcmp(what, "kept"); i++)
        b->kept[first + i] = values[i] > 0;
}

static double loss_at(struct bench *b)
{
    struct net_loss loss;

    check_ok(b->ops->zero(b->ops, b->adapters->grads, b->params * sizeof(real), &b->e), &b->e);
    check_ok(net_train(b->net, &b->batch, STEP, LOSS_SCALE, AUX_SCALE, &loss, &b->e), &b->e);
    return LOSS_SCALE * loss.loss_sum +
           AUX_SCALE * b->spec.aux_loss_coeff * loss.aux_loss * b->model.layers;
}

static void bench_open(struct bench *b, const struct model *model, unsigned targets)
{
    size_t dropped = 0;

    memset(b, 0, sizeof *b);
    b->model = *model;
    b->spec = (struct spec){.source = (char *)"test",
                            .numerics = NUMERICS_EXACT,
                            .lora_targets = targets,
                            .lora_rank = 12,
                            .lora_alpha = 24,
                            .lora_dropout = 0.3,
                            .aux_loss_coeff = 0.1,
                            .capacity_factor = 1,
                            .tensor_parallel = 1,
                            .expert_parallel = 1,
                            .micro_batch_size = 4,
                            .global_batch_size = 4,
                            .seed = 99};
    check_ok(layout_make(&b->spec, &b->model, 1, 0, &b->layout, &b->e), &b->e);
    check_ok(arena_create_host(0, &b->arena, &b->e), &b->e);
    check_ok(ops_cpu_create(&b->model, b->spec.numerics, b->arena, &b->ops, &b->e), &b->e);
    check_ok(comm_self_create(&b->comm, &b->e), &b->e);
    check_ok(model_weights_create(&b->model, &b->layout, b->arena, &b->weights, &b->e), &b->e);
    check_ok(adapters_create(&b->spec, &b->model, &b->layout, b->arena, &b->adapters, &b->e),
             &b->e);
    check_ok(net_create(&(struct net_config){.spec = &b->spec,
                                             .model = &b->model,
                                             .layout = &b->layout,
                                             .ops = b->ops,
                                             .arena = b->arena,
                                             .ep_comm = b->comm,
                                             .weights = b->weights,
                                             .adapters = b->adapters},
                        &b->net, &b->e),
             &b->e);
    weights_fill(b);
    batch_fill(b);
    b->params = b->adapters->replicated + b->adapters->expert;
    for (size_t i = 0; i < b->params; i++)
        b->adapters->params[i] = 0.1 * draw(b);
    b->slots = (size_t)(b->model.layers * b->batch.tokens * b->model.top_k);
    b->routing = memory_zeroed(b->slots, sizeof *b->routing);
    b->kept = memory_zeroed(b->slots, 1);
    net_probe_set(b->net, &(struct net_probe){.see = routing_keep, .context = b});
    loss_at(b);
    for (size_t i = 0; i < b->slots; i++)
        dropped += !b->kept[i];
    assert_in_range(dropped, 1, b->slots / 2);
    net_probe_set(b->net, &(struct net_probe){.routing = b->routing, .kept = b->kept});
}

static void bench_close(struct bench *b)
{
    free(b->kept);
    free(b->routing);
    net_destroy(b->net);
    adapters_destroy(b->adapters);
    model_weights_destroy(b->weights);
    comm_destroy(b->comm);
    ops_destroy(b->ops);
    arena_destroy(b->arena);
}

// d loss / d h at h = 0 of params[first .. first + count) + h * direction, to order h^4.
static double difference(struct bench *b, size_t first, size_t count, const double *direction)
{
    static const double places[4] = {-2, -1, 1, 2}, factors[4] = {1, -8, 8, -1};
    const double h = 2e-4;
    real *params = b->adapters->params + first;
    real *saved = memory_zeroed(count, sizeof *saved);
    double sum = 0;

    memcpy(saved, params, count * sizeof *saved);
    for (int p = 0; p < 4; p++) {
        for (size_t i = 0; i < count; i++)
            params[i] = saved[i] + places[p] * h * direction[i];
        sum += factors[p] * loss_at(b);
    }
    memcpy(params, saved, count * sizeof *saved);
    free(saved);
    return sum / (12 * h);
}

// A random direction of length about 1 in a range of parameters.
static void direction_check(struct bench *b, const real *grads, size_t first, size_t count,
                            const char *what)
{
    double *direction = memory_zeroed(count, sizeof *direction), dot = 0, measured;

    for (size_t i = 0; i < count; i++) {
        direction[i] = draw(b) / sqrt((double)count / 3);
        dot += direction[i] * grads[first + i];
    }
    measured = difference(b, first, count, direction);
    if (measured == 0 || !(fabs(measured - dot) <= TOLERANCE * fabs(measured)))
        fail_msg("%s: %.12g by differences, %.12g by the backward pass", what, measured, dot);
    free(direction);
}

// The greatest gradient of a range, and one anywhere in it, measured against the greatest.
static void single_check(struct bench *b, const real *grads, size_t first, size_t count,
                         const char *what)
{
    size_t greatest = 0, other = (size_t)((draw(b) + 1) / 2 * (double)count);
    const double one = 1;

    for (size_t i = 0; i < count; i++)
        if (fabs(grads[first + i]) > fabs(grads[first + greatest]))
            greatest = i;
    for (int i = 0; i < 2; i++) {
        size_t at = first + (i ? other : greatest);
        double measured = difference(b, at, 1, &one);
        if (!(fabs(measured - grads[at]) <= TOLERANCE * fabs(grads[first + greatest])))
            fail_msg("%s, parameter %zu: %.12g by differences, %.12g by the backward pass", what,
                     at, measured, grads[at]);
    }
}

static void backward_check(const struct model *model, unsigned targets)
{
    struct bench b;
    real *grads;
    char what[64];

    bench_open(&b, model, targets);
    loss_at(&b);
    grads = memory_zeroed(b.params, sizeof *grads);
    memcpy(grads, b.adapters->grads, b.params * sizeof *grads);
    for (int i = 0; i < 3; i++)
        direction_check(&b, grads, 0, b.params, "all parameters");
    for (const struct adapter *a = b.adapters->list; a < b.adapters->list + b.adapters->count;
         a++) {
        size_t a_count = (size_t)a->rank * (size_t)a->in,
               b_count = (size_t)a->rank * (size_t)a->out;
        if (a->expert > 0) // the directions through all parameters cover the others
            continue;
        snprintf(what, sizeof what, "layer %d target %d expert %d A", a->layer, a->target,
                 a->expert);
        direction_check(&b, grads, a->a, a_count, what);
        single_check(&b, grads, a->a, a_count, what);
        what[strlen(what) - 1] = 'B';
        direction_check(&b, grads, a->b, b_count, what);
        single_check(&b, grads, a->b, b_count, what);
    }
    free(grads);
    bench_close(&b);
}

static void shared(void **state)
{
    (void)state;
    backward_check(&tiny, LORA_ALL_LINEAR);
}

static void unshared(void **state)
{
    struct model model = tiny;
    (void)state;
    model.norm_topk_prob = false;
    backward_check(&model, LORA_Q | LORA_K | LORA_V | LORA_PROJ | LORA_FC1 | LORA_FC2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared),
        cmocka_unit_test(unshared),
    };
    return cmocka_run_group_tests_name("gradient", tests, NULL, NULL);
}
