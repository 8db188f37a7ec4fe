// SPDX-License-Identifier: Apache-2.0
// What a plan can count and this version's trainer cannot run yet.
#include "job/runnable.h"

#include <errno.h>

int runnable_check(const struct spec *spec, struct fl_error *e)
{
    const struct {
        bool asked;
        const char *key, *instead;
    } refused[] = {
        {spec->tensor_parallel > 1, "tensor_model_parallel_size above 1",
         "use 1 and more data-parallel ranks"},
        {spec->recompute == RECOMPUTE_SELECTIVE && spec->recompute_part == RECOMPUTE_ATTENTION,
         "recompute_modules attention", "write experts, or recompute_granularity full"},
        {spec->layer_inputs != LAYER_INPUTS_DEVICE, "layer_inputs other than device",
         "write device"},
        {spec->shard_frozen, "shard_frozen", "write false"},
        {spec->optimizer_offload, "optimizer_offload", "write false"},
    };

    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (refused[i].asked)
            return error_set(e, -ENOTSUP, "%s: this version's trainer cannot run %s: %s",
                             spec->source, refused[i].key, refused[i].instead);
    return 0;
}
