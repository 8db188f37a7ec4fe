// SPDX-License-Identifier: Apache-2.0
// Trained adapters as PEFT reads them.
#include "weights/adapters_out.h"

#include "base/file.h"
#include "base/memory.h"
#include "comm/agree.h"
#include "weights/adapter_tensors.h"
#include "weights/safetensors_writer.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Both files while they are written; rank 0 only.
struct output {
    char *weights_path;
    bool replaces; // earlier weights
    struct safetensors_writer *weights;
    struct file_writer *config;
};

static json_t *number(double x)
{
    return x == rint(x) && fabs(x) < 1e9 ? json_integer((json_int_t)x) : json_real(x);
}

static char *config_make(const struct spec *spec)
{
    const char *names[ADAPTER_PROJECTIONS];
    int count = adapter_projections(spec->lora_targets, names);
    json_t *modules = json_array();
    json_t *root;
    char *text;

    for (int i = 0; i < count; i++)
        json_array_append_new(modules, json_string(names[i]));
    root = json_pack("{s:s, s:s, s:s, s:i, s:o, s:f, s:s, s:o, s:b, s:b, s:b, s:b, s:b, s:n}",
                     "peft_type", "LORA", "task_type", "CAUSAL_LM", "base_model_name_or_path",
                     spec->model, "r", spec->lora_rank, "lora_alpha", number(spec->lora_alpha),
                     "lora_dropout", spec->lora_dropout, "bias", "none", "target_modules", modules,
                     "fan_in_fan_out", 0, "inference_mode", 1, "init_lora_weights", 1, "use_rslora",
                     0, "use_dora", 0, "modules_to_save");
    text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_decref(root);
    return text;
}

static int config_open(const char *folder, const struct spec *spec, struct file_writer **config,
                       struct fl_error *e)
{
    char *path = memory_format("%s/" ADAPTER_CONFIG_NAME, folder), *text = config_make(spec);
    int rc;

    if (!text)
        rc = error_set(e, -EINVAL, "%s: the name of the model, '%s', is not UTF-8", path,
                       spec->model);
    else if ((rc = file_writer_open(path, config, e)) == 0 &&
             (rc = file_writer_append(*config, text, strlen(text), e)) == 0)
        rc = file_writer_append(*config, "\n", 1, e);
    free(text);
    free(path);
    return rc;
}

static int output_open(struct output *o, const char *folder, const struct spec *spec,
                       const struct adapter_tensors *tensors, struct fl_error *e)
{
    struct tensor *list = memory_zeroed(tensors->count, sizeof *list);
    int rc;

    for (size_t i = 0; i < tensors->count; i++) {
        const struct adapter_tensor *t = &tensors->list[i];
        list[i] = (struct tensor){
            .name = t->name, .type = TENSOR_F32, .dims = 2, .shape = {t->rows, t->cols}};
    }
    o->weights_path = memory_format("%s/" ADAPTER_WEIGHTS_NAME, folder);
    o->replaces = access(o->weights_path, F_OK) == 0;
    rc = safetensors_writer_open(o->weights_path, list, tensors->count, &o->weights, e);
    if (rc == 0)
        rc = config_open(folder, spec, &o->config, e);
    free(list);
    return rc;
}

// A folder is an adapter for PEFT once the configuration is there, which therefore comes last.
static int output_commit(struct output *o, struct fl_error *e)
{
    struct safetensors_writer *weights = o->weights;
    struct file_writer *config = o->config;
    int rc;

    o->weights = NULL;
    rc = safetensors_writer_commit(weights, e);
    if (rc < 0)
        return rc;
    o->config = NULL;
    rc = file_writer_commit(config, e);
    if (rc < 0 && !o->replaces)
        unlink(o->weights_path);
    return rc;
}

static void output_close(struct output *o)
{
    safetensors_writer_abort(o->weights);
    file_writer_abort(o->config);
    free(o->weights_path);
}

static const struct adapter *find(const struct adapters *adapters, int layer,
                                  enum lora_target target, int expert)
{
    return adapters_find((struct adapters *)adapters, layer, target, expert);
}

// Floats of one expert's adapters in one layer, in the order fc1 A, fc1 B, fc2 A, fc2 B.
struct share {
    size_t a[2], b[2], total; // offsets of fc1's and fc2's
};

static struct share share_make(const struct spec *spec, const struct model *m)
{
    const size_t rank = (size_t)spec->lora_rank, hidden = (size_t)m->hidden;
    const size_t width = (size_t)m->expert_width;
    struct share s = {0};

    s.b[0] = spec->lora_targets & LORA_FC1 ? rank * hidden : 0;
    s.a[1] = spec->lora_targets & LORA_FC1 ? s.b[0] + rank * 2 * width : 0;
    s.b[1] = spec->lora_targets & LORA_FC2 ? s.a[1] + rank * width : s.a[1];
    s.total = spec->lora_targets & LORA_FC2 ? s.b[1] + rank * hidden : s.b[1];
    return s;
}

static void copy(float *to, const real *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = (float)from[i];
}

// This rank's experts of a layer into buffer [experts_local, share.total].
static void share_pack(const struct adapters *adapters, const struct layout *layout, int layer,
                       const struct share *share, float *buffer)
{
    static const enum lora_target targets[] = {LORA_FC1, LORA_FC2};

    for (int i = 0; i < layout->experts_local; i++)
        for (int t = 0; t < 2; t++) {
            const struct adapter *a = find(adapters, layer, targets[t], layout->expert_first + i);
            float *to = buffer + (size_t)i * share->total;
            if (!a)
                continue;
            copy(to + share->a[t], adapters->params + a->a, (size_t)a->rank * (size_t)a->in);
            copy(to + share->b[t], adapters->params + a->b, (size_t)a->rank * (size_t)a->out);
        }
}

// buffer of rank sender to buffer of rank 0.
static int share_send(struct comm *world, int sender, float *buffer, size_t bytes,
                      struct fl_error *e)
{
    size_t size = (size_t)comm_size(world);
    size_t *sizes = memory_zeroed(2 * size, sizeof *sizes);
    int rc;

    if (comm_rank(world) == sender)
        sizes[0] = bytes;
    if (comm_rank(world) == 0)
        sizes[size + (size_t)sender] = bytes;
    rc = comm_all_to_all_v(world, buffer, sizes, buffer, sizes + size, e);
    free(sizes);
    return rc;
}

struct writing {
    const struct model *model;
    const struct layout *layout;
    const struct adapters *adapters;
    struct comm *world;
    struct adapter_tensors *tensors;
    size_t next; // tensor to write
    struct share share;
    float *buffer, *scratch; // one rank's experts of a layer; one attention tensor
    struct output output;
};

static int attention_append(struct writing *w, int layer, struct fl_error *e)
{
    int rc = 0;

    for (; rc == 0 && w->next < w->tensors->count; w->next++) {
        const struct adapter_tensor *t = &w->tensors->list[w->next];
        size_t count = (size_t)t->rows * (size_t)t->cols;
        size_t first = (size_t)t->first_row * (size_t)t->cols;
        const struct adapter *a;
        if (t->layer != layer || t->expert >= 0)
            break;
        a = find(w->adapters, layer, t->target, -1);
        w->scratch = memory_resize(w->scratch, count, sizeof *w->scratch);
        copy(w->scratch, w->adapters->params + (t->is_b ? a->b : a->a) + first, count);
        rc = safetensors_writer_append(w->output.weights, w->scratch, count * sizeof(float), e);
    }
    return rc;
}

// The experts of one rank, whose adapters lie in the buffer.
static int experts_append(struct writing *w, int layer, int first_expert, struct fl_error *e)
{
    int rc = 0;

    for (; rc == 0 && w->next < w->tensors->count; w->next++) {
        const struct adapter_tensor *t = &w->tensors->list[w->next];
        int local = t->expert - first_expert, module = t->target == LORA_FC2;
        const float *values;
        if (t->layer != layer || local < 0 || local >= w->layout->experts_local)
            break;
        values = w->buffer + (size_t)local * w->share.total +
                 (t->is_b ? w->share.b : w->share.a)[module] +
                 (size_t)t->first_row * (size_t)t->cols;
        rc = safetensors_writer_append(w->output.weights, values,
                                       (size_t)t->rows * (size_t)t->cols * sizeof *values, e);
    }
    return rc;
}

// Collective calls go on after rank 0 failed to write, until the ranks agree on it.
static int layer_write(struct writing *w, int layer, struct fl_error *e)
{
    const struct layout *layout = w->layout;
    size_t bytes = (size_t)layout->experts_local * w->share.total * sizeof(float);
    int rc = 0;

    if (layout->rank == 0)
        rc = attention_append(w, layer, e);
    for (int sender = 0; bytes && sender < layout->ep; sender++) {
        int sent;
        if (layout->rank == sender)
            share_pack(w->adapters, layout, layer, &w->share, w->buffer);
        sent = sender ? share_send(w->world, sender, w->buffer, bytes, e) : 0;
        if (sent < 0)
            return sent;
        if (layout->rank == 0 && rc == 0)
            rc = experts_append(w, layer, sender * layout->experts_local, e);
    }
    return comm_agree(w->world, rc, NULL, e);
}

int adapters_write(const char *folder, const struct spec *spec, const struct model *model,
                   const struct layout *layout, const struct adapters *adapters, struct comm *world,
                   struct fl_error *e)
{
    struct writing w = {.model = model,
                        .layout = layout,
                        .adapters = adapters,
                        .world = world,
                        .share = share_make(spec, model)};
    int rc = 0;

    w.buffer = memory_zeroed((size_t)layout->experts_local * w.share.total, sizeof *w.buffer);
    if (layout->rank == 0) {
        w.tensors = adapter_tensors_create(spec, model);
        rc = output_open(&w.output, folder, spec, w.tensors, e);
    }
    rc = comm_agree(world, rc, NULL, e);
    for (int layer = 0; layer < model->layers && rc == 0; layer++)
        rc = layer_write(&w, layer, e);
    if (rc == 0) {
        if (layout->rank == 0)
            rc = output_commit(&w.output, e);
        rc = comm_agree(world, rc, NULL, e);
    }
    output_close(&w.output);
    adapter_tensors_destroy(w.tensors);
    free(w.buffer);
    free(w.scratch);
    return rc;
}
