// SPDX-License-Identifier: Apache-2.0
// Router, dispatch and grouped experts: ties, capacity, empty experts, one expert taking all.
#include "unit/ops_fixture.h"

static const struct model shape = {
    .hidden = 8, .experts = 4, .top_k = 2, .expert_width = 40, .norm_topk_prob = true};

#define TOKENS 3
#define SLOTS  6

struct choice {
    int32_t ids[SLOTS];
    uint8_t kept[SLOTS];
    real logits[TOKENS * 4], probs[TOKENS * 4], weights[SLOTS];
    double aux;
    struct routing routing;
};

// h is the first columns of the identity's multiples: logits are what the test wants.
static void route(struct fixture *f, const real wanted[TOKENS][4], int64_t capacity, bool replay,
                  struct choice *c)
{
    float weight[4 * 8] = {0};
    real h[TOKENS * 8] = {0};

    for (int i = 0; i < 4; i++)
        weight[i * 8 + i] = 1;
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < 4; i++)
            h[t * 8 + i] = wanted[t][i];
    c->routing = (struct routing){.ids = c->ids,
                                  .kept = c->kept,
                                  .logits = c->logits,
                                  .probs = c->probs,
                                  .weights = c->weights,
                                  .aux = &c->aux};
    check_ok(
        f->ops->router_forward(f->ops, h, weight, TOKENS, capacity, replay, &c->routing, &f->e),
        &f->e);
}

static void ties_to_the_lower(void **state)
{
    const real wanted[TOKENS][4] = {{1, 1, 1, 1}, {0, 2, 2, 3}, {5, 1, 0, 5}};
    const int32_t expected[SLOTS] = {0, 1, 3, 1, 0, 3};
    struct fixture f;
    struct choice c;
    (void)state;
    fixture_open(&f, &shape, NUMERICS_EXACT);
    route(&f, wanted, 0, false, &c);
    assert_memory_equal(c.ids, expected, sizeof expected);
    for (int s = 0; s < SLOTS; s++)
        assert_int_equal(c.kept[s], 1);
    assert_true(c.weights[0] == 0.5f && c.weights[1] == 0.5f);
    assert_true(fabs((double)c.weights[2] - 1 / (1 + exp(-1))) < 1e-6);
    fixture_close(&f);
    f.model.norm_topk_prob = false;
    fixture_open(&f, &f.model, NUMERICS_EXACT);
    route(&f, wanted, 0, false, &c);
    assert_true(c.weights[0] == 0.25f);
    fixture_close(&f);
}

static void capacity(void **state)
{
    // Expert 0: token 1 most, then 0 and 2 alike.
    const real wanted[TOKENS][4] = {{2, 1, 0, 0}, {4, 1, 0, 0}, {2, 0, 1, 0}};
    struct fixture f;
    struct choice c;
    (void)state;
    fixture_open(&f, &shape, NUMERICS_EXACT);
    route(&f, wanted, 2, false, &c);
    assert_int_equal(c.ids[4], 0);
    assert_memory_equal(c.kept, ((uint8_t[]){1, 1, 1, 1, 0, 1}), SLOTS);
    assert_true(fabs((double)(c.weights[4] + c.weights[5]) - 1) < 1e-6); // not renormalised
    route(&f, wanted, 1, false, &c);
    assert_memory_equal(c.kept, ((uint8_t[]){0, 1, 1, 0, 0, 1}), SLOTS);
    memset(c.kept, 0, sizeof c.kept);
    c.ids[0] = 3;
    route(&f, wanted, 1, true, &c); // replay keeps both decisions and weighs the given experts
    assert_int_equal(c.ids[0], 3);
    assert_int_equal(c.kept[1], 0);
    assert_true(fabs((double)c.weights[0] - 1 / (1 + exp(1))) < 1e-6);
    fixture_close(&f);
}

static void aux_loss(void **state)
{
    const real wanted[TOKENS][4] = {{2, 1, 0, 0}, {4, 1, 0, 0}, {2, 0, 1, 0}};
    struct fixture f;
    struct choice c;
    double expected = 0;
    (void)state;
    fixture_open(&f, &shape, NUMERICS_EXACT);
    route(&f, wanted, 1, false, &c);
    for (int i = 0; i < 4; i++) {
        double mass = 0, slots = 0;
        for (int t = 0; t < TOKENS; t++) {
            double sum = 0;
            for (int j = 0; j < 4; j++)
                sum += exp((double)wanted[t][j]);
            mass += exp((double)wanted[t][i]) / sum;
            slots += c.ids[2 * t] == i;
            slots += c.ids[2 * t + 1] == i;
        }
        expected += mass * slots;
    }
    assert_true(fabs(c.aux - 4 * expected / (2.0 * TOKENS * TOKENS)) < 1e-6);
    fixture_close(&f);
}

static void dispatch(void **state)
{
    struct choice c = {.ids = {3, 0, 0, 3, 1, 0}, .kept = {1, 1, 0, 1, 1, 1}};
    const int32_t expected_order[] = {1, 5, 4, 0, 3}, expected_position[] = {3, 0, -1, 4, 2, 1};
    const int64_t expected_counts[] = {2, 1, 0, 2};
    int32_t order[SLOTS], position[SLOTS];
    int64_t counts[4];
    struct fixture f;
    (void)state;
    fixture_open(&f, &shape, NUMERICS_EXACT);
    c.routing.ids = c.ids;
    c.routing.kept = c.kept;
    check_ok(f.ops->dispatch_plan(f.ops, &c.routing, TOKENS, order, position, counts, &f.e), &f.e);
    assert_memory_equal(order, expected_order, sizeof expected_order);
    assert_memory_equal(position, expected_position, sizeof expected_position);
    assert_memory_equal(counts, expected_counts, sizeof expected_counts);
    fixture_close(&f);
}

static void regroup(void **state)
{
    // Three sources, two experts: the second source sends nothing to expert 1, the third nothing.
    const int64_t counts[] = {2, 1, 1, 0, 0, 0};
    const int32_t expected[] = {0, 1, 3, 2};
    int32_t index[4];
    int16_t from[] = {10, 11, 12, 13}, to[4], back[4];
    struct fixture f;
    (void)state;
    fixture_open(&f, &shape, NUMERICS_EXACT);
    check_ok(f.ops->regroup_plan(f.ops, counts, 3, 2, index, &f.e), &f.e);
    assert_memory_equal(index, expected, sizeof expected);
    check_ok(f.ops->rows_gather(f.ops, from, index, 1, 4, sizeof *from, to, &f.e), &f.e);
    assert_memory_equal(to, ((int16_t[]){10, 11, 13, 12}), sizeof to);
    check_ok(f.ops->rows_scatter(f.ops, to, index, 4, sizeof *from, back, &f.e), &f.e);
    assert_memory_equal(back, from, sizeof from);
    check_ok(
        f.ops->rows_gather(f.ops, from, (int32_t[]){-1, 5, 4, 1}, 2, 4, sizeof *from, to, &f.e),
        &f.e);
    assert_memory_equal(to, ((int16_t[]){0, 12, 12, 10}), sizeof to);
    fixture_close(&f);
}

static void combine(void **state)
{
    real rows[3 * 8], residual[2 * 8], out[2 * 8];
    const int32_t position[] = {2, 0, -1, 1};
    const real weights[] = {0.5f, 2, 7, 4};
    struct fixture f;
    (void)state;
    fixture_open(&f, &shape, NUMERICS_EXACT);
    for (int i = 0; i < 3 * 8; i++)
        rows[i] = (real)(i / 8 + 1);
    for (int i = 0; i < 2 * 8; i++)
        residual[i] = 100;
    check_ok(f.ops->combine(f.ops, rows, position, weights, residual, 2, out, &f.e), &f.e);
    assert_true(out[0] == 100 + 0.5f * 3 + 2 * 1 && out[8] == 100 + 4 * 2);
    check_ok(f.ops->combine(f.ops, rows, position, NULL, NULL, 2, out, &f.e), &f.e);
    assert_true(out[7] == 3 + 1 && out[15] == 2);
    fixture_close(&f);
}

struct experts {
    struct fp8_matrix fc1, fc2;
    struct lora none;
    uint64_t keys[5];
};

static struct fp8_matrix matrix(int rows, int cols, int parts)
{
    struct fp8_matrix w = {.count = 3, .rows = rows, .cols = cols, .parts = parts};

    for (int p = 0; p < parts; p++)
        w.part_rows[p] = rows / parts;
    w.scale_rows = parts;
    w.scale_cols = 1;
    w.data = memory_zeroed((size_t)(3 * rows * cols), 1);
    w.scale = memory_zeroed((size_t)(3 * parts), sizeof *w.scale);
    for (int i = 0; i < 3 * rows * cols; i++)
        w.data[i] = (uint8_t)(i * 29 % 100 + (i % 2) * 128);
    for (int i = 0; i < 3 * parts; i++)
        w.scale[i] = 0.01f * (float)(i + 1);
    return w;
}

static double weight_at(const struct fp8_matrix *w, int expert, int row, int col)
{
    return (double)e4m3_values[w->data[(expert * w->rows + row) * w->cols + col]] *
           (double)w->scale[expert * w->parts + row / w->part_rows[0]];
}

static void experts_plain(const struct experts *x, const int64_t *counts, const real *in,
                          double *out)
{
    int row = 0;

    for (int e = 0; e < 3; e++)
        for (int64_t n = 0; n < counts[e]; n++, row++)
            for (int w = 0; w < 40; w++) {
                double gate = 0, up = 0;
                for (int c = 0; c < 8; c++) {
                    gate += (double)in[row * 8 + c] * weight_at(&x->fc1, e, w, c);
                    up += (double)in[row * 8 + c] * weight_at(&x->fc1, e, 40 + w, c);
                }
                for (int c = 0; c < 8; c++)
                    out[row * 8 + c] += gate / (1 + exp(-gate)) * up * weight_at(&x->fc2, e, c, w);
            }
}

static void experts_check(struct fixture *f, const struct experts *x, const int64_t counts[3])
{
    struct group group = {.experts = 3, .rows = 5, .counts = counts, .keys = x->keys};
    real *in = random_reals(3, 5 * 8, 1), gate_up[5 * 80], act[5 * 40], actq[5 * 40], out[5 * 8];
    double expected[5 * 8] = {0};

    check_ok(f->ops->fc1_forward(f->ops, &x->fc1, &x->none, &group, in, gate_up, act, actq, &f->e),
             &f->e);
    check_ok(f->ops->fc2_forward(f->ops, &x->fc2, &x->none, &group, act, actq, out, &f->e), &f->e);
    experts_plain(x, counts, in, expected);
    close_to("experts", out, expected, 5 * 8, 2e-6);
    free(in);
}

static void experts(void **state)
{
    struct experts x = {.fc1 = matrix(80, 8, 2), .fc2 = matrix(8, 40, 1)};
    struct fixture f;
    (void)state;
    fixture_open(&f, &shape, NUMERICS_EXACT);
    experts_check(&f, &x, (int64_t[]){2, 0, 3});
    experts_check(&f, &x, (int64_t[]){0, 5, 0});
    experts_check(&f, &x, (int64_t[]){1, 3, 1});
    fixture_close(&f);
    free(x.fc2.scale);
    free(x.fc2.data);
    free(x.fc1.scale);
    free(x.fc1.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ties_to_the_lower), cmocka_unit_test(capacity), cmocka_unit_test(aux_loss),
        cmocka_unit_test(dispatch),          cmocka_unit_test(regroup),  cmocka_unit_test(combine),
        cmocka_unit_test(experts),
    };
    return cmocka_run_group_tests_name("ops_experts", tests, NULL, NULL);
}
