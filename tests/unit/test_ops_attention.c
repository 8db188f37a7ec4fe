// SPDX-License-Identifier: Apache-2.0
// Attention over packed samples of unequal lengths, forward and backward, against fp64 loops.
#include "unit/ops_fixture.h"

#define HEADS    4
#define KV_HEADS 2
#define DIM      16
#define QK       ((HEADS + KV_HEADS) * DIM)
#define QKV      ((HEADS + 2 * KV_HEADS) * DIM)
#define OUT      (HEADS * DIM)

static const struct model shape = {.heads = HEADS, .kv_heads = KV_HEADS, .head_dim = DIM};

// One sample and head, everything in fp64; gradients are added to dqkv.
static void head_plain(const real *qk, const real *qkv, const real *dout, int first, int length,
                       int head, double *out, double *lse, double *dqkv)
{
    int group = head / (HEADS / KV_HEADS);
    int q_at = head * DIM, k_at = (HEADS + group) * DIM, v_at = (HEADS + KV_HEADS + group) * DIM;
    double *p = memory_zeroed((size_t)length, sizeof *p);
    double *dp = memory_zeroed((size_t)length, sizeof *dp);

    for (int i = first; i < first + length; i++) {
        double sum = 0, dot = 0;
        for (int j = first; j <= i; j++) {
            p[j - first] = 0;
            dp[j - first] = 0;
            for (int c = 0; c < DIM; c++) {
                p[j - first] +=
                    (double)qk[i * QK + q_at + c] * (double)qk[j * QK + k_at + c] / sqrt(DIM);
                dp[j - first] += (double)dout[i * OUT + q_at + c] * (double)qkv[j * QKV + v_at + c];
            }
            p[j - first] = exp(p[j - first]);
            sum += p[j - first];
        }
        lse[i] = log(sum);
        for (int j = first; j <= i; j++) {
            p[j - first] /= sum;
            dot += p[j - first] * dp[j - first];
        }
        for (int j = first; j <= i; j++)
            for (int c = 0; c < DIM; c++) {
                double ds = p[j - first] * (dp[j - first] - dot) / sqrt(DIM);
                out[i * OUT + q_at + c] += p[j - first] * (double)qkv[j * QKV + v_at + c];
                dqkv[i * QKV + q_at + c] += ds * (double)qk[j * QK + k_at + c];
                dqkv[j * QKV + k_at + c] += ds * (double)qk[i * QK + q_at + c];
                dqkv[j * QKV + v_at + c] += p[j - first] * (double)dout[i * OUT + q_at + c];
            }
    }
    free(dp);
    free(p);
}

static void ragged(void **state)
{
    static const int32_t starts[] = {0, 1, 130, 131, 388, 400}; // lengths 1, 129, 1, 257, 12
    enum { SAMPLES = 5, TOKENS = 400 };
    struct fixture f;
    real *qk = random_reals(1, TOKENS * QK, 2), *qkv = random_reals(2, TOKENS * QKV, 1);
    real *dout = random_reals(3, TOKENS * OUT, 1), *out = random_reals(4, TOKENS * OUT, 1);
    real *lse = random_reals(5, HEADS * TOKENS, 1), *dqkv = random_reals(6, TOKENS * QKV, 1);
    double *eout = memory_zeroed(TOKENS * OUT, 8), *elogs = memory_zeroed(HEADS * TOKENS, 8);
    double *edqkv = memory_zeroed(TOKENS * QKV, 8);
    (void)state;
    fixture_open(&f, &shape, NUMERICS_EXACT);
    for (int s = 0; s < SAMPLES; s++)
        for (int h = 0; h < HEADS; h++)
            head_plain(qk, qkv, dout, starts[s], starts[s + 1] - starts[s], h, eout,
                       elogs + h * TOKENS, edqkv);
    check_ok(f.ops->attention_forward(f.ops, qk, qkv, starts, SAMPLES, out, lse, &f.e), &f.e);
    close_to("out", out, eout, TOKENS * OUT, 2e-6);
    close_to("lse", lse, elogs, HEADS * TOKENS, 2e-6);
    check_ok(f.ops->attention_backward(f.ops, qk, qkv, out, lse, dout, starts, SAMPLES, dqkv, &f.e),
             &f.e);
    close_to("dqkv", dqkv, edqkv, TOKENS * QKV, 5e-6);
    fixture_close(&f);
    free(edqkv);
    free(elogs);
    free(eout);
    free(dqkv);
    free(lse);
    free(out);
    free(dout);
    free(qkv);
    free(qk);
}

// A token sees its own sample only: what another sample holds changes nothing, to the bit.
static void samples_apart(void **state)
{
    static const int32_t starts[] = {0, 9, 20};
    struct fixture f;
    real *qk = random_reals(1, 20 * QK, 2), *qkv = random_reals(2, 20 * QKV, 1);
    real *out = random_reals(4, 20 * OUT, 1), *again = random_reals(4, 20 * OUT, 1);
    real *lse = random_reals(5, HEADS * 20, 1);
    (void)state;
    fixture_open(&f, &shape, NUMERICS_FP8);
    check_ok(f.ops->attention_forward(f.ops, qk, qkv, starts, 2, out, lse, &f.e), &f.e);
    for (int i = 0; i < 9 * QK; i++)
        qk[i] = -qk[i];
    for (int i = 0; i < 9 * QKV; i++)
        qkv[i] = 100;
    check_ok(f.ops->attention_forward(f.ops, qk, qkv, starts, 2, again, lse, &f.e), &f.e);
    assert_memory_equal(out + 9 * OUT, again + 9 * OUT, 11 * OUT * sizeof(real));
    assert_true(again[0] == 100);
    fixture_close(&f);
    free(lse);
    free(again);
    free(out);
    free(qkv);
    free(qk);
}

static void no_tokens(void **state)
{
    static const int32_t starts[] = {0};
    struct fixture f;
    real nothing[1] = {0};
    (void)state;
    fixture_open(&f, &shape, NUMERICS_EXACT);
    check_ok(f.ops->attention_forward(f.ops, nothing, nothing, starts, 0, nothing, nothing, &f.e),
             &f.e);
    check_ok(f.ops->attention_backward(f.ops, nothing, nothing, nothing, nothing, nothing, starts,
                                       0, nothing, &f.e),
             &f.e);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ragged),
        cmocka_unit_test(samples_apart),
        cmocka_unit_test(no_tokens),
    };
    return cmocka_run_group_tests_name("ops_attention", tests, NULL, NULL);
}
