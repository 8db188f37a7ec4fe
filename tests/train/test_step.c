// SPDX-License-Identifier: Apache-2.0
// The first-step gate and the optimizer on the real network with the tiny checkpoint.
#include "train/stage.h"

#include "net/pass.h"
#include "train/gate.h"
#include "train/optimizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// A first step up to its gradients.
static struct gate *first_step(struct stage *s)
{
    struct gate *gate = gate_create(&s->model, s->adapters);
    struct net_loss loss;

    memset(s->adapters->grads, 0, params_count(s) * sizeof(real));
    gate_batch(gate, s->net, s->batch);
    check_ok(net_train(s->net, s->batch, 0, 1.0 / TOKENS, 1, &loss, &s->e), &s->e);
    return gate;
}

static int check(struct stage *s, struct gate *gate, double loss, double norm)
{
    int rc = gate_check(gate, s->net, loss, norm, s->ops, s->world, &s->e);
    gate_destroy(gate);
    return rc;
}

static void gate_passes_training(void **state)
{
    struct stage *s = *state;
    check_ok(check(s, first_step(s), 8.0, 1.0), &s->e);
}

static void gate_stops_bad_numbers(void **state)
{
    struct stage *s = *state;
    check_error(check(s, first_step(s), NAN, 1.0), &s->e, "lm loss is not finite");
    check_error(check(s, first_step(s), 9.33, 1.0), &s->e,
                "lm loss 9.3300 is above ln(vocabulary) + 1 = 9.3178");
    check_ok(check(s, first_step(s), 9.31, 1.0), &s->e);
    check_error(check(s, first_step(s), 8.0, 0.0), &s->e, "the gradient norm is zero");
    check_error(check(s, first_step(s), 8.0, NAN), &s->e, "the gradient norm is not finite");
}

static double squares(const struct stage *s, const struct adapter *a)
{
    double sum = 0;
    for (int i = 0; i < a->out * a->rank; i++)
        sum += (double)s->adapters->grads[a->b + (size_t)i] * s->adapters->grads[a->b + (size_t)i];
    return sum;
}

static void clear(struct stage *s, const struct adapter *a)
{
    memset(s->adapters->grads + a->b, 0, (size_t)(a->out * a->rank) * sizeof(real));
}

static void gate_names_the_module(void **state)
{
    struct stage *s = *state;
    struct gate *gate = first_step(s);
    int expert = 0;

    clear(s, adapters_find(s->adapters, 2, LORA_PROJ, -1));
    check_error(check(s, gate, 8.0, 1.0), &s->e,
                "model.layers.2.self_attn.linear_proj received tokens, but the gradient of its "
                "lora_B is zero");
    gate = first_step(s);
    while (squares(s, adapters_find(s->adapters, 3, LORA_FC2, expert)) == 0)
        expert++;
    clear(s, adapters_find(s->adapters, 3, LORA_FC2, expert));
    char words[96];
    snprintf(words, sizeof words, "model.layers.3.mlp.experts.%d.linear_fc2 received", expert);
    check_error(check(s, gate, 8.0, 1.0), &s->e, words);
}

// Behind the only target nothing matters to the loss, nor before it in the last layer: experts that
// saw only such tokens have no gradient, and that is right.
static void gate_knows_idle_experts(void **state)
{
    struct stage *s = *state;
    int32_t *targets = s->batch->targets, kept[TOKENS];
    struct gate *gate;
    int idle = 0;

    memcpy(kept, targets, sizeof kept);
    for (int t = 0; t < TOKENS; t++)
        targets[t] = t == 3 ? 7 : -1;
    s->batch->target_count = 1;
    gate = first_step(s);
    for (int e = 0; e < s->model.experts; e++)
        idle += squares(s, adapters_find(s->adapters, 3, LORA_FC1, e)) == 0;
    assert_int_equal(idle, s->model.experts - s->model.top_k);
    check_ok(check(s, gate, 8.0, 1.0), &s->e);
    memcpy(targets, kept, sizeof kept);
    s->batch->target_count = TOKENS;
}

// With a capacity limit, experts that kept tokens are held to it too, and only those.
static void gate_knows_dropped_tokens(void **state)
{
    struct stage *s = *state;
    struct gate *gate;
    int expert = 0;

    s->spec->capacity_factor = 0.25;
    gate = first_step(s);
    check_ok(check(s, gate, 8.0, 1.0), &s->e);
    gate = first_step(s);
    while (squares(s, adapters_find(s->adapters, 1, LORA_FC1, expert)) == 0)
        expert++;
    clear(s, adapters_find(s->adapters, 1, LORA_FC1, expert));
    char words[96];
    snprintf(words, sizeof words, "model.layers.1.mlp.experts.%d.linear_fc1 received", expert);
    check_error(check(s, gate, 8.0, 1.0), &s->e, words);
    s->spec->capacity_factor = 0;
}

struct seats {
    int experts[TOKENS * 4];
    int limit, full; // most slots an expert may keep; experts at that limit
};

static void seats_see(void *context, const char *what, int layer, const real *values, int rows,
                      int cols)
{
    struct seats *seats = context;
    int routed[16] = {0}, kept[16] = {0};

    (void)layer;
    for (int i = 0; i < rows * cols && strcmp(what, "experts") == 0; i++)
        seats->experts[i] = (int)values[i];
    if (strcmp(what, "kept") != 0)
        return;
    for (int i = 0; i < rows * cols; i++) {
        routed[seats->experts[i]]++;
        kept[seats->experts[i]] += values[i] > 0;
    }
    for (int i = 0; i < 16; i++) {
        assert_int_equal(kept[i], routed[i] < seats->limit ? routed[i] : seats->limit);
        seats->full += routed[i] > seats->limit;
    }
}

// 48 tokens x 4 slots x 0.3 / 16 experts = 3.6 rows: an expert takes 4.
static void capacity_rounds_up(void **state)
{
    struct stage *s = *state;
    struct seats seats = {.limit = 4};
    struct net_loss loss;

    assert_true(s->model.experts == 16 && s->model.top_k == 4);
    s->spec->capacity_factor = 0.3;
    net_probe_set(s->net, &(struct net_probe){.see = seats_see, .context = &seats});
    check_ok(net_train(s->net, s->batch, 0, 1.0 / TOKENS, 1, &loss, &s->e), &s->e);
    assert_true(seats.full > 0);
    net_probe_set(s->net, &(struct net_probe){0});
    s->spec->capacity_factor = 0;
}

// The mask of a module is its own in every step and layer, and there is none outside training.
static void dropout_keys_differ(void **state)
{
    struct stage *s = *state;
    struct pass pass = {.net = s->net, .model = &s->model, .training = true};
    static const uint64_t steps[] = {0, 1, 1ull << 32};
    static const enum lora_target targets[] = {LORA_QKV, LORA_PROJ, LORA_FC1, LORA_FC2};
    uint32_t keys[64][2];
    struct lora lora;
    int count = 0;

    s->adapters->dropout = 0.5;
    for (int step = 0; step < 3; step++)
        for (int layer = 0; layer < s->model.layers; layer++)
            for (int t = 0; t < 4; t++, count++) {
                pass.step = steps[step];
                pass_lora(&pass, layer, targets[t], &lora);
                assert_int_equal(lora.count, 1);
                assert_true(lora.dropout == 0.5);
                memcpy(keys[count], lora.part[0].key, sizeof keys[count]);
                for (int i = 0; i < count; i++)
                    assert_memory_not_equal(keys[i], keys[count], sizeof keys[count]);
            }
    pass.training = false;
    pass_lora(&pass, 0, LORA_QKV, &lora);
    assert_true(lora.dropout == 0);
    s->adapters->dropout = 0;
}

// Plain AdamW in double beside it, with gradients that are clipped in some steps.
static void optimizer_is_adamw(void **state)
{
    struct stage *s = *state;
    size_t n = params_count(s);
    double *p = memory_zeroed(n, sizeof *p), *m = memory_zeroed(n, sizeof *m);
    double *v = memory_zeroed(n, sizeof *v), worst = 0;
    struct optimizer_config config = {s->spec, s->adapters, s->ops, s->arena, s->world, s->world};
    struct arena_stats before, after;
    struct optimizer *o;

    arena_stats_get(s->arena, &before);
    check_ok(optimizer_create(&config, &o, &s->e), &s->e);
    arena_stats_get(s->arena, &after);
    assert_true(after.used[MEMORY_OPTIMIZER] - before.used[MEMORY_OPTIMIZER] >= 8 * n);
    for (size_t i = 0; i < n; i++)
        p[i] = s->adapters->params[i];
    for (int step = 1; step <= 6; step++) {
        double norm, square = 0, scale, lr = 1e-3 * step;
        check_ok(optimizer_clear(o, &s->e), &s->e);
        for (size_t i = 0; i < n; i++) {
            assert_true(s->adapters->grads[i] == 0);
            s->adapters->grads[i] =
                (real)((double)((i * 2654435761u + (size_t)step * 40503u) % 2001) / 1000 - 1) *
                (step % 2 ? 1e-2f : 1e-5f);
            square += (double)s->adapters->grads[i] * s->adapters->grads[i];
        }
        check_ok(optimizer_reduce(o, &norm, &s->e), &s->e);
        assert_float_equal(norm, sqrt(square), 1e-6 * sqrt(square));
        assert_true((norm > 0.5) == (step % 2 == 1));
        check_ok(optimizer_step(o, lr, norm, &s->e), &s->e);
        scale = fmin(1, 0.5 / (norm + 1e-6));
        for (size_t i = 0; i < n; i++) {
            double g = s->adapters->grads[i] * scale, error;
            m[i] = 0.9 * m[i] + 0.1 * g;
            v[i] = 0.95 * v[i] + 0.05 * g * g;
            p[i] *= 1 - lr * 0.1;
            p[i] -= lr * m[i] / (1 - pow(0.9, step)) / (sqrt(v[i] / (1 - pow(0.95, step))) + 1e-8);
            error = fabs(p[i] - (double)s->adapters->params[i]);
            worst = error > worst ? error : worst;
        }
    }
    assert_true(worst < 1e-6);
    optimizer_destroy(o);
    free(p);
    free(m);
    free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gate_passes_training),      cmocka_unit_test(gate_stops_bad_numbers),
        cmocka_unit_test(gate_names_the_module),     cmocka_unit_test(gate_knows_idle_experts),
        cmocka_unit_test(gate_knows_dropped_tokens), cmocka_unit_test(capacity_rounds_up),
        cmocka_unit_test(dropout_keys_differ),       cmocka_unit_test(optimizer_is_adamw),
    };
    return cmocka_run_group_tests_name("step", tests, stage_setup, stage_teardown);
}
