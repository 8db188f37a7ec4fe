// SPDX-License-Identifier: Apache-2.0
// A plan for a program.
#include "job/plan_print.h"

#include <jansson.h>

static json_t *whole(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *terms_json(const struct plan *plan)
{
    json_t *terms = json_array();

    for (int i = 0; i < plan->term_count; i++) {
        const struct plan_term *t = &plan->terms[i];
        json_array_append_new(terms, json_pack("{ss ss ss so}", "category",
                                               memory_category_name(t->category), "name", t->name,
                                               "formula", t->formula, "bytes", whole(t->bytes)));
    }
    return terms;
}

// null without a dry run.
static json_t *dry_json(const struct plan *plan)
{
    json_t *at_peak;

    if (!plan->dry)
        return json_null();
    at_peak = json_object();
    for (int c = 0; c < MEMORY_CATEGORIES; c++)
        json_object_set_new(at_peak, memory_category_name((enum memory_category)c),
                            whole(plan->at_peak[c]));
    return json_pack("{so ss so s{so ss ss}}", "bytes_at_peak", at_peak, "peak_where",
                     plan->peak_where, "mapped_bytes", whole(plan->mapped_bytes),
                     "largest_transient", "bytes", whole(plan->largest_bytes), "category",
                     memory_category_name(plan->largest_category), "where", plan->largest_where);
}

static json_t *beside_json(const struct plan_term *terms, int count)
{
    json_t *list = json_array();

    for (int i = 0; i < count; i++)
        json_array_append_new(list, json_pack("{ss ss so}", "name", terms[i].name, "formula",
                                              terms[i].formula, "bytes", whole(terms[i].bytes)));
    return list;
}

static json_t *estimate_json(const struct plan_view *v)
{
    const struct estimate *e = &v->estimate;
    json_t *seconds, *sent;
    const char *link;

    if (!v->gpu)
        return json_null();
    seconds = json_object();
    sent = json_object();
    for (size_t i = 0; i < ESTIMATE_TIMES; i++)
        json_object_set_new(seconds, estimate_times[i].key,
                            json_real(*estimate_time(e, &estimate_times[i])));
    for (size_t i = 0; i < ESTIMATE_VOLUMES; i++)
        json_object_set_new(sent, estimate_volumes[i].key,
                            whole((uint64_t)*estimate_time(e, &estimate_volumes[i])));
    gpu_link(v->gpu, &v->fabric, v->fabric.node_gpus, &link);
    return json_pack(
        "{ss si si sf sf so so s{ss sf ss sf si sf}}", "gpu", v->gpu->name, "gpu_total_mib",
        (int)v->gpu->total_mib, "gpu_visible_mib", (int)v->gpu->visible_mib, "step_s", e->step_s,
        "tokens", e->tokens, "seconds", seconds, "sent_bytes", sent, "fabric", "node", link,
        "node_bytes_per_s", v->gpu->link, "network",
        v->fabric.network_name ? v->fabric.network_name : "given", "network_bytes_per_s",
        v->fabric.network, "node_gpus", v->fabric.node_gpus, "host_bytes_per_s", v->gpu->host_link);
}

// null where no fit was asked for.
static json_t *choices_json(const struct plan_view *v)
{
    json_t *list = json_array();
    char text[FIT_CHANGES];

    if (v->choice_count < 0) {
        json_decref(list);
        return json_null();
    }
    for (int i = 0; i < v->choice_count; i++) {
        const struct fit_choice *c = &v->choices[i];
        json_array_append_new(list, json_pack("{ss so so sf sb sb}", "change",
                                              fit_changes(v->spec, v->plan->layout.world, c, text),
                                              "device_bytes", whole(c->need), "host_bytes",
                                              whole(c->host), "step_s", c->step_s, "runs", c->runs,
                                              "written", c->written));
    }
    return list;
}

void plan_print_json(FILE *out, const struct plan_view *v)
{
    const struct spec *spec = v->spec;
    const struct plan *plan = v->plan;
    const struct layout *layout = &plan->layout;
    json_t *bytes = json_object(), *notes = json_array(), *root;

    for (int c = 0; c < MEMORY_CATEGORIES; c++)
        json_object_set_new(bytes, memory_category_name((enum memory_category)c),
                            whole(plan->bytes[c]));
    for (size_t i = 0; i < spec->note_count; i++)
        json_array_append_new(notes, json_string(spec->notes[i]));
    root = json_pack(
        "{ss ss s{si si si si si si si} s{so so so so} so so so so so so}", "model", spec->model,
        "backend", plan->cpu ? "cpu" : "cuda", "layout", "ranks", layout->world, "tp", layout->tp,
        "dp", layout->dp, "ep", layout->ep, "replicas", layout->replicas, "experts_local",
        layout->experts_local, "accumulation", layout->accumulation, "parameters", "base",
        whole(plan->base_params), "trainable", whole(plan->trainable_params), "base_total",
        whole(plan->base_params_total), "trainable_total", whole(plan->trainable_params_total),
        "bytes", bytes, "total_bytes", whole(plan->total_bytes), "cap_bytes", whole(v->cap_bytes),
        "dry_run", dry_json(plan), "terms", terms_json(plan), "notes", notes);
    json_object_set_new(root, "outside", beside_json(plan->outside, plan->outside_count));
    json_object_set_new(root, "host", beside_json(plan->host, plan->host_count));
    json_object_set_new(root, "needed_bytes", whole(plan_need(plan)));
    json_object_set_new(root, "host_bytes", whole(plan->host_bytes));
    json_object_set_new(root, "disk_bytes", whole(plan->disk_bytes));
    json_object_set_new(root, "states_disk_bytes", whole(plan->states_bytes));
    json_object_set_new(root, "threads", plan->cpu ? json_integer(v->threads) : json_null());
    json_object_set_new(root, "runs", json_boolean(!v->gap.what));
    json_object_set_new(root, "not_run", v->gap.what ? json_string(v->gap.what) : json_null());
    json_object_set_new(root, "checkpoint_bytes",
                        v->index.bytes ? whole(v->index.bytes) : json_null());
    json_object_set_new(root, "iterations",
                        v->iterations ? json_integer(v->iterations) : json_null());
    json_object_set_new(root, "estimate", estimate_json(v));
    json_object_set_new(root, "fit", choices_json(v));
    json_dumpf(root, out, JSON_INDENT(2));
    putc('\n', out);
    json_decref(root);
}
