// SPDX-License-Identifier: Apache-2.0
// The plan a job is judged by: its closed form, and a dry run of all that the trainer can run.
#include "train/planned.h"

#include "base/bytes.h"
#include "job/fit.h"
#include "job/runnable.h"
#include "ops/dry/routing.h"
#include "train/dry_run.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void plan_take(struct plan *plan, const struct dry_result *dry)
{
    plan->dry = true;
    memcpy(plan->bytes, dry->peak, sizeof plan->bytes);
    memcpy(plan->at_peak, dry->at_peak, sizeof plan->at_peak);
    plan->total_bytes = dry->sight.peak_total;
    plan->mapped_bytes = dry->sight.mapped;
    plan->largest_bytes = dry->sight.largest;
    plan->largest_category = dry->sight.largest_category;
    snprintf(plan->peak_where, sizeof plan->peak_where, "%s", dry->sight.peak_where);
    snprintf(plan->largest_where, sizeof plan->largest_where, "%s", dry->sight.largest_where);
}

// Behind a message that says what is too large: what would fit.
static void advise(const struct spec *spec, const struct model *model, int world,
                   uint64_t cap_bytes, const struct plan *plan, struct fl_error *e)
{
    struct fit_request request = {.spec = spec,
                                  .model = model,
                                  .world = world,
                                  .cap_bytes = cap_bytes,
                                  .fabric = FABRIC_PRESET};
    struct fit_choice choices[FIT_CHOICES];
    char text[FIT_CHANGES], need[BYTES_TEXT];
    struct fl_error ignored;
    int count = 0;
    size_t used = e ? strlen(e->text) : 0;

    if (!e)
        return;
    if (!plan->cpu && gpu_find(GPU_PRESET, &request.gpu, &ignored) == 0)
        fit_search(&request, choices, &count, &ignored);
    if (count)
        snprintf(e->text + used, sizeof e->text - used, "; it fits with %s (%s%s)",
                 fit_changes(spec, world, &choices[0], text), bytes_format(choices[0].need, need),
                 choices[0].runs ? "" : ", not run by this version yet");
    else
        snprintf(e->text + used, sizeof e->text - used,
                 "; lower micro_batch_size, max_length or lora_rank, or raise "
                 "expert_model_parallel_size");
}

static int plan_of(const struct spec *spec, const struct model *model, int world, int threads,
                   uint64_t cap_bytes, struct plan *plan, struct fl_error *e)
{
    int rc = plan_make_threads(spec, model, world, threads, 0, plan, e);
    struct dry_result dry;

    if (rc < 0)
        return rc;
    if (runnable_network(spec)) {
        const struct dry_job job = {
            .spec = spec,
            .model = model,
            .layout = &plan->layout,
            .cpu = plan->cpu,
            .threads = threads,
            .skew = ROUTING_WORST,
        };
        rc = dry_run(&job, &dry, e);
        if (rc < 0)
            return rc;
        plan_take(plan, &dry);
    }
    rc = plan_cap_check(spec, plan, cap_bytes, e);
    if (rc < 0)
        advise(spec, model, world, cap_bytes, plan, e);
    return rc;
}

// As little as the cap allows; without a cap nobody says how much there is, so nothing is kept.
static int plan_of_auto(const struct spec *spec, const struct model *model, int world, int threads,
                        uint64_t cap_bytes, struct plan *plan, struct fl_error *e)
{
    static const enum recompute ways[] = {RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL};
    struct spec settled = *spec;
    int rc = -ENOSPC;

    settled.recompute_part = RECOMPUTE_EXPERTS;
    for (size_t i = cap_bytes ? 0 : 2; rc == -ENOSPC && i < sizeof ways / sizeof *ways; i++) {
        settled.recompute = ways[i];
        rc = plan_of(&settled, model, world, threads, cap_bytes, plan, e);
    }
    return rc;
}

int planned_make(const struct spec *spec, const struct model *model, int world, int threads,
                 uint64_t cap_bytes, struct plan *plan, struct fl_error *e)
{
    if (spec->recompute == RECOMPUTE_AUTO)
        return plan_of_auto(spec, model, world, threads, cap_bytes, plan, e);
    return plan_of(spec, model, world, threads, cap_bytes, plan, e);
}
