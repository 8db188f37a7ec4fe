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
            check_ok(fixture_load(&l, TINY, &model, sizes[s], rank, 2, &e), &e);
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
            fixture_unload(&l);
        }
    plain_close(&plain);
}

// The scale the loader must use for block [br, bc]: the file's, or amax / 448.
static float expected_scale(const struct fixture *f, const struct fixture_tensor *t,
                            const char *name, int br, int bc)
{
    int rows = (int)t->tensor.shape[0], cols = (int)t->tensor.shape[1];
    double amax = 0;

    if (t->tensor.type == TENSOR_F8_E4M3) {
        char *scale_name = memory_format("%s_scale_inv", name);
        const struct fixture_tensor *scale = fixture_find(f, scale_name);
        free(scale_name);
        return (float)fixture_value(scale, (size_t)(br * ((cols + 127) / 128) + bc));
    }
    for (int r = br * 128; r < rows && r < br * 128 + 128; r++)
        for (int c = bc * 128; c < cols && c < bc * 128 + 128; c++)
            amax = fmax(amax, fabs(fixture_value(t, (size_t)(r * cols + c))));
    return amax > 0 ? (float)amax / 448 : 1;
}

// The projection stands in matrix index of m from row first and scale row first_scale on.
static void check_projection(const struct fixture *f, const struct fp8_matrix *m, int index,
                             int first, int first_scale, char *name)
{
    const struct fixture_tensor *t = fixture_find(f, name);
    int rows = (int)t->tensor.shape[0], cols = (int)t->tensor.shape[1];
    const uint8_t *data = m->data + (size_t)(index * m->rows + first) * (size_t)cols;
    const float *scales = m->scale + (index * m->scale_rows + first_scale) * m->scale_cols;

    assert_int_equal(cols, m->cols);
    for (int block = 0; block < (rows + 127) / 128 * m->scale_cols; block++) {
        int row = block / m->scale_cols * 128, col = block % m->scale_cols * 128;
        float scale = scales[block];
        if (scale != expected_scale(f, t, name, row / 128, col / 128))
            fail_msg("%s: scale of block %d is %g", name, block, scale);
        for (int r = row; r < rows && r < row + 128; r++)
            for (int c = col; c < cols && c < col + 128; c++) {
                int i = r * cols + c;
                uint8_t expected =
                    t->tensor.type == TENSOR_F8_E4M3
                        ? t->data[i]
                        : e4m3_from_float((float)fixture_value(t, (size_t)i) / scale);
                if (data[i] != expected)
                    fail_msg("%s: code at [%d, %d] is %02x, not %02x", name, r, c, data[i],
                             expected);
            }
    }
    free(name);
}

static void check_floats(const struct fixture *f, const float *x, char *name)
{
    const struct fixture_tensor *t = fixture_find(f, name);
    size_t count = t->tensor.bytes / (size_t)tensor_type_bytes(t->tensor.type);

    for (size_t i = 0; i < count; i++)
        assert_true(x[i] == fixture_value(t, i));
    free(name);
}

static void check_embedding(const struct fixture *f, const uint16_t *x, const char *name)
{
    const struct fixture_tensor *t = fixture_find(f, name);

    for (size_t i = 0; i < (size_t)f->model.vocab * (size_t)f->model.hidden; i++)
        assert_int_equal(x[i], bf16_from_float((float)fixture_value(t, i)));
}

static void check_all(const struct fixture *f, const struct loaded *l)
{
    const struct model *m = &f->model;
    const int q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim, w = m->expert_width;
    const int kv_blocks = (kv + 127) / 128, q_blocks = (q + 127) / 128, w_blocks = (w + 127) / 128;

    check_embedding(f, l->weights->embed, "model.embed_tokens.weight");
    if (m->tied_embeddings)
        assert_ptr_equal(l->weights->head, l->weights->embed);
    else
        check_embedding(f, l->weights->head, "lm_head.weight");
    check_floats(f, l->weights->final_norm, memory_string("model.norm.weight"));
    for (int i = 0; i < m->layers; i++) {
        const struct layer_weights *lw = &l->weights->layers[i];
#define NAME(rest, ...) memory_format("model.layers.%d." rest, i __VA_OPT__(, ) __VA_ARGS__)
        check_floats(f, lw->input_norm, NAME("input_layernorm.weight"));
        check_floats(f, lw->post_norm, NAME("post_attention_layernorm.weight"));
        check_floats(f, lw->q_norm, NAME("self_attn.q_norm.weight"));
        check_floats(f, lw->k_norm, NAME("self_attn.k_norm.weight"));
        check_floats(f, lw->router, NAME("mlp.gate.weight"));
        check_projection(f, &lw->qkv, 0, 0, 0, NAME("self_attn.q_proj.weight"));
        check_projection(f, &lw->qkv, 0, q, q_blocks, NAME("self_attn.k_proj.weight"));
        check_projection(f, &lw->qkv, 0, q + kv, q_blocks + kv_blocks,
                         NAME("self_attn.v_proj.weight"));
        check_projection(f, &lw->proj, 0, 0, 0, NAME("self_attn.o_proj.weight"));
        for (int j = 0; j < l->layout.experts_local; j++) {
            int x = l->layout.expert_first + j;
            check_projection(f, &lw->fc1, j, 0, 0, NAME("mlp.experts.%d.gate_proj.weight", x));
            check_projection(f, &lw->fc1, j, w, w_blocks, NAME("mlp.experts.%d.up_proj.weight", x));
            check_projection(f, &lw->fc2, j, 0, 0, NAME("mlp.experts.%d.down_proj.weight", x));
        }
#undef NAME
    }
}

static void round_trip(const struct fixture *f, size_t shards, int ep)
{
    char *folder = folder_make();
    struct fl_error e;

    fixture_write(f, folder, shards);
    for (int rank = 0; rank < ep; rank++) {
        struct loaded l;
        check_ok(fixture_load(&l, folder, &f->model, ep, rank, 1, &e), &e);
        check_all(f, &l);
        fixture_unload(&l);
    }
    folder_remove(folder);
}

static void shapes(void **state)
{
    struct loaded l = {.model = odd_model, .layout = fixture_layout(&odd_model, 2, 1)};
    const struct fp8_matrix *m;
    struct arena_stats stats;
    struct fl_error e;
    (void)state;

    check_ok(arena_create_host(0, &l.arena, &e), &e);
    check_ok(model_weights_create(&odd_model, &l.layout, l.arena, &l.weights, &e), &e);
    m = &l.weights->layers[1].qkv;
    assert_int_equal(m->rows, 192);
    assert_int_equal(m->scale_rows, 3);
    assert_int_equal(m->scale_cols, 2);
    m = &l.weights->layers[1].fc1;
    assert_int_equal(m->count, 2);
    assert_int_equal(m->rows, 384);
    assert_int_equal(m->scale_rows, 4);
    m = &l.weights->layers[1].proj;
    assert_int_equal(m->cols, 96);
    assert_int_equal(m->scale_cols, 1);
    arena_stats_get(l.arena, &stats);
    assert_true(stats.used[MEMORY_WEIGHTS] == stats.used_total);
    fixture_unload(&l);

    check_ok(arena_create_host(1u << 20, &l.arena, &e), &e);
    check_error(model_weights_create(&odd_model, &l.layout, l.arena, &l.weights, &e), &e,
                "weights");
    assert_null(l.weights);
    arena_destroy(l.arena);
}

static void partial_blocks(void **state)
{
    static const enum tensor_type scales[] = {TENSOR_BF16, TENSOR_F16, TENSOR_F32};
    (void)state;

    for (uint32_t i = 0; i < 3; i++) {
        struct fixture *f = fixture_create(&odd_model, TENSOR_F8_E4M3, scales[i], scales[i], i + 1);
        round_trip(f, i + 1, 1 << i);
        fixture_destroy(f);
    }
}

static void quantised_while_loading(void **state)
{
    static const enum tensor_type types[] = {TENSOR_BF16, TENSOR_F16, TENSOR_F32};
    (void)state;

    for (uint32_t i = 0; i < 3; i++) {
        struct fixture *f = fixture_create(&odd_model, types[i], TENSOR_F32, types[i], 10 + i);
        struct fixture_tensor *t = fixture_find(f, "model.layers.1.self_attn.o_proj.weight");
        for (size_t r = 0; r < 128; r++) // a block of zeros
            for (size_t c = 0; c < 96; c++)
                fixture_set(t, r * 96 + c, 0);
        round_trip(f, 1 + i, 2);
        fixture_destroy(f);
    }
}

// The largest value of a block becomes 448, tiny blocks do not divide by zero.
static void quantised_extremes(void **state)
{
    struct fixture *f = fixture_create(&odd_model, TENSOR_F32, TENSOR_F32, TENSOR_F32, 20);
    struct fixture_tensor *t = fixture_find(f, "model.layers.0.self_attn.o_proj.weight");
    char *folder = folder_make();
    struct fl_error e;
    struct loaded l;
    (void)state;

    for (size_t i = 0; i < (size_t)128 * 96; i++)
        fixture_set(t, i, i == 5 ? -0x1p-148 : 0);
    fixture_set(t, (size_t)130 * 96 + 7, 3e38);
    fixture_write(f, folder, 1);
    check_ok(fixture_load(&l, folder, &f->model, 1, 0, 1, &e), &e);
    assert_true(isnormal(l.weights->layers[0].proj.scale[0]));
    assert_int_equal(l.weights->layers[0].proj.data[5] & 0x7f, 0);
    assert_int_equal(l.weights->layers[0].proj.data[130 * 96 + 7], 0x7e);
    assert_int_equal(l.stats.quantised, odd_model.layers * (4 + 3 * odd_model.experts));
    fixture_unload(&l);
    folder_remove(folder);
    fixture_destroy(f);
}

static void tied(void **state)
{
    struct model model = odd_model;
    struct fixture *f;
    (void)state;

    model.tied_embeddings = true;
    f = fixture_create(&model, TENSOR_F8_E4M3, TENSOR_F32, TENSOR_BF16, 30);
    round_trip(f, 1, 1);
    fixture_destroy(f);
}

// modules_to_not_convert: one projection in BF16 among FP8 ones.
static void mixed(void **state)
{
    struct fixture *f = fixture_create(&odd_model, TENSOR_F8_E4M3, TENSOR_BF16, TENSOR_BF16, 40);
    struct fixture_tensor *t;
    (void)state;

    fixture_reshape(f, "model.layers.0.self_attn.k_proj.weight", TENSOR_BF16, 2, 48, 192);
    fixture_remove(f, "model.layers.0.self_attn.k_proj.weight_scale_inv");
    t = fixture_find(f, "model.layers.0.self_attn.k_proj.weight");
    for (size_t i = 0; i < (size_t)48 * 192; i++)
        fixture_set(t, i, sin((double)i));
    round_trip(f, 2, 1);
    fixture_destroy(f);
}

// A scale may be zero where all of the block is zero.
static void zero_block(void **state)
{
    struct fixture *f = fixture_create(&odd_model, TENSOR_F8_E4M3, TENSOR_F32, TENSOR_BF16, 45);
    struct fixture_tensor *t = fixture_find(f, "model.layers.1.mlp.experts.3.gate_proj.weight");
    (void)state;

    for (size_t r = 128; r < 192; r++)
        memset(t->data + r * 192, r % 2 ? 0x80 : 0, 128);
    t = fixture_find(f, "model.layers.1.mlp.experts.3.gate_proj.weight_scale_inv");
    fixture_set(t, 2, 0);
    round_trip(f, 1, 2);
    fixture_destroy(f);
}

// A large tensor crosses the boundary between pieces.
static void several_pieces(void **state)
{
    struct model model = odd_model;
    struct fixture *f;
    (void)state;

    model.layers = 1;
    model.experts = model.top_k = 1;
    model.heads = 300;
    model.hidden = 1280; // q_proj: 14400 x 1280 codes, more than 16 MiB
    f = fixture_create(&model, TENSOR_F8_E4M3, TENSOR_BF16, TENSOR_F32, 50);
    round_trip(f, 1, 1);
    fixture_destroy(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_checkpoint),
        cmocka_unit_test(shapes),
        cmocka_unit_test(partial_blocks),
        cmocka_unit_test(quantised_while_loading),
        cmocka_unit_test(quantised_extremes),
        cmocka_unit_test(tied),
        cmocka_unit_test(mixed),
        cmocka_unit_test(zero_block),
        cmocka_unit_test(several_pieces),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
