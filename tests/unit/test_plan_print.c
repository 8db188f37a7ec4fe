// SPDX-License-Identifier: Apache-2.0
// job/plan_print, job/plan_json: what a person reads is what a program does, over random jobs.
#include "unit/check.h"

#include "base/bytes.h"
#include "job/plan_print.h"
#include "unit/random_jobs.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#define JOBS 300

// Formatted anew from JSON, each must be in a line of the text that begins with its name.
static void line_holds(const char *text, const char *name, const char *value)
{
    char wanted[160];
    size_t length = strlen(name);

    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        const char *word = line + strspn(line, " ");
        const char *end = strchr(word, '\n');
        if (strncmp(word, name, length) || word[length] != ' ' || !end)
            continue;
        snprintf(wanted, sizeof wanted, "%.*s", (int)(end - word), word);
        if (strstr(wanted + length, value))
            return;
    }
    fail_msg("'%s' with '%s' is not in the text:\n%s", name, value, text);
}

static uint64_t whole_of(const json_t *root, const char *key)
{
    assert_true(json_is_integer(json_object_get(root, key)));
    return (uint64_t)json_integer_value(json_object_get(root, key));
}

static void amount_holds(const char *text, const char *name, uint64_t bytes)
{
    char value[BYTES_TEXT];

    line_holds(text, name, bytes_format(bytes, value));
}

static void terms_compare(const char *text, const json_t *list)
{
    size_t i;
    json_t *term;

    json_array_foreach(list, i, term)
    {
        const char *name = json_string_value(json_object_get(term, "name"));
        amount_holds(text, name, whole_of(term, "bytes"));
        line_holds(text, name, json_string_value(json_object_get(term, "formula")));
    }
}

// Rows of the estimate: those above zero are told, in order, and the times sum to the step's.
static void estimate_compare(const char *text, const json_t *estimate)
{
    const json_t *seconds = json_object_get(estimate, "seconds");
    const json_t *sent = json_object_get(estimate, "sent_bytes");
    double sum = 0, step = json_real_value(json_object_get(estimate, "step_s"));
    char value[32];

    for (size_t i = 0; i < ESTIMATE_TIMES; i++) {
        const json_t *v = json_object_get(seconds, estimate_times[i].key);
        assert_true(json_is_real(v) && json_real_value(v) >= 0);
        sum += json_real_value(v);
        snprintf(value, sizeof value, "%.1f ms", json_real_value(v) * 1e3);
        if (json_real_value(v) > 0)
            line_holds(text, estimate_times[i].name, value);
    }
    assert_int_equal(json_object_size(seconds), ESTIMATE_TIMES);
    assert_float_equal(sum, step, 1e-9 * step);
    snprintf(value, sizeof value, "%.1f ms", step * 1e3);
    line_holds(text, "iteration", value);
    assert_int_equal(json_object_size(sent), ESTIMATE_VOLUMES);
    for (size_t i = 0; i < ESTIMATE_VOLUMES; i++)
        if (whole_of(sent, estimate_volumes[i].key))
            amount_holds(text, estimate_volumes[i].name, whole_of(sent, estimate_volumes[i].key));
}

static void fit_compare(const char *text, const json_t *fit)
{
    size_t i;
    json_t *choice;

    json_array_foreach(fit, i, choice)
    {
        const char *change = json_string_value(json_object_get(choice, "change"));
        bool runs = json_is_true(json_object_get(choice, "runs"));
        char time[32], line[512], need[BYTES_TEXT], host[BYTES_TEXT];
        snprintf(time, sizeof time, "%.1f",
                 json_real_value(json_object_get(choice, "step_s")) * 1e3);
        snprintf(line, sizeof line, "%s of the host  %s%s%s\n",
                 bytes_format(whole_of(choice, "host_bytes"), host),
                 strcmp(change, "nothing") ? "change " : "as it is",
                 strcmp(change, "nothing") ? change : "",
                 runs                                               ? ""
                 : json_is_true(json_object_get(choice, "written")) ? " (not on several GPUs in "
                                                                      "this version yet)"
                                                                    : " (planned, not run by this "
                                                                      "version yet)");
        assert_non_null(strstr(text, line));
        line_holds(text, time, bytes_format(whole_of(choice, "device_bytes"), need));
    }
}

static void view_compare(const struct plan_view *view)
{
    static const struct {
        const char *key, *name;
    } amounts[] = {{"needed_bytes", "needed on the device"},
                   {"disk_bytes", "disk of the adapters"},
                   {"states_disk_bytes", "disk of states to resume with"},
                   {"total_bytes", "total"}};
    char *text, *coded, value[BYTES_TEXT];
    const char *name;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    json_t *root, *category;
    json_error_t e;

    plan_print(out, view);
    if (view->choice_count >= 0)
        plan_print_fit(out, view);
    fclose(out);
    out = open_memstream(&coded, &size);
    plan_print_json(out, view);
    fclose(out);
    root = json_loadb(coded, size, 0, &e);
    assert_non_null(root);
    for (size_t i = 0; i < sizeof amounts / sizeof *amounts; i++)
        amount_holds(text, amounts[i].name, whole_of(root, amounts[i].key));
    json_object_foreach(json_object_get(root, "bytes"), name, category)
        line_holds(text, name, bytes_format((uint64_t)json_integer_value(category), value));
    terms_compare(text, json_object_get(root, "terms"));
    terms_compare(text, json_object_get(root, "outside"));
    terms_compare(text, json_object_get(root, "host"));
    if (view->cap_bytes)
        amount_holds(text, "cap", whole_of(root, "cap_bytes"));
    assert_true(!strstr(text, "not run by this version yet: ") ==
                json_is_true(json_object_get(root, "runs")));
    if (view->gpu)
        estimate_compare(text, json_object_get(root, "estimate"));
    else
        assert_true(json_is_null(json_object_get(root, "estimate")));
    if (view->choice_count >= 0)
        fit_compare(text, json_object_get(root, "fit"));
    json_decref(root);
    free(coded);
    free(text);
}

static void text_beside_json(void **state)
{
    static const char *const names[] = {"H200", "H100", "H100-NVL", "A100", "L40S"};
    static const char *const networks[] = {"InfiniBand-NDR", "Ethernet-25", "3GB"};
    static const char *const switches[] = {"", "shard_frozen: true\n", "layer_inputs: host\n",
                                           "optimizer_offload: true\nshard_frozen: true\n"};
    (void)state;

    for (int i = 0; i < JOBS; i++) {
        int ep = drawn(1, 4), world = ep * drawn(1, 2);
        struct model model = model_draw(ep);
        char *job = job_draw(ep, backend_draw());
        char *text = memory_format("%s%s", job, CHOSEN(switches));
        struct plan plan;
        struct spec *spec;
        struct fl_error e;
        struct plan_view view = {.model = &model,
                                 .plan = &plan,
                                 .threads = drawn(1, 4),
                                 .fabric = FABRIC_PRESET,
                                 .choice_count = -1};
        const struct gpu *gpu;
        check_ok(spec_parse_yaml(text, strlen(text), "job.yaml", &spec, &e), &e);
        check_ok(plan_make_threads(spec, &model, world, view.threads, 0, &plan, &e), &e);
        check_ok(gpu_find(CHOSEN(names), &gpu, &e), &e);
        check_ok(network_find(CHOSEN(networks), &view.fabric, &e), &e);
        view.spec = spec;
        view.cap_bytes = drawn(0, 1) ? plan_need(&plan) + (uint64_t)drawn(0, 1 << 24) : 0;
        if (!runnable_gap(spec, !plan.cpu, gpu, world, &view.gap))
            view.gap = (struct runnable_gap){0};
        if (!plan.cpu) {
            const struct fit_request request = {.spec = spec,
                                                .model = &model,
                                                .world = world,
                                                .cap_bytes = view.cap_bytes,
                                                .gpu = gpu,
                                                .fabric = view.fabric};
            view.gpu = gpu;
            estimate_make(spec, &model, &plan, gpu, &view.fabric, &view.estimate);
            if (view.cap_bytes && drawn(0, 3) == 0)
                check_ok(fit_search(&request, view.choices, &view.choice_count, &e), &e);
        }
        view_compare(&view);
        spec_destroy(spec);
        free(text);
        free(job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(text_beside_json)};

    return cmocka_run_group_tests_name("plan_print", tests, NULL, NULL);
}
