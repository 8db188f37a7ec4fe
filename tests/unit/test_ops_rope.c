// SPDX-License-Identifier: Apache-2.0
// Head norms and rotary embedding against plain fp64 loops: small inputs, so that eps counts, gains
// that tell q from k, a theta and positions of their own.
#include "unit/ops_fixture.h"

#define TOKENS 3
#define HEADS  4
#define KV     2
#define DIM    6
#define ROW    ((HEADS + 2 * KV) * DIM)
#define TURNED ((HEADS + KV) * DIM)

static const struct model shape = {
    .heads = HEADS, .kv_heads = KV, .head_dim = DIM, .rms_eps = 1e-2, .rope_theta = 37};
static const int32_t positions[TOKENS] = {0, 1, 1000};

// One head of a token, normalised and rotated.
static void head_reference(const double *x, const float *gain, int position, double *y)
{
    double squares = 0, normed[DIM];

    for (int i = 0; i < DIM; i++)
        squares += x[i] * x[i];
    for (int i = 0; i < DIM; i++)
        normed[i] = x[i] / sqrt(squares / DIM + 1e-2) * (double)gain[i];
    for (int i = 0; i < DIM / 2; i++) {
        double angle = position * pow(37, -2.0 * i / DIM), c = cos(angle), s = sin(angle);
        y[i] = normed[i] * c - normed[i + DIM / 2] * s;
        y[i + DIM / 2] = normed[i + DIM / 2] * c + normed[i] * s;
    }
}

static void reference(const double *qkv, const float *q_norm, const float *k_norm, double *qk)
{
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HEADS + KV; h++)
            head_reference(qkv + t * ROW + h * DIM, h < HEADS ? q_norm : k_norm, positions[t],
                           qk + t * TURNED + h * DIM);
}

struct rope {
    struct fixture f;
    real *qkv, *table, qk[TOKENS * TURNED];
    double exact[TOKENS * ROW]; // qkv
    float q_norm[DIM], k_norm[DIM];
};

static void rope_open(struct rope *r)
{
    fixture_open(&r->f, &shape, NUMERICS_EXACT);
    r->qkv = random_reals(5, TOKENS * ROW, 0.1);
    r->table = memory_zeroed(TOKENS * DIM, sizeof *r->table);
    for (int i = 0; i < TOKENS * ROW; i++)
        r->exact[i] = (double)r->qkv[i];
    for (int i = 0; i < DIM; i++) {
        r->q_norm[i] = 0.5f + 0.1f * (float)i;
        r->k_norm[i] = 2.0f - 0.3f * (float)i;
    }
    check_ok(r->f.ops->rope_table(r->f.ops, positions, TOKENS, r->table, &r->f.e), &r->f.e);
    check_ok(r->f.ops->rope_forward(r->f.ops, r->qkv, r->q_norm, r->k_norm, r->table, TOKENS, r->qk,
                                    &r->f.e),
             &r->f.e);
}

static void rope_close(struct rope *r)
{
    free(r->table);
    free(r->qkv);
    fixture_close(&r->f);
}

static void forward(void **state)
{
    struct rope r;
    double expected[TOKENS * TURNED];
    (void)state;
    rope_open(&r);
    reference(r.exact, r.q_norm, r.k_norm, expected);
    close_to("rotated heads", r.qk, expected, TOKENS * TURNED, 1e-6);
    rope_close(&r);
}

// The gradient of sum of weights * rotated heads, by central differences of the fp64 reference.
static void backward(void **state)
{
    struct rope r;
    real *d, *weights;
    double expected[TOKENS * ROW], high[TOKENS * TURNED], low[TOKENS * TURNED];
    const double step = 1e-6;
    (void)state;
    rope_open(&r);
    d = random_reals(6, TOKENS * ROW, 1);
    weights = random_reals(6, TOKENS * ROW, 1);
    for (int i = 0; i < TOKENS * ROW; i++) {
        double at = r.exact[i];
        expected[i] = (double)d[i]; // the v part stays
        if (i % ROW >= TURNED)
            continue;
        r.exact[i] = at + step;
        reference(r.exact, r.q_norm, r.k_norm, high);
        r.exact[i] = at - step;
        reference(r.exact, r.q_norm, r.k_norm, low);
        r.exact[i] = at;
        expected[i] = 0;
        for (int t = 0; t < TOKENS; t++)
            for (int j = 0; j < TURNED; j++)
                expected[i] += (double)weights[t * ROW + j] *
                               (high[t * TURNED + j] - low[t * TURNED + j]) / (2 * step);
    }
    check_ok(r.f.ops->rope_backward(r.f.ops, r.qkv, r.q_norm, r.k_norm, r.table, TOKENS, d, &r.f.e),
             &r.f.e);
    close_to("gradient of q, k and v", d, expected, TOKENS * ROW, 1e-6);
    free(weights);
    free(d);
    rope_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward),
        cmocka_unit_test(backward),
    };
    return cmocka_run_group_tests_name("rope", tests, NULL, NULL);
}
