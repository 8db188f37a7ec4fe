// SPDX-License-Identifier: Apache-2.0
// Random checkpoints of any small Qwen3-MoE shape.
#include "unit/fixture.h"

#include "base/file.h"
#include "base/floats.h"
#include "base/memory.h"
#include "unit/check.h"
#include "weights/safetensors_writer.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

const struct model odd_model = {
    .layers = 2,
    .hidden = 192,
    .heads = 2,
    .kv_heads = 1,
    .head_dim = 48,
    .experts = 4,
    .top_k = 2,
    .expert_width = 192,
    .vocab = 97,
    .max_positions = 64,
    .rms_eps = 1e-6,
    .rope_theta = 1e4,
};

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

double fixture_value(const struct fixture_tensor *t, size_t i)
{
    uint16_t h;
    float x;

    switch (t->tensor.type) {
    case TENSOR_F8_E4M3:
        return e4m3_values[t->data[i]];
    case TENSOR_BF16:
        memcpy(&h, t->data + 2 * i, 2);
        return bf16_to_float(h);
    case TENSOR_F16:
        memcpy(&h, t->data + 2 * i, 2);
        return half_to_float(h);
    default:
        assert_int_equal(t->tensor.type, TENSOR_F32);
        memcpy(&x, t->data + 4 * i, 4);
        return x;
    }
}

void fixture_set(struct fixture_tensor *t, size_t i, double value)
{
    float x = (float)value;
    uint16_t h;

    switch (t->tensor.type) {
    case TENSOR_F8_E4M3:
        t->data[i] = e4m3_from_float(x);
        return;
    case TENSOR_BF16:
        h = bf16_from_float(x);
        memcpy(t->data + 2 * i, &h, 2);
        return;
    case TENSOR_F16:
        h = half_from_float(x);
        memcpy(t->data + 2 * i, &h, 2);
        return;
    default:
        assert_int_equal(t->tensor.type, TENSOR_F32);
        memcpy(t->data + 4 * i, &x, 4);
    }
}

static void shape_set(struct fixture_tensor *t, enum tensor_type type, int dims, int64_t rows,
                      int64_t cols)
{
    t->tensor.type = type;
    t->tensor.dims = dims;
    t->tensor.shape[0] = dims == 1 ? cols : rows;
    t->tensor.shape[1] = dims == 1 ? 0 : cols;
    assert_int_equal(tensor_bytes(&t->tensor, &t->tensor.bytes), 0);
    free(t->data);
    t->data = memory_zeroed(t->tensor.bytes, 1);
}

// Values uniform in low .. high.
static void add(struct fixture *f, uint32_t *seed, enum tensor_type type, int dims, int rows,
                int cols, double low, double high, char *name)
{
    struct fixture_tensor *t;

    f->tensors = memory_resize(f->tensors, f->count + 1, sizeof *f->tensors);
    t = &f->tensors[f->count++];
    *t = (struct fixture_tensor){.tensor.name = name};
    shape_set(t, type, dims, rows, cols);
    for (size_t i = 0; i < (size_t)rows * (size_t)cols; i++)
        fixture_set(t, i, low + (high - low) * next(seed) / 0x1p24);
}

static int blocks(int n)
{
    return (n + FP8_BLOCK - 1) / FP8_BLOCK;
}

static void projection(struct fixture *f, uint32_t *seed, enum tensor_type type,
                       enum tensor_type scale_type, int rows, int cols, char *name)
{
    double high = type == TENSOR_F8_E4M3 ? 448 : 0.05;

    add(f, seed, type, 2, rows, cols, -high, high, memory_format("%s.weight", name));
    if (type == TENSOR_F8_E4M3)
        add(f, seed, scale_type, 2, blocks(rows), blocks(cols), 1e-4, 2e-4,
            memory_format("%s.weight_scale_inv", name));
    free(name);
}

static void layer(struct fixture *f, uint32_t *seed, int i, enum tensor_type weights,
                  enum tensor_type scales, enum tensor_type others)
{
    const struct model *m = &f->model;
    int q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;

#define NAME(rest) memory_format("model.layers.%d." rest, i)
    add(f, seed, others, 1, 1, m->hidden, 0.5, 1.5, NAME("input_layernorm.weight"));
    add(f, seed, others, 1, 1, m->hidden, 0.5, 1.5, NAME("post_attention_layernorm.weight"));
    add(f, seed, others, 1, 1, m->head_dim, 0.5, 1.5, NAME("self_attn.q_norm.weight"));
    add(f, seed, others, 1, 1, m->head_dim, 0.5, 1.5, NAME("self_attn.k_norm.weight"));
    add(f, seed, others, 2, m->experts, m->hidden, -0.05, 0.05, NAME("mlp.gate.weight"));
    projection(f, seed, weights, scales, q, m->hidden, NAME("self_attn.q_proj"));
    projection(f, seed, weights, scales, kv, m->hidden, NAME("self_attn.k_proj"));
    projection(f, seed, weights, scales, kv, m->hidden, NAME("self_attn.v_proj"));
    projection(f, seed, weights, scales, m->hidden, q, NAME("self_attn.o_proj"));
#undef NAME
#define NAME(rest) memory_format("model.layers.%d.mlp.experts.%d." rest, i, e)
    for (int e = 0; e < m->experts; e++) {
        projection(f, seed, weights, scales, m->expert_width, m->hidden, NAME("gate_proj"));
        projection(f, seed, weights, scales, m->expert_width, m->hidden, NAME("up_proj"));
        projection(f, seed, weights, scales, m->hidden, m->expert_width, NAME("down_proj"));
    }
#undef NAME
}

struct fixture *fixture_create(const struct model *model, enum tensor_type weights,
                               enum tensor_type scales, enum tensor_type others, uint32_t seed)
{
    struct fixture *f = memory_zeroed(1, sizeof *f);

    f->model = *model;
    f->model.fp8 = weights == TENSOR_F8_E4M3;
    add(f, &seed, others, 2, model->vocab, model->hidden, -1, 1,
        memory_string("model.embed_tokens.weight"));
    for (int i = 0; i < model->layers; i++)
        layer(f, &seed, i, weights, scales, others);
    add(f, &seed, others, 1, 1, model->hidden, 0.5, 1.5, memory_string("model.norm.weight"));
    if (!model->tied_embeddings)
        add(f, &seed, others, 2, model->vocab, model->hidden, -1, 1,
            memory_string("lm_head.weight"));
    return f;
}

void fixture_destroy(struct fixture *f)
{
    if (!f)
        return;
    for (size_t i = 0; i < f->count; i++) {
        free((char *)f->tensors[i].tensor.name);
        free(f->tensors[i].data);
    }
    free(f->tensors);
    free(f);
}

struct fixture_tensor *fixture_find(const struct fixture *f, const char *name)
{
    for (size_t i = 0; i < f->count; i++)
        if (!strcmp(f->tensors[i].tensor.name, name))
            return &f->tensors[i];
    fail_msg("the fixture has no %s", name);
    return NULL;
}

void fixture_remove(struct fixture *f, const char *name)
{
    struct fixture_tensor *t = fixture_find(f, name);

    free((char *)t->tensor.name);
    free(t->data);
    f->count--;
    memmove(t, t + 1, (size_t)(f->tensors + f->count - t) * sizeof *t);
}

void fixture_reshape(struct fixture *f, const char *name, enum tensor_type type, int dims,
                     int64_t rows, int64_t cols)
{
    shape_set(fixture_find(f, name), type, dims, rows, cols);
}

static void file_make(const struct fixture_tensor *tensors, size_t count, const char *path)
{
    struct tensor *list = memory_zeroed(count, sizeof *list);
    struct safetensors_writer *w;
    struct fl_error e;

    for (size_t i = 0; i < count; i++)
        list[i] = tensors[i].tensor;
    check_ok(safetensors_writer_open(path, list, count, &w, &e), &e);
    for (size_t i = 0; i < count; i++)
        check_ok(safetensors_writer_append(w, tensors[i].data, tensors[i].tensor.bytes, &e), &e);
    check_ok(safetensors_writer_commit(w, &e), &e);
    free(list);
}

void fixture_write(const struct fixture *f, const char *folder, size_t shards)
{
    char *path = memory_format("%s/model.safetensors", folder), *index;
    FILE *out;

    if (shards == 1) {
        file_make(f->tensors, f->count, path);
        free(path);
        return;
    }
    free(path);
    index = memory_format("%s/model.safetensors.index.json", folder);
    out = fopen(index, "w");
    free(index);
    assert_non_null(out);
    fprintf(out, "{\"metadata\": {}, \"weight_map\": {\n");
    for (size_t s = 0; s < shards; s++) {
        size_t first = f->count * s / shards, end = f->count * (s + 1) / shards;
        char *name = memory_format("model-%05zu-of-%05zu.safetensors", s + 1, shards);
        path = memory_format("%s/%s", folder, name);
        file_make(f->tensors + first, end - first, path);
        for (size_t i = first; i < end; i++)
            fprintf(out, "\"%s\": \"%s\"%s\n", f->tensors[i].tensor.name, name,
                    i + 1 < f->count ? "," : "");
        free(path);
        free(name);
    }
    fprintf(out, "}}\n");
    assert_int_equal(fclose(out), 0);
}

char *folder_make(void)
{
    char *folder = memory_string("/tmp/fl-test-XXXXXX");

    assert_non_null(mkdtemp(folder));
    return folder;
}

void folder_remove(char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;

    assert_non_null(dir);
    while ((entry = readdir(dir))) {
        char *path = memory_format("%s/%s", folder, entry->d_name);
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            remove(path);
        free(path);
    }
    closedir(dir);
    assert_int_equal(rmdir(folder), 0);
    free(folder);
}

void folder_copy(const char *from, const char *to)
{
    DIR *dir = opendir(from);
    struct dirent *entry;

    assert_non_null(dir);
    while ((entry = readdir(dir))) {
        char *source = memory_format("%s/%s", from, entry->d_name), *data;
        char *target = memory_format("%s/%s", to, entry->d_name);
        struct fl_error e;
        size_t bytes;
        if (entry->d_name[0] != '.') {
            check_ok(file_read(source, 1u << 30, &data, &bytes, &e), &e);
            check_ok(file_write(target, data, bytes, &e), &e);
            free(data);
        }
        free(source);
        free(target);
    }
    closedir(dir);
}

struct layout fixture_layout(const struct model *model, int ep, int rank)
{
    return (struct layout){
        .world = ep,
        .rank = rank,
        .tp = 1,
        .dp = ep,
        .dp_rank = rank,
        .ep = ep,
        .ep_rank = rank,
        .replicas = 1,
        .experts_local = model->experts / ep,
        .expert_first = rank * (model->experts / ep),
        .accumulation = 1,
    };
}

int fixture_load(struct loaded *l, const char *folder, const struct model *model, int ep, int rank,
                 int threads, struct fl_error *e)
{
    *l = (struct loaded){.model = *model, .layout = fixture_layout(model, ep, rank)};
    check_ok(arena_create_host(0, &l->arena, e), e);
    check_ok(model_weights_create(model, &l->layout, l->arena, &l->weights, e), e);
    return model_weights_load(l->weights, folder, model, &l->layout, threads, NULL, &l->stats, e);
}

void fixture_unload(struct loaded *l)
{
    model_weights_destroy(l->weights);
    arena_destroy(l->arena);
}
