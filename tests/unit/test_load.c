// SPDX-License-Identifier: Apache-2.0
// weights/load: every value of every projection against the file's own bytes, for whole and partial
// blocks, all types and EP sizes.
#include "unit/check.h"

#include "base/file.h"
#include "base/floats.h"
#include "base/memory.h"
#include "unit/fixture.h"
#include "weights/model_weights.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define TINY FL_SOURCE_DIR "/tests/data/tiny-qwen3-moe-fp8"

struct loaded {
    struct model model;
    struct layout layout;
    struct arena *arena;
    struct model_weights *weights;
    struct load_stats stats;
};

static int load(struct loaded *l, const char *folder, const struct model *model, int ep, int rank,
                int threads, struct fl_error *e)
{
    *l = (struct loaded){.model = *model, .layout = fixture_layout(model, ep, rank)};
    check_ok(arena_create_host(0, &l->arena, e), e);
    check_ok(model_weights_create(model, &l->layout, l->arena, &l->weights, e), e);
    return model_weights_load(l->weights, folder, model, &l->layout, threads, &l->stats, e);
}

static void unload(struct loaded *l)
{
    model_weights_destroy(l->weights);
    arena_destroy(l->arena);
}

// The bytes of a tensor of the tiny checkpoint, found by an independent walk through its files.
struct plain {
    char *text[2];
    json_t *header[2];
};

static void plain_open(struct plain *p)
{
    for (int i = 0; i < 2; i++) {
        char *path = memory_format(TINY "/model-%05d-of-00002.safetensors", i + 1);
        struct fl_error e;
        uint64_t length;
        check_ok(file_read(path, 1u << 30, &p->text[i], NULL, &e), &e);
        memcpy(&length, p->text[i], 8);
        p->header[i] = json_loadb(p->text[i] + 8, length, 0, NULL);
        assert_non_null(p->header[i]);
        free(path);
    }
}

static void plain_close(struct plain *p)
{
    for (int i = 0; i < 2; i++) {
        json_decref(p->header[i]);
        free(p->text[i]);
    }
}

static const uint8_t *plain_find(const struct plain *p, size_t *bytes, const char *name)
{
    for (int i = 0; i < 2; i++) {
        const json_t *range = json_object_get(json_object_get(p->header[i], name), "data_offsets");
        uint64_t length;
        size_t begin;
        if (!range)
            continue;
        memcpy(&length, p->text[i], 8);
        begin = (size_t)json_integer_value(json_array_get(range, 0));
        *bytes = (size_t)json_integer_value(json_array_get(range, 1)) - begin;
        return (const uint8_t *)p->text[i] + 8 + length + begin;
    }
    fail_msg("no tensor %s", name);
    return NULL;
}

// Places of the fused matrices that hold one projection of the tiny checkpoint, whose blocks are
// all whole.
static void tiny_projection(const struct plain *p, const uint8_t *data, const float *scale,
                            char *name, uint64_t *total)
{
    char *scale_name = memory_format("%s_scale_inv", name);
    size_t bytes, scale_bytes;
    const uint8_t *codes = plain_find(p, &bytes, name);
    const uint8_t *scales = plain_find(p, &scale_bytes, scale_name);

    assert_memory_equal(data, codes, bytes);
    for (size_t i = 0; i < scale_bytes / 2; i++)
        assert_true(scale[i] == bf16_to_float((uint16_t)(scales[2 * i] | scales[2 * i + 1] << 8)));
    *total += bytes + scale_bytes;
    free(scale_name);
    free(name);
}

static void tiny_floats(const struct plain *p, const float *x, char *name, uint64_t *total)
{
    size_t bytes;
    const uint8_t *raw = plain_find(p, &bytes, name);

    for (size_t i = 0; i < bytes / 2; i++)
        assert_true(x[i] == bf16_to_float((uint16_t)(raw[2 * i] | raw[2 * i + 1] << 8)));
    *total += bytes;
    free(name);
}

static void tiny_layer(const struct plain *p, const struct loaded *l, int i, uint64_t *total)
{
    const struct layer_weights *w = &l->weights->layers[i];
    const size_t H = 256, Q = 512, KV = 256, W = 128;

#define NAME(rest, ...) memory_format("model.layers.%d." rest, i __VA_OPT__(, ) __VA_ARGS__)
    tiny_floats(p, w->input_norm, NAME("input_layernorm.weight"), total);
    tiny_floats(p, w->post_norm, NAME("post_attention_layernorm.weight"), total);
    tiny_floats(p, w->q_norm, NAME("self_attn.q_norm.weight"), total);
    tiny_floats(p, w->k_norm, NAME("self_attn.k_norm.weight"), total);
    tiny_floats(p, w->router, NAME("mlp.gate.weight"), total);
    tiny_projection(p, w->qkv.data, w->qkv.scale, NAME("self_attn.q_proj.weight"), total);
    tiny_projection(p, w->qkv.data + Q * H, w->qkv.scale + 4 * 2, NAME("self_attn.k_proj.weight"),
                    total);
    tiny_projection(p, w->qkv.data + (Q + KV) * H, w->qkv.scale + 6 * 2,
                    NAME("self_attn.v_proj.weight"), total);
    tiny_projection(p, w->proj.data, w->proj.scale, NAME("self_attn.o_proj.weight"), total);
    for (int j = 0; j < l->layout.experts_local; j++) {
        const uint8_t *fc1 = w->fc1.data + (size_t)j * 2 * W * H;
        const float *fc1_scale = w->fc1.scale + j * 4;
        int expert = l->layout.expert_first + j;
        tiny_projection(p, fc1, fc1_scale, NAME("mlp.experts.%d.gate_proj.weight", expert), total);
        tiny_projection(p, fc1 + W * H, fc1_scale + 2,
                        NAME("mlp.experts.%d.up_proj.weight", expert), total);
        tiny_projection(p, w->fc2.data + (size_t)j * H * W, w->fc2.scale + j * 2,
                        NAME("mlp.experts.%d.down_proj.weight", expert), total);
    }
#undef NAME
}

static void tiny_checkpoint(void **state)
{
    static const int sizes[] = {1, 2, 4, 16};
    struct fl_error e;
    struct model model;
    struct plain plain;
    (void)state;

    plain_open(&plain);
    check_ok(model_load(TINY, &model, &e), &e);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int rank = 0; rank < sizes[s]; rank++) {
            struct loaded l;
            uint64_t total = 0;
            size_t bytes;
            const uint8_t *raw;
            check_ok(load(&l, TINY, &model, sizes[s], rank, 2, &e), &e);
            raw = plain_find(&plain, &bytes, "model.embed_tokens.weight");
            assert_memory_equal(l.weights->embed, raw, bytes);
            raw = plain_find(&plain, &bytes, "lm_head.weight");
            assert_memory_equal(l.weights->head, raw, bytes);
            total = 2 * bytes;
            tiny_floats(&plain, l.weights->final_norm, memory_string("model.norm.weight"), &total);
            for (int i = 0; i < model.layers; i++)
                tiny_layer(&plain, &l, i, &total);
            assert_int_equal(l.stats.bytes, total); // nothing else was read
            assert_int_equal(l.stats.quantised, 0);
            unload(&l);
        }
    plain_close(&plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_checkpoint),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
