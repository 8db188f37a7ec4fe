// SPDX-License-Identifier: Apache-2.0
// A job's tokenizer and datasets, from its spec.
#include "data/job_data.h"

#include "base/file.h"
#include "base/memory.h"
#include "job/source.h"

#include <errno.h>
#include <stdlib.h>

#define TEMPLATE_LIMIT (16u << 20) // bytes

static bool files_made(char *const *files, size_t count)
{
    return count == 0 || (count == 1 && dataset_is_made(files[0]));
}

// The kind of the template in a file of the model's folder; a missing file has none.
static int template_look(const char *folder, const char *name, enum template_kind *kind,
                         struct fl_error *e)
{
    char *path = memory_format("%s/%s", folder, name), *text = NULL;
    size_t bytes;
    int rc = file_read(path, TEMPLATE_LIMIT, &text, &bytes, e);

    if (rc == 0 && template_kind_of(text) != TEMPLATE_CODER)
        *kind = template_kind_of(text);
    free(text);
    free(path);
    return rc == -ENOENT ? 0 : rc;
}

static int template_choose(const struct spec *spec, const char *folder, enum template_kind *kind,
                           struct fl_error *e)
{
    int rc;

    *kind = spec->chat_template == CHAT_QWEN3 ? TEMPLATE_QWEN3 : TEMPLATE_CODER;
    if (spec->chat_template != CHAT_AUTO)
        return 0;
    rc = template_look(folder, "tokenizer_config.json", kind, e);
    return rc < 0 ? rc : template_look(folder, "chat_template.jinja", kind, e);
}

static int tokenizer_read(const struct spec *spec, const struct model *model, struct job_data *data,
                          struct fl_error *e)
{
    struct source source;
    char *path;
    int rc = source_parse(spec->model, &source, e);

    if (rc < 0)
        return rc;
    path = memory_format("%s/tokenizer.json", source.folder);
    rc = tokenizer_load(path, &data->tokenizer, e);
    if (rc == 0 && tokenizer_size(data->tokenizer) > model->vocab)
        rc = error_set(e, -EINVAL,
                       "%s: %d tokens, the model has %d: take the tokenizer that came with the "
                       "checkpoint",
                       path, tokenizer_size(data->tokenizer), model->vocab);
    if (rc == 0)
        rc = template_choose(spec, source.folder, &data->template, e);
    free(path);
    source_clear(&source);
    return rc;
}

static int dataset_read(const struct spec *spec, const struct model *model, struct job_data *data,
                        char *const *files, size_t count, struct dataset **out, struct fl_error *e)
{
    const struct dataset_options options = {
        .tokenizer = data->tokenizer,
        .template = data->template,
        .max_length = spec->max_length,
        .threads = spec->threads,
        .seed = spec->seed,
    };

    if (count == 1 && dataset_is_made(files[0]))
        return dataset_make(files[0], model->vocab, spec->max_length, out, e);
    return dataset_load(files, count, &options, out, e);
}

int job_data_read(const struct spec *spec, const struct model *model, struct job_data *data,
                  struct fl_error *e)
{
    int rc = 0;

    *data = (struct job_data){0};
    if (!files_made(spec->datasets, spec->dataset_count) ||
        !files_made(spec->val_datasets, spec->val_dataset_count))
        rc = tokenizer_read(spec, model, data, e);
    if (rc == 0)
        rc = dataset_read(spec, model, data, spec->datasets, spec->dataset_count, &data->train, e);
    if (rc == 0 && spec->val_dataset_count)
        rc = dataset_read(spec, model, data, spec->val_datasets, spec->val_dataset_count,
                          &data->validation, e);
    else if (rc == 0 && spec->split_dataset_ratio > 0)
        rc =
            dataset_split(data->train, spec->split_dataset_ratio, spec->seed, &data->validation, e);
    return rc;
}

void job_data_clear(struct job_data *data)
{
    dataset_destroy(data->validation);
    dataset_destroy(data->train);
    tokenizer_destroy(data->tokenizer);
    *data = (struct job_data){0};
}
