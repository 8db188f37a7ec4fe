// SPDX-License-Identifier: Apache-2.0
// The network against values that transformers and peft computed, and these checks themselves
// against three planted bugs.
#include "unit/check.h"

#include "golden/golden.h"

static void exact(void **state)
{
    struct golden_exact x;
    char broken[256];
    (void)state;
    golden_exact_measure(&x, &golden_tiny, GOLDEN_STEPS, NULL);
    print_message("base: loss %.1e router logits %.1e hidden %.1e logits %.1e\n", x.base_loss,
                  x.router_logits, x.hidden, x.logits);
    print_message(
        "lora: loss %.1e logits %.1e worst gradient %.1e; 20 steps: loss %.1e norm %.1e\n",
        x.lora_loss, x.lora_logits, x.gradients, x.train_loss, x.train_norm);
    assert_string_equal(golden_exact_judge(&x, broken), "");
}

static void fp8(void **state)
{
    struct golden_fp8 x;
    char broken[256];
    (void)state;
    golden_fp8_measure(&x, &golden_tiny, NULL);
    print_message("loss off by %.4f; routing replayed: cosine %.4f norm ratio %.4f, worst adapter "
                  "%.4f %.4f; routing free: cosine %.4f\n",
                  x.replayed.loss, x.replayed.cosine, x.replayed.norm_ratio,
                  x.replayed.adapter_cosine, x.replayed.adapter_norm_ratio, x.free_cosine);
    assert_string_equal(golden_fp8_judge(&x, broken), "");
}

static void lora_left_out(struct golden *g)
{
    g->adapters->scale = 0;
}

static void scale_halved(struct golden *g)
{
    g->adapters->scale /= 2;
}

static int (*router_backward)(struct ops *ops, const float *weight, int tokens,
                              const struct routing *routing, const real *dweights, double aux_scale,
                              void *dh, struct fl_error *e);

static int router_backward_without(struct ops *ops, const float *weight, int tokens,
                                   const struct routing *routing, const real *dweights,
                                   double aux_scale, void *dh, struct fl_error *e)
{
    size_t slots = (size_t)tokens * (size_t)ops->model->top_k;
    real *zeros = test_calloc(slots, sizeof *zeros);
    int rc = router_backward(ops, weight, tokens, routing, zeros, aux_scale, dh, e);

    (void)dweights;
    test_free(zeros);
    return rc;
}

static void router_gradient_left_out(struct golden *g)
{
    router_backward = g->ops->router_backward;
    g->ops->router_backward = router_backward_without;
}

static void planted(void (*break_it)(struct golden *g), const char *exact_broken)
{
    struct golden_exact exact_values;
    struct golden_fp8 fp8_values;
    char broken[256];

    golden_exact_measure(&exact_values, &golden_tiny, 2, break_it);
    assert_string_equal(golden_exact_judge(&exact_values, broken), exact_broken);
    golden_fp8_measure(&fp8_values, &golden_tiny, break_it);
    print_message("fp8 checks broken: %s\n", golden_fp8_judge(&fp8_values, broken));
    assert_string_not_equal(broken, "");
}

static void lora_left_out_is_seen(void **state)
{
    (void)state;
    planted(lora_left_out, "lora_loss lora_logits gradients train_loss train_norm");
}

static void scale_halved_is_seen(void **state)
{
    (void)state;
    planted(scale_halved, "lora_loss lora_logits gradients train_loss train_norm");
}

static void router_gradient_left_out_is_seen(void **state)
{
    (void)state;
    planted(router_gradient_left_out, "gradients train_loss train_norm");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact),
        cmocka_unit_test(fp8),
        cmocka_unit_test(lora_left_out_is_seen),
        cmocka_unit_test(scale_halved_is_seen),
        cmocka_unit_test(router_gradient_left_out_is_seen),
    };
    return cmocka_run_group_tests_name("golden", tests, NULL, NULL);
}
