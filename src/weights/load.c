// SPDX-License-Identifier: Apache-2.0
// Loads a rank's share of a checkpoint: first every tensor is found and checked in order, then the
// data are read in pieces by several threads.
#include "weights/model_weights.h"

#include "base/log.h"
#include "base/memory.h"
#include "ops/ops.h"
#include "weights/checkpoint.h"
#include "weights/piece.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PIECE_BYTES (16u << 20) // read at once, about
#define FLOATS      "BF16, F16 or F32"

struct loader {
    struct checkpoint *checkpoint;
    const struct model *model;
    struct ops *ops; // of the device the pieces go to, NULL: they are read in place
    struct piece *pieces;
    size_t count, capacity;
    int quantised;
    char name[128]; // of the tensor at hand
    struct fl_error *e;
    int rc; // of the first error; nothing is done after it
};

static size_t blocks(size_t n)
{
    return (n + FP8_BLOCK - 1) / FP8_BLOCK;
}

static int shape_check(const struct safetensors *file, const struct tensor *t, int dims,
                       size_t rows, size_t cols, struct fl_error *e)
{
    struct tensor want = {.dims = dims};
    char got_text[TENSOR_SHAPE_TEXT], want_text[TENSOR_SHAPE_TEXT];

    want.shape[0] = (int64_t)(dims == 1 ? cols : rows);
    want.shape[1] = (int64_t)(dims == 1 ? 0 : cols);
    if (t->dims == dims && !memcmp(t->shape, want.shape, sizeof t->shape))
        return 0;
    return error_set(e, -EINVAL,
                     "%s: tensor '%s': shape %s, config.json asks for %s: do they belong together?",
                     safetensors_path(file), t->name, tensor_shape_text(t, got_text),
                     tensor_shape_text(&want, want_text));
}

// Finds the tensor into p and checks its shape; dims 1: [cols], 2: [rows, cols].
static void locate(struct loader *l, struct piece *p, int dims, const char *name)
{
    if (l->rc == 0)
        l->rc = checkpoint_find(l->checkpoint, name, &p->file, &p->tensor, l->e);
    if (l->rc == 0)
        l->rc = shape_check(p->file, p->tensor, dims, p->rows, p->cols, l->e);
}

static bool float_type(enum tensor_type type)
{
    return type == TENSOR_BF16 || type == TENSOR_F16 || type == TENSOR_F32;
}

static void float_check(struct loader *l, const struct piece *p, const char *expected)
{
    if (l->rc == 0 && !float_type(p->tensor->type))
        l->rc = error_set(l->e, -EINVAL, "%s: tensor '%s': dtype %s, expected %s",
                          safetensors_path(p->file), p->tensor->name,
                          tensor_type_name(p->tensor->type), expected);
}

// Cuts a whole tensor into pieces at multiples of 128 rows.
static void pieces_add(struct loader *l, const struct piece *whole, size_t element_bytes)
{
    size_t step = PIECE_BYTES / FP8_BLOCK / whole->cols / element_bytes * FP8_BLOCK;

    if (l->rc < 0)
        return;
    if (step == 0)
        step = FP8_BLOCK;
    for (size_t row = 0; row < whole->rows; row += step) {
        struct piece p = *whole;
        p.first_row = row;
        p.rows = whole->rows - row < step ? whole->rows - row : step;
        p.data = (char *)whole->data + row * whole->cols * element_bytes;
        if (p.scales)
            p.scales = whole->scales + row / FP8_BLOCK * blocks(whole->cols);
        if (l->count == l->capacity) {
            l->capacity = l->capacity ? 2 * l->capacity : 256;
            l->pieces = memory_resize(l->pieces, l->capacity, sizeof *l->pieces);
        }
        l->pieces[l->count++] = p;
    }
}

// A vector (dims 1) or matrix that is kept as float.
static void floats_add(struct loader *l, float *data, int dims, int rows, int cols,
                       const char *name)
{
    struct piece p = {
        .kind = PIECE_FLOAT, .rows = (size_t)rows, .cols = (size_t)cols, .data = data};

    locate(l, &p, dims, name);
    float_check(l, &p, FLOATS);
    pieces_add(l, &p, sizeof *data);
}

static void embedding_add(struct loader *l, uint16_t *data, const char *name)
{
    struct piece p = {.kind = PIECE_BF16,
                      .rows = (size_t)l->model->vocab,
                      .cols = (size_t)l->model->hidden,
                      .data = data};

    locate(l, &p, 2, name);
    float_check(l, &p, FLOATS);
    pieces_add(l, &p, sizeof *data);
}

static void scale_locate(struct loader *l, struct piece *p, const char *name)
{
    char *scale_name = memory_format("%s_scale_inv", name);
    struct piece scale = {.rows = blocks(p->rows), .cols = blocks(p->cols)};

    locate(l, &scale, 2, scale_name);
    float_check(l, &scale, FLOATS);
    p->scale_file = scale.file;
    p->scale = scale.tensor;
    free(scale_name);
}

// Part `part` of matrix `index` of m.
static void projection_add(struct loader *l, const struct fp8_matrix *m, int index, int part,
                           const char *name)
{
    size_t row = (size_t)index * (size_t)m->rows, scale_row = (size_t)index * (size_t)m->scale_rows;
    struct piece p = {.rows = (size_t)m->part_rows[part], .cols = (size_t)m->cols};

    for (int i = 0; i < part; i++) {
        row += (size_t)m->part_rows[i];
        scale_row += blocks((size_t)m->part_rows[i]);
    }
    p.data = m->data + row * p.cols;
    p.scales = m->scale + scale_row * (size_t)m->scale_cols;
    locate(l, &p, 2, name);
    if (l->rc < 0)
        return;
    if (p.tensor->type == TENSOR_F8_E4M3 && l->model->fp8) {
        p.kind = PIECE_FP8;
        scale_locate(l, &p, name);
    } else {
        p.kind = PIECE_QUANTISE;
        l->quantised++;
        float_check(l, &p,
                    l->model->fp8 ? "F8_E4M3, " FLOATS
                                  : FLOATS " (config.json has no quantization_config)");
    }
    pieces_add(l, &p, sizeof *m->data);
}

// "model.layers.L." and the rest, as printf would.
__attribute__((format(printf, 3, 4))) static const char *layer_name(struct loader *l, int layer,
                                                                    const char *format, ...)
{
    int n = snprintf(l->name, sizeof l->name, "model.layers.%d.", layer);
    va_list args;

    va_start(args, format);
    vsnprintf(l->name + n, sizeof l->name - (size_t)n, format, args);
    va_end(args);
    return l->name;
}

static void attention_add(struct loader *l, const struct layer_weights *w, int layer)
{
    static const char *const parts[] = {"q_proj", "k_proj", "v_proj"};
    const struct model *m = l->model;

    floats_add(l, w->input_norm, 1, 1, m->hidden, layer_name(l, layer, "input_layernorm.weight"));
    for (int i = 0; i < 3; i++)
        projection_add(l, &w->qkv, 0, i, layer_name(l, layer, "self_attn.%s.weight", parts[i]));
    floats_add(l, w->q_norm, 1, 1, m->head_dim, layer_name(l, layer, "self_attn.q_norm.weight"));
    floats_add(l, w->k_norm, 1, 1, m->head_dim, layer_name(l, layer, "self_attn.k_norm.weight"));
    projection_add(l, &w->proj, 0, 0, layer_name(l, layer, "self_attn.o_proj.weight"));
}

static void experts_add(struct loader *l, const struct layer_weights *w, int layer,
                        const struct layout *layout)
{
    static const char *const parts[] = {"gate_proj", "up_proj"};
    const struct model *m = l->model;

    floats_add(l, w->post_norm, 1, 1, m->hidden,
               layer_name(l, layer, "post_attention_layernorm.weight"));
    floats_add(l, w->router, 2, m->experts, m->hidden, layer_name(l, layer, "mlp.gate.weight"));
    for (int i = 0; i < layout->experts_local; i++) {
        int expert = layout->expert_first + i;
        for (int part = 0; part < 2; part++)
            projection_add(l, &w->fc1, i, part,
                           layer_name(l, layer, "mlp.experts.%d.%s.weight", expert, parts[part]));
        projection_add(l, &w->fc2, i, 0,
                       layer_name(l, layer, "mlp.experts.%d.down_proj.weight", expert));
    }
}

static size_t element_bytes(const struct piece *p)
{
    return p->kind == PIECE_FLOAT ? sizeof(float) : p->kind == PIECE_BF16 ? sizeof(uint16_t) : 1;
}

// Data and scales of the largest piece.
static size_t staging_bytes(const struct loader *l)
{
    size_t most = 0;

    for (const struct piece *p = l->pieces; p < l->pieces + l->count; p++) {
        size_t bytes = p->rows * p->cols * element_bytes(p);
        if (p->scales)
            bytes += sizeof(float) * (1 + blocks(p->rows) * blocks(p->cols));
        most = bytes > most ? bytes : most;
    }
    return most;
}

// Reads a piece and brings it to the device, by way of staging.
static int piece_load(struct ops *ops, const struct piece *whole, void *staging, uint64_t *bytes,
                      struct fl_error *e)
{
    size_t size = whole->rows * whole->cols * element_bytes(whole);
    size_t grid = blocks(whole->rows) * blocks(whole->cols);
    struct piece p = *whole;
    int rc;

    if (!ops)
        return piece_read(whole, bytes, e);
    p.data = staging;
    if (p.scales) // behind the codes, aligned
        p.scales =
            (float *)((char *)staging + (size + sizeof(float) - 1) / sizeof(float) * sizeof(float));
    rc = piece_read(&p, bytes, e);
    if (rc == 0)
        rc = ops->upload(ops, whole->data, p.data, size, e);
    if (rc == 0 && p.scales)
        rc = ops->upload(ops, whole->scales, p.scales, grid * sizeof(float), e);
    return rc;
}

// Pieces before the first failing one are always read, so that the same error comes out whatever
// the threads do.
static int pieces_read(struct loader *l, int threads, uint64_t *bytes)
{
    size_t failed = SIZE_MAX, staging_size = l->ops ? staging_bytes(l) : 0;
    uint64_t total = 0;

    threads = threads > 0 ? threads : 1;
#pragma omp parallel num_threads(threads) reduction(+ : total)
    {
        void *staging = NULL;
        struct fl_error no_staging = {0};
        int ready = l->ops ? l->ops->staging(l->ops, staging_size, &staging, &no_staging) : 0;
#pragma omp for schedule(dynamic, 1)
        for (size_t i = 0; i < l->count; i++) {
            struct fl_error e = no_staging;
            size_t first;
            int rc;

#pragma omp atomic read
            first = failed;
            if (i > first)
                continue;
            rc = ready < 0 ? ready : piece_load(l->ops, &l->pieces[i], staging, &total, &e);
            if (rc == 0)
                continue;
#pragma omp critical
            if (i < failed) {
#pragma omp atomic write
                failed = i;
                l->rc = error_set(l->e, rc, "%s", e.text);
            }
        }
        if (staging)
            l->ops->staging_free(l->ops, staging);
    }
    *bytes = total;
    return l->rc;
}

static double seconds_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int model_weights_load(struct model_weights *weights, const char *folder, const struct model *model,
                       const struct layout *layout, int threads, struct ops *ops,
                       struct load_stats *stats, struct fl_error *e)
{
    struct loader l = {.model = model, .ops = ops && !ops->unified ? ops : NULL, .e = e};
    struct load_stats s = {0};
    double start = seconds_now();

    l.rc = checkpoint_open(folder, &l.checkpoint, e);
    embedding_add(&l, weights->embed, "model.embed_tokens.weight");
    for (int i = 0; i < model->layers && l.rc == 0; i++) {
        attention_add(&l, &weights->layers[i], i);
        experts_add(&l, &weights->layers[i], i, layout);
    }
    floats_add(&l, weights->final_norm, 1, 1, model->hidden, "model.norm.weight");
    if (!model->tied_embeddings)
        embedding_add(&l, weights->head, "lm_head.weight");
    if (l.rc == 0 && l.quantised && layout->rank == 0)
        log_info("%s: projections that are not FP8 are quantised while loading (e4m3, one scale "
                 "for each 128x128 block)",
                 folder);
    if (l.rc == 0)
        pieces_read(&l, threads, &s.bytes);
    s.seconds = seconds_now() - start;
    s.quantised = l.quantised;
    if (stats)
        *stats = s;
    free(l.pieces);
    checkpoint_close(l.checkpoint);
    return l.rc;
}
