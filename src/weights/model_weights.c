// SPDX-License-Identifier: Apache-2.0
// Shapes and memory of a rank's share of the base weights.
#include "weights/model_weights.h"

#include "base/memory.h"

#include <stdlib.h>

static int blocks(int n)
{
    return (n + FP8_BLOCK - 1) / FP8_BLOCK;
}

// One allocation after another; the first failure stays.
struct allocation {
    struct arena *arena;
    struct fl_error *e;
    int rc;
};

static void *allocate(struct allocation *a, size_t count, size_t size)
{
    void *p = NULL;

    if (a->rc == 0)
        a->rc = arena_alloc(a->arena, MEMORY_WEIGHTS, count * size, &p, a->e);
    return p;
}

static void matrix_make(struct allocation *a, struct fp8_matrix *m, int count, int cols, int parts,
                        const int part_rows[MATRIX_PARTS])
{
    size_t values, scales;

    m->count = count;
    m->cols = cols;
    m->parts = parts;
    for (int i = 0; i < parts; i++) {
        m->part_rows[i] = part_rows[i];
        m->rows += part_rows[i];
        m->scale_rows += blocks(part_rows[i]);
    }
    m->scale_cols = blocks(cols);
    values = (size_t)count * (size_t)m->rows * (size_t)cols;
    scales = (size_t)count * (size_t)m->scale_rows * (size_t)m->scale_cols;
    m->data = allocate(a, values, sizeof *m->data);
    m->scale = allocate(a, scales, sizeof *m->scale);
}

static void layer_make(struct allocation *a, struct layer_weights *w, const struct model *m,
                       int experts_local)
{
    const int q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    const size_t hidden = (size_t)m->hidden, head_dim = (size_t)m->head_dim;

    w->input_norm = allocate(a, hidden, sizeof(float));
    w->post_norm = allocate(a, hidden, sizeof(float));
    w->q_norm = allocate(a, head_dim, sizeof(float));
    w->k_norm = allocate(a, head_dim, sizeof(float));
    matrix_make(a, &w->qkv, 1, m->hidden, 3, (const int[MATRIX_PARTS]){q, kv, kv});
    matrix_make(a, &w->proj, 1, q, 1, (const int[MATRIX_PARTS]){m->hidden});
    w->router = allocate(a, (size_t)m->experts * hidden, sizeof(float));
    matrix_make(a, &w->fc1, experts_local, m->hidden, 2,
                (const int[MATRIX_PARTS]){m->expert_width, m->expert_width});
    matrix_make(a, &w->fc2, experts_local, m->expert_width, 1,
                (const int[MATRIX_PARTS]){m->hidden});
}

int model_weights_create(const struct model *model, const struct layout *layout,
                         struct arena *arena, struct model_weights **out, struct fl_error *e)
{
    struct model_weights *w = memory_zeroed(1, sizeof *w);
    struct allocation a = {arena, e, 0};
    const size_t table = (size_t)model->vocab * (size_t)model->hidden;

    *out = NULL;
    w->layers = memory_zeroed((size_t)model->layers, sizeof *w->layers);
    w->embed = allocate(&a, table, sizeof *w->embed);
    for (int i = 0; i < model->layers; i++)
        layer_make(&a, &w->layers[i], model, layout->experts_local);
    w->final_norm = allocate(&a, (size_t)model->hidden, sizeof *w->final_norm);
    w->head = model->tied_embeddings ? w->embed : allocate(&a, table, sizeof *w->head);
    if (a.rc < 0)
        model_weights_destroy(w);
    else
        *out = w;
    return a.rc;
}

void model_weights_destroy(struct model_weights *weights)
{
    if (!weights)
        return;
    free(weights->layers);
    free(weights);
}
