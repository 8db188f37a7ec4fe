// SPDX-License-Identifier: Apache-2.0
// Reads adapter_model.safetensors and adapter_config.json back into a rank's adapters.
#include "weights/adapters_in.h"

#include "base/file.h"
#include "base/memory.h"
#include "weights/adapter_tensors.h"
#include "weights/piece.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>

#define CONFIG_LIMIT (1u << 20) // bytes

static int number_check(const json_t *root, const char *path, const char *key, double expected,
                        struct fl_error *e)
{
    const json_t *v = json_object_get(root, key);

    if (json_is_number(v) && fabs(json_number_value(v) - expected) <= 1e-12 * fabs(expected))
        return 0; // written with 15 digits
    if (!json_is_number(v))
        return error_set(e, -EINVAL, "%s: %s: missing or not a number", path, key);
    return error_set(e, -EINVAL, "%s: %s is %g, the job asks for %g: give the same in the job",
                     path, key, json_number_value(v), expected);
}

static int config_check(const char *folder, const struct spec *spec, struct fl_error *e)
{
    char *path = memory_format("%s/" ADAPTER_CONFIG_NAME, folder), *text = NULL;
    json_t *root = NULL;
    json_error_t json_error;
    size_t bytes;
    int rc = file_read(path, CONFIG_LIMIT, &text, &bytes, e);

    if (rc < 0)
        goto out;
    root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &json_error);
    if (!json_is_object(root)) {
        rc = error_set(e, -EINVAL, "%s: not a JSON object", path);
        goto out;
    }
    rc = number_check(root, path, "r", spec->lora_rank, e);
    if (rc == 0)
        rc = number_check(root, path, "lora_alpha", spec->lora_alpha, e);
    if (rc == 0 && json_is_true(json_object_get(root, "use_rslora")))
        rc = error_set(e, -EINVAL, "%s: use_rslora: only the scale alpha / r is known", path);
out:
    json_decref(root);
    free(text);
    free(path);
    return rc;
}

static int tensor_check(const struct safetensors *file, const struct tensor *t,
                        const struct adapter_tensor *want, struct fl_error *e)
{
    char text[TENSOR_SHAPE_TEXT];

    if (!t)
        return error_set(e, -ENOENT,
                         "%s: tensor '%s' is missing: were the adapters trained with these "
                         "target_modules?",
                         safetensors_path(file), want->name);
    if (t->dims != 2 || t->shape[0] != want->rows || t->shape[1] != want->cols)
        return error_set(e, -EINVAL, "%s: tensor '%s': shape %s, expected [%d, %d]",
                         safetensors_path(file), t->name, tensor_shape_text(t, text), want->rows,
                         want->cols);
    if (t->type != TENSOR_F32 && t->type != TENSOR_F16 && t->type != TENSOR_BF16)
        return error_set(e, -EINVAL, "%s: tensor '%s': dtype %s, expected F32, F16 or BF16",
                         safetensors_path(file), t->name, tensor_type_name(t->type));
    return 0;
}

// The file holds the listed tensors, as listed, and no others.
static int tensors_check(const struct safetensors *file, const struct adapter_tensors *tensors,
                         struct fl_error *e)
{
    size_t count = safetensors_count(file);
    bool *wanted = memory_zeroed(count, sizeof *wanted);
    int rc = 0;

    for (size_t i = 0; i < tensors->count && rc == 0; i++) {
        const struct tensor *t = safetensors_find(file, tensors->list[i].name);
        rc = tensor_check(file, t, &tensors->list[i], e);
        if (rc == 0)
            wanted[t - safetensors_at(file, 0)] = true;
    }
    for (size_t i = 0; i < count && rc == 0; i++)
        if (!wanted[i])
            rc = error_set(e, -EINVAL,
                           "%s: tensor '%s': the job's target_modules have no such "
                           "adapter",
                           safetensors_path(file), safetensors_at(file, i)->name);
    free(wanted);
    return rc;
}

// The values of t into its adapter. The A of a fused module comes once for each projection: the
// first is taken and the others must equal it.
static int values_take(const struct safetensors *file, const struct adapter_tensor *t,
                       const struct adapter *adapter, bool first, const float *values,
                       struct adapters *adapters, struct fl_error *e)
{
    real *to = adapters->params + (t->is_b ? adapter->b : adapter->a) +
               (size_t)t->first_row * (size_t)t->cols;

    for (size_t i = 0; i < (size_t)t->rows * (size_t)t->cols; i++) {
        if (!first && to[i] != (real)values[i])
            return error_set(e, -EINVAL,
                             "%s: tensor '%s': differs from the same module's other lora_A: these "
                             "adapters do not share one, the job's fused target_modules would",
                             safetensors_path(file), t->name);
        to[i] = (real)values[i];
    }
    return 0;
}

static int values_read(const struct safetensors *file, const struct adapter_tensors *tensors,
                       struct adapters *adapters, struct fl_error *e)
{
    const struct adapter *last = NULL; // whose A has been taken
    float *values = NULL;
    int rc = 0;

    for (size_t i = 0; i < tensors->count && rc == 0; i++) {
        const struct adapter_tensor *t = &tensors->list[i];
        const struct adapter *a = adapters_find(adapters, t->layer, t->target, t->expert);
        struct piece p = {.kind = PIECE_FLOAT,
                          .file = file,
                          .tensor = safetensors_find(file, t->name),
                          .rows = (size_t)t->rows,
                          .cols = (size_t)t->cols};
        uint64_t bytes = 0;
        if (!a)
            continue; // another rank's
        values = memory_resize(values, p.rows * p.cols, sizeof *values);
        p.data = values;
        rc = piece_read(&p, &bytes, e);
        if (rc == 0)
            rc = values_take(file, t, a, t->is_b || a != last, values, adapters, e);
        last = a;
    }
    free(values);
    return rc;
}

int adapters_read(const char *folder, const struct spec *spec, const struct model *model,
                  struct adapters *adapters, struct fl_error *e)
{
    char *path = memory_format("%s/" ADAPTER_WEIGHTS_NAME, folder);
    struct adapter_tensors *tensors = adapter_tensors_create(spec, model);
    struct safetensors *file = NULL;
    int rc = config_check(folder, spec, e);

    if (rc == 0)
        rc = safetensors_open(path, &file, e);
    if (rc == 0)
        rc = tensors_check(file, tensors, e);
    if (rc == 0)
        rc = values_read(file, tensors, adapters, e);
    safetensors_close(file);
    adapter_tensors_destroy(tensors);
    free(path);
    return rc;
}
