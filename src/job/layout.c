// SPDX-License-Identifier: Apache-2.0
// Which rank does what.
#include "job/layout.h"

#include <errno.h>
#include <string.h>

int layout_make(const struct spec *spec, const struct model *model, int world, int rank,
                struct layout *layout, struct fl_error *e)
{
    int tp = spec->tensor_parallel, ep = spec->expert_parallel, dp, micro_total;

    if (world < 1 || rank < 0 || rank >= world)
        return error_set(e, -EINVAL, "rank %d of %d: start the job with at least one task", rank,
                         world);
    if (tp < 1 || ep < 1)
        return error_set(e, -EINVAL,
                         "%s: tensor_model_parallel_size %d, expert_model_parallel_size %d: both "
                         "must be at least 1",
                         spec->source, tp, ep);
    if (world % tp)
        return error_set(e, -EINVAL,
                         "%s: tensor_model_parallel_size %d does not divide the %d ranks",
                         spec->source, tp, world);
    if (world % ep)
        return error_set(e, -EINVAL,
                         "%s: expert_model_parallel_size %d does not divide the %d ranks: start "
                         "a multiple of %d tasks or lower it",
                         spec->source, ep, world, ep);
    if (model->experts % ep)
        return error_set(e, -EINVAL,
                         "%s: expert_model_parallel_size %d does not divide the model's %d "
                         "experts",
                         spec->source, ep, model->experts);
    dp = world / tp;
    micro_total = spec->global_batch_size / spec->micro_batch_size;
    if (spec->global_batch_size % spec->micro_batch_size || micro_total % dp)
        return error_set(e, -EINVAL,
                         "%s: global_batch_size %d is not micro_batch_size %d times %d "
                         "data-parallel ranks times a whole number of accumulation steps",
                         spec->source, spec->global_batch_size, spec->micro_batch_size, dp);
    memset(layout, 0, sizeof *layout);
    layout->world = world;
    layout->rank = rank;
    layout->tp = tp;
    layout->dp = dp;
    layout->dp_rank = rank / tp;
    layout->ep = ep;
    layout->ep_rank = rank % ep;
    layout->ep_group = rank / ep;
    layout->replicas = world / ep;
    layout->experts_local = model->experts / ep;
    layout->expert_first = layout->ep_rank * layout->experts_local;
    layout->accumulation = micro_total / dp;
    return 0;
}
