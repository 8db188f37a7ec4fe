// SPDX-License-Identifier: Apache-2.0
// Where a model comes from: a folder in Hugging Face layout, or weights made from its shapes alone.
#include "job/source.h"

#include "base/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SEED_WORD "seed="

static int seed_parse(const char *query, uint64_t *seed)
{
    char *end;

    if (strncmp(query, SEED_WORD, strlen(SEED_WORD)) != 0)
        return -EINVAL;
    query += strlen(SEED_WORD);
    errno = 0;
    *seed = strtoull(query, &end, 10);
    return *query < '0' || *query > '9' || *end || errno ? -EINVAL : 0;
}

int source_parse(const char *model, struct source *source, struct fl_error *e)
{
    const char *path, *query, *slash;
    size_t length;

    *source = (struct source){.synth = !strncmp(model, SOURCE_SYNTH, strlen(SOURCE_SYNTH))};
    path = source->synth ? model + strlen(SOURCE_SYNTH) : model;
    length = strlen(path);
    query = source->synth ? strchr(path, '?') : NULL;
    if (query) {
        length = (size_t)(query - path);
        if (seed_parse(query + 1, &source->seed) < 0)
            return error_set(e, -EINVAL, "%s: what follows '?' must be seed= and a whole number",
                             model);
    }
    if (length == 0)
        return error_set(e, -EINVAL, "%s: give a folder with a config.json, or such a file", model);
    if (source->synth && length > 5 && !strncmp(path + length - 5, ".json", 5)) {
        source->config = memory_format("%.*s", (int)length, path);
        slash = strrchr(source->config, '/');
        source->folder =
            slash
                ? memory_format("%.*s", slash == source->config ? 1 : (int)(slash - source->config),
                                source->config)
                : memory_string(".");
    } else {
        source->folder = memory_format("%.*s", (int)length, path);
        source->config = memory_format("%s/config.json", source->folder);
    }
    return 0;
}

void source_clear(struct source *source)
{
    free(source->config);
    free(source->folder);
    *source = (struct source){0};
}
