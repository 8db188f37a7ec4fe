// SPDX-License-Identifier: Apache-2.0
// Loads a rank's share of a checkpoint: first every tensor is found and checked in order, then the
// data are read in pieces by several threads.
#include "weights/model_weights.h"

#include "base/log.h"
#include "base/memory.h"
#include "job/source.h"
#include "ops/ops.h"
#include "weights/checkpoint.h"
#include "weights/model_tensors.h"
#include "weights/piece.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PIECE_BYTES (16u << 20) // read at once, about
#define FLOATS      "BF16, F16 or F32"

struct loader {
    struct source source;
    struct checkpoint *checkpoint; // NULL: the weights are made
    const struct model *model;
    const struct layout *layout;
    struct model_weights *weights;
    struct ops *ops; // of the device the pieces go to, NULL: they are read in place
    struct piece *pieces;
    size_t count, capacity;
    int quantised;
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

// Finds the tensor into p and checks its shape; or starts to make it.
static void locate(struct loader *l, struct piece *p, int dims, const char *name)
{
    if (l->rc < 0)
        return;
    if (l->source.synth) {
        p->synth = synth_open(l->source.seed, name, p->rows, p->cols);
        return;
    }
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
    if (l->rc == 0 && p->tensor && !float_type(p->tensor->type))
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

// A vector or matrix that is kept as float (fp32) or bf16.
static void plain_add(struct loader *l, const struct model_tensor *t, enum piece_kind kind,
                      void *data)
{
    struct piece p = {.kind = kind, .rows = (size_t)t->rows, .cols = (size_t)t->cols, .data = data};

    locate(l, &p, t->dims, t->name);
    float_check(l, &p, FLOATS);
    pieces_add(l, &p, kind == PIECE_FLOAT ? sizeof(float) : sizeof(uint16_t));
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
    if (l->source.synth) {
        p.kind = PIECE_FP8;
    } else if (p.tensor->type == TENSOR_F8_E4M3 && l->model->fp8) {
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

// Where a tensor of the checkpoint goes.
static int tensor_add(void *context, const struct model_tensor *t)
{
    struct loader *l = context;
    const struct layer_weights *w = &l->weights->layers[t->layer];
    int local = t->expert - l->layout->expert_first;

    switch (t->use) {
    case USE_EMBED:
        plain_add(l, t, PIECE_BF16, l->weights->embed);
        break;
    case USE_HEAD:
        plain_add(l, t, PIECE_BF16, l->weights->head);
        break;
    case USE_FINAL_NORM:
        plain_add(l, t, PIECE_FLOAT, l->weights->final_norm);
        break;
    case USE_INPUT_NORM:
        plain_add(l, t, PIECE_FLOAT, w->input_norm);
        break;
    case USE_POST_NORM:
        plain_add(l, t, PIECE_FLOAT, w->post_norm);
        break;
    case USE_Q_NORM:
        plain_add(l, t, PIECE_FLOAT, w->q_norm);
        break;
    case USE_K_NORM:
        plain_add(l, t, PIECE_FLOAT, w->k_norm);
        break;
    case USE_ROUTER:
        plain_add(l, t, PIECE_FLOAT, w->router);
        break;
    case USE_Q:
    case USE_K:
    case USE_V:
        projection_add(l, &w->qkv, 0, (int)(t->use - USE_Q), t->name);
        break;
    case USE_O:
        projection_add(l, &w->proj, 0, 0, t->name);
        break;
    case USE_GATE:
    case USE_UP:
        projection_add(l, &w->fc1, local, (int)(t->use - USE_GATE), t->name);
        break;
    case USE_DOWN:
        projection_add(l, &w->fc2, local, 0, t->name);
        break;
    }
    return l->rc;
}

static size_t element_bytes(const struct piece *p)
{
    return p->kind == PIECE_FLOAT ? sizeof(float) : p->kind == PIECE_BF16 ? sizeof(uint16_t) : 1;
}

// Data and scales of the largest piece.
static size_t staging_bytes(const struct loader *l)
{
    size_t most = 0;

    if (l->source.synth && l->ops->make_codes)
        return 0;
    for (const struct piece *p = l->pieces; p < l->pieces + l->count; p++) {
        size_t bytes = p->rows * p->cols * element_bytes(p);
        if (p->scales)
            bytes += sizeof(float) * (1 + blocks(p->rows) * blocks(p->cols));
        most = bytes > most ? bytes : most;
    }
    return most;
}

static int piece_make(struct ops *ops, const struct piece *p, uint64_t *bytes, struct fl_error *e)
{
    *bytes += p->rows * p->cols * element_bytes(p);
    if (p->kind == PIECE_FP8)
        return ops->make_codes(ops, &p->synth, p->first_row, p->rows, p->data, p->scales, e);
    return ops->make_values(ops, &p->synth, p->first_row, p->rows, p->kind == PIECE_FLOAT, p->data,
                            e);
}

// Makes a piece where it belongs, or reads it and brings it there by way of staging.
static int piece_load(struct ops *ops, const struct piece *whole, void *staging, uint64_t *bytes,
                      struct fl_error *e)
{
    size_t size = whole->rows * whole->cols * element_bytes(whole);
    size_t grid = blocks(whole->rows) * blocks(whole->cols);
    struct piece p = *whole;
    int rc;

    if (!ops)
        return piece_read(whole, bytes, e);
    if (!whole->tensor && ops->make_codes)
        return piece_make(ops, whole, bytes, e);
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

int model_weights_load(struct model_weights *weights, const char *source, const struct model *model,
                       const struct layout *layout, int threads, struct ops *ops,
                       struct load_stats *stats, struct fl_error *e)
{
    struct loader l = {.model = model,
                       .layout = layout,
                       .weights = weights,
                       .ops = ops && !ops->unified ? ops : NULL,
                       .e = e};
    struct load_stats s = {0};
    double start = seconds_now();

    l.rc = source_parse(source, &l.source, e);
    if (l.rc == 0 && !l.source.synth)
        l.rc = checkpoint_open(l.source.folder, &l.checkpoint, e);
    if (l.rc == 0)
        l.rc =
            model_tensors_walk(model, layout->expert_first, layout->experts_local, tensor_add, &l);
    if (l.rc == 0 && l.quantised && layout->rank == 0)
        log_info("%s: projections that are not FP8 are quantised while loading (e4m3, one scale "
                 "for each 128x128 block)",
                 l.source.folder);
    if (l.rc == 0)
        pieces_read(&l, threads, &s.bytes);
    s.seconds = seconds_now() - start;
    s.quantised = l.quantised;
    s.made = l.source.synth;
    if (stats)
        *stats = s;
    free(l.pieces);
    checkpoint_close(l.checkpoint);
    source_clear(&l.source);
    return l.rc;
}
