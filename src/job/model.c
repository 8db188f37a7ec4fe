// SPDX-License-Identifier: Apache-2.0
// A model as config.json describes it.
#include "job/model.h"

#include "base/file.h"
#include "base/memory.h"
#include "job/source.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_LIMIT (4u << 20) // bytes
#define SIZE_MOST    (1 << 24)  // of any dimension

struct reader {
    const json_t *root;
    const char *name; // of the file
    struct fl_error *e;
    int rc;
};

static void refuse(struct reader *r, const char *key, const char *what)
{
    if (r->rc == 0)
        r->rc = error_set(r->e, -EINVAL, "%s: %s: %s", r->name, key, what);
}

static int integer_of(struct reader *r, const json_t *v, const char *key)
{
    json_int_t i;

    if (!json_is_integer(v)) {
        refuse(r, key, v ? "not an integer" : "missing; is this a Qwen3-MoE config.json?");
        return 1;
    }
    i = json_integer_value(v);
    if (i < 1 || i > SIZE_MOST) {
        refuse(r, key, "out of range (1 to 16777216)");
        return 1;
    }
    return (int)i;
}

static int integer(struct reader *r, const char *key)
{
    return integer_of(r, json_object_get(r->root, key), key);
}

static double positive(struct reader *r, const json_t *v, const char *key)
{
    double x = json_is_number(v) ? json_number_value(v) : NAN;

    if (!(x > 0) || !isfinite(x)) {
        refuse(r, key, v ? "not a positive number" : "missing");
        return 1;
    }
    return x;
}

static bool flag(struct reader *r, const char *key, bool missing)
{
    const json_t *v = json_object_get(r->root, key);

    if (!v || json_is_null(v))
        return missing;
    if (!json_is_boolean(v))
        refuse(r, key, "not true or false");
    return json_is_true(v);
}

// A key that must be absent, null, false, zero or empty, because the trainer lacks what it asks
// for.
static void lacking(struct reader *r, const char *key)
{
    const json_t *v = json_object_get(r->root, key);

    if (v && !json_is_null(v) && !json_is_false(v) &&
        !(json_is_integer(v) && json_integer_value(v) == 0) &&
        !(json_is_array(v) && json_array_size(v) == 0))
        refuse(r, key, "this trainer has no such feature yet; choose a model without it");
}

static void architecture_check(struct reader *r)
{
    const char *type = json_string_value(json_object_get(r->root, "model_type"));
    const char *act = json_string_value(json_object_get(r->root, "hidden_act"));
    const json_t *step = json_object_get(r->root, "decoder_sparse_step");

    if (!type || strcmp(type, "qwen3_moe")) {
        if (r->rc == 0)
            r->rc = error_set(r->e, -EINVAL,
                              "%s: model_type '%s': this trainer runs qwen3_moe models only",
                              r->name, type ? type : "missing");
        return;
    }
    if (act && strcmp(act, "silu"))
        refuse(r, "hidden_act", "only silu is known");
    if (step && (!json_is_integer(step) || json_integer_value(step) != 1))
        refuse(r, "decoder_sparse_step", "dense layers among the MoE ones are not supported yet");
    lacking(r, "attention_bias");
    lacking(r, "use_sliding_window");
    lacking(r, "rope_scaling");
    lacking(r, "mlp_only_layers");
}

// rope_theta stands at the top or inside rope_parameters.
static double rope_theta_read(struct reader *r)
{
    const json_t *rope = json_object_get(r->root, "rope_parameters");
    const json_t *theta = json_object_get(rope, "rope_theta");
    const char *type = json_string_value(json_object_get(rope, "rope_type"));

    if (type && strcmp(type, "default"))
        refuse(r, "rope_parameters.rope_type", "only 'default' is known");
    return positive(r, theta ? theta : json_object_get(r->root, "rope_theta"), "rope_theta");
}

static bool fp8_read(struct reader *r)
{
    const json_t *q = json_object_get(r->root, "quantization_config");
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    const json_t *block = json_object_get(q, "weight_block_size");
    const char *format = json_string_value(json_object_get(q, "fmt"));

    if (!q || json_is_null(q))
        return false;
    if (!method || strcmp(method, "fp8"))
        refuse(r, "quantization_config.quant_method", "only fp8 is known");
    if (format && strcmp(format, "e4m3"))
        refuse(r, "quantization_config.fmt", "only e4m3 weights are known");
    if (json_array_size(block) != 2 || json_integer_value(json_array_get(block, 0)) != FP8_BLOCK ||
        json_integer_value(json_array_get(block, 1)) != FP8_BLOCK)
        refuse(r, "quantization_config.weight_block_size", "must be [128, 128]");
    return true;
}

int model_parse(const char *text, size_t bytes, const char *name, struct model *model,
                struct fl_error *e)
{
    json_error_t json_error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &json_error);
    struct reader r = {root, name, e, 0};
    const json_t *experts, *head_dim;

    memset(model, 0, sizeof *model);
    if (!root)
        return error_set(e, -EINVAL, "%s:%d: not valid JSON: %s; copy it from the checkpoint again",
                         name, json_error.line, json_error.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return error_set(e, -EINVAL, "%s: not a JSON object", name);
    }
    architecture_check(&r);
    model->layers = integer(&r, "num_hidden_layers");
    model->hidden = integer(&r, "hidden_size");
    model->heads = integer(&r, "num_attention_heads");
    model->kv_heads = integer(&r, "num_key_value_heads");
    model->vocab = integer(&r, "vocab_size");
    model->max_positions = integer(&r, "max_position_embeddings");
    model->top_k = integer(&r, "num_experts_per_tok");
    model->expert_width = integer(&r, "moe_intermediate_size");
    experts = json_object_get(root, "num_experts"); // renamed num_local_experts by newer writers
    model->experts = integer_of(&r, experts ? experts : json_object_get(root, "num_local_experts"),
                                "num_experts");
    head_dim = json_object_get(root, "head_dim");
    model->head_dim = head_dim && !json_is_null(head_dim) ? integer_of(&r, head_dim, "head_dim")
                                                          : model->hidden / model->heads;
    model->rms_eps = positive(&r, json_object_get(root, "rms_norm_eps"), "rms_norm_eps");
    model->rope_theta = rope_theta_read(&r);
    model->norm_topk_prob = flag(&r, "norm_topk_prob", false);
    model->tied_embeddings = flag(&r, "tie_word_embeddings", false);
    model->fp8 = fp8_read(&r);
    if (model->heads % model->kv_heads)
        refuse(&r, "num_key_value_heads", "does not divide num_attention_heads");
    if (model->head_dim < 2 || model->head_dim % 2)
        refuse(&r, "head_dim", "must be even");
    if ((model->heads + 2.0 * model->kv_heads) * model->head_dim > SIZE_MOST)
        refuse(&r, "head_dim", "with these heads, q, k and v have more than 16777216 columns");
    if (model->top_k > model->experts)
        refuse(&r, "num_experts_per_tok", "more than there are experts");
    json_decref(root);
    return r.rc;
}

int model_load(const char *model_source, struct model *model, struct fl_error *e)
{
    struct source source;
    char *text = NULL;
    size_t bytes;
    int rc = source_parse(model_source, &source, e);

    if (rc < 0)
        return rc;
    rc = file_read(source.config, CONFIG_LIMIT, &text, &bytes, e);
    if (rc == 0)
        rc = model_parse(text, bytes, source.config, model, e);
    else if (rc == -ENOENT)
        error_set(e, rc, "%s: no such file: 'model' must be a folder in Hugging Face layout",
                  source.config);
    if (rc == 0 && source.synth)
        model->fp8 = true;
    free(text);
    source_clear(&source);
    return rc;
}
