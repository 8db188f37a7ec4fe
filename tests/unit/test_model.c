// SPDX-License-Identifier: Apache-2.0
// job/model and job/layout: what is read, and every refusal by its message.
#include "unit/check.h"

#include "job/layout.h"
#include "job/model.h"

#include <stdio.h>
#include <stdlib.h>

#define BODY                                                                                       \
    "\"num_hidden_layers\": 2, \"hidden_size\": 64, \"num_attention_heads\": 4, "                  \
    "\"num_key_value_heads\": 2, \"vocab_size\": 100, \"max_position_embeddings\": 512, "          \
    "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, \"rms_norm_eps\": 1e-6"

static int parse(const char *text, struct model *model, struct fl_error *e)
{
    return model_parse(text, strlen(text), "config.json", model, e);
}

static void tiny_checkpoint(void **state)
{
    struct model m;
    struct fl_error e;
    (void)state;
    check_ok(model_load(FL_SOURCE_DIR "/tests/data/tiny-qwen3-moe-fp8", &m, &e), &e);
    assert_int_equal(m.layers, 4);
    assert_int_equal(m.hidden, 256);
    assert_int_equal(m.heads, 4);
    assert_int_equal(m.kv_heads, 2);
    assert_int_equal(m.head_dim, 128);
    assert_int_equal(m.experts, 16); // spelt num_local_experts there
    assert_int_equal(m.top_k, 4);
    assert_int_equal(m.expert_width, 128);
    assert_int_equal(m.vocab, 4096);
    assert_true(m.rope_theta == 1e6 && m.rms_eps == 1e-6);
    assert_true(m.fp8 && m.norm_topk_prob && !m.tied_embeddings);
}

static void defaults(void **state)
{
    struct model m;
    struct fl_error e;
    (void)state;
    check_ok(parse("{\"model_type\": \"qwen3_moe\", \"num_experts\": 8, \"rope_parameters\": "
                   "{\"rope_theta\": 5e5}, \"quantization_config\": null, " BODY "}",
                   &m, &e),
             &e);
    assert_int_equal(m.head_dim, 16);
    assert_true(m.rope_theta == 5e5 && !m.fp8 && !m.norm_topk_prob);
}

static void refusals(void **state)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"{", "config.json:1: not valid JSON"},
        {"[]", "not a JSON object"},
        {"{\"model_type\": \"llama\", " BODY "}",
         "model_type 'llama': this trainer runs qwen3_moe"},
        {"{" BODY "}", "model_type 'missing'"},
        {"{\"model_type\": \"qwen3_moe\", " BODY "}", "num_experts: missing"},
        {"{\"model_type\": \"qwen3_moe\", \"num_experts\": 8.5, " BODY "}", "not an integer"},
        {"{\"model_type\": \"qwen3_moe\", \"num_experts\": 0, " BODY "}", "out of range"},
        {"{\"model_type\": \"qwen3_moe\", \"num_experts\": 1, \"rope_theta\": 1, " BODY "}",
         "more than there are experts"},
        {"{\"model_type\": \"qwen3_moe\", \"num_experts\": 8, " BODY "}", "rope_theta: missing"},
        {"{\"model_type\": \"qwen3_moe\", \"num_experts\": 8, \"rope_theta\": -1, " BODY "}",
         "rope_theta: not a positive number"},
        {"{\"model_type\": \"qwen3_moe\", \"attention_bias\": true, " BODY "}", "attention_bias"},
        {"{\"model_type\": \"qwen3_moe\", \"mlp_only_layers\": [1], " BODY "}", "mlp_only_layers"},
        {"{\"model_type\": \"qwen3_moe\", \"rope_scaling\": {\"type\": \"yarn\"}, " BODY "}",
         "rope_scaling"},
        {"{\"model_type\": \"qwen3_moe\", \"decoder_sparse_step\": 2, " BODY "}",
         "decoder_sparse_step"},
        {"{\"model_type\": \"qwen3_moe\", \"hidden_act\": \"gelu\", " BODY "}", "hidden_act"},
        {"{\"model_type\": \"qwen3_moe\", \"num_experts\": 8, \"rope_theta\": 1, \"head_dim\": "
         "3, " BODY "}",
         "head_dim: must be even"},
        {"{\"model_type\": \"qwen3_moe\", \"num_experts\": 8, \"rope_theta\": 1, "
         "\"quantization_config\": {\"quant_method\": \"awq\"}, " BODY "}",
         "quant_method: only fp8"},
        {"{\"model_type\": \"qwen3_moe\", \"num_experts\": 8, \"rope_theta\": 1, "
         "\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [64, "
         "128]}, " BODY "}",
         "weight_block_size: must be [128, 128]"},
    };
    struct model m;
    struct fl_error e;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_error(parse(cases[i].text, &m, &e), &e, cases[i].words);
    check_error(model_load("/nonexistent", &m, &e), &e,
                "/nonexistent/config.json: no such file: 'model' must be a folder");
}

static void layouts(void **state)
{
    struct spec s = {.source = (char[]){"job.yaml"},
                     .tensor_parallel = 1,
                     .expert_parallel = 4,
                     .micro_batch_size = 2,
                     .global_batch_size = 32};
    struct model m = {.experts = 16};
    struct layout l;
    struct fl_error e;
    (void)state;
    check_ok(layout_make(&s, &m, 8, 6, &l, &e), &e);
    assert_int_equal(l.dp, 8);
    assert_int_equal(l.accumulation, 2);
    assert_int_equal(l.ep_rank, 2);
    assert_int_equal(l.ep_group, 1);
    assert_int_equal(l.replicas, 2);
    assert_int_equal(l.experts_local, 4);
    assert_int_equal(l.expert_first, 8);
    check_error(layout_make(&s, &m, 6, 0, &l, &e), &e, "does not divide the 6 ranks");
    check_error(layout_make(&s, &m, 32, 0, &l, &e), &e, "global_batch_size 32");
    s.expert_parallel = 32;
    check_error(layout_make(&s, &m, 32, 0, &l, &e), &e, "does not divide the model's 16 experts");
    s.expert_parallel = 1;
    s.tensor_parallel = 3;
    check_error(layout_make(&s, &m, 8, 0, &l, &e), &e, "tensor_model_parallel_size 3");
    s.tensor_parallel = 0;
    check_error(layout_make(&s, &m, 8, 0, &l, &e), &e, "at least 1");
    check_error(layout_make(&s, &m, 0, 0, &l, &e), &e, "at least one task");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_checkpoint),
        cmocka_unit_test(defaults),
        cmocka_unit_test(refusals),
        cmocka_unit_test(layouts),
    };
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
