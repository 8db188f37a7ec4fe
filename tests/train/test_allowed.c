// SPDX-License-Identifier: Apache-2.0
// train/allowed: folders inside and outside of what a policy allows, whatever links and dots lead
// there, and memory above its caps.
#include "unit/check.h"

#include "base/memory.h"
#include "train/allowed.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char *folder; // real, with a, a/model, b, link -> a, out -> b

static char *path_of(const char *name)
{
    return memory_format("%s/%s", folder, name);
}

static int folder_setup(void **state)
{
    static const char *const names[] = {"a", "a/model", "b", "ab"};
    char template[] = "/tmp/fl-allowed-XXXXXX", *link, *target;
    (void)state;

    folder = realpath(mkdtemp(template), NULL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = path_of(names[i]);
        assert_int_equal(mkdir(path, 0755), 0);
        free(path);
    }
    link = path_of("link");
    target = path_of("a");
    assert_int_equal(symlink(target, link), 0);
    free(link);
    free(target);
    link = path_of("a/out");
    target = path_of("b");
    assert_int_equal(symlink(target, link), 0);
    free(link);
    free(target);
    return 0;
}

static int folder_teardown(void **state)
{
    static const char *const names[] = {"a/out", "link", "a/model", "a", "b", "ab", ""};
    (void)state;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = path_of(names[i]);
        remove(path);
        free(path);
    }
    free(folder);
    return 0;
}

#define LISTS 2

// Lists of folders, one a line, of folders with a colon between, '@' for the test's own.
struct list_store {
    struct policy_roots lists[LISTS];
    char *paths[LISTS][4];
    int count;
};

static void lists_make(const char *text, struct list_store *store)
{
    *store = (struct list_store){0};
    if (!text)
        return;
    while (store->count < LISTS) {
        struct policy_roots *list = &store->lists[store->count];
        size_t line = strcspn(text, "\n");
        snprintf(list->source, sizeof list->source, "policy.yaml:%d", store->count + 1);
        list->paths = store->paths[store->count];
        for (const char *end = text + line; text < end; text += *text == ':') {
            size_t n = strcspn(text, ":\n");
            const char *tail = text + (*text == '@');
            store->paths[store->count][list->count++] = memory_format(
                "%s%.*s", *text == '@' ? folder : "", (int)(n - (size_t)(tail - text)), tail);
            text += n;
        }
        store->count++;
        if (!*text++)
            return;
    }
}

static void lists_free(struct list_store *store)
{
    for (int i = 0; i < LISTS; i++)
        for (int k = 0; k < 4; k++)
            free(store->paths[i][k]);
}

// What allowed_check says of a model and an output folder below the test's own.
static int check(const char *model, const char *output, const char *models, const char *outputs,
                 enum policy_action action, struct fl_error *e)
{
    char *model_path = path_of(model), *output_path = path_of(output);
    struct list_store model_lists, output_lists;
    struct allowed_warnings warnings;
    struct launch launch = {.world = 1};
    const struct spec spec = {
        .source = (char *)"job.yaml", .model = model_path, .output_dir = output_path};
    const struct plan plan = {0};
    int rc;

    lists_make(models, &model_lists);
    lists_make(outputs, &output_lists);
    launch.limits = (struct limits){.models = model_lists.lists,
                                    .outputs = output_lists.lists,
                                    .model_lists = model_lists.count,
                                    .output_lists = output_lists.count,
                                    .action = action};
    rc = allowed_check(&launch, &spec, &plan, 0, &warnings, e);
    assert_int_equal(warnings.count, 0);
    free(model_path);
    free(output_path);
    lists_free(&model_lists);
    lists_free(&output_lists);
    return rc;
}

static void roots(void **state)
{
    static const struct {
        const char *model, *roots;
        bool allowed;
    } cases[] = {
        {"a/model", NULL, true},
        {"a/model", "@/a", true},
        {"a/model", "@/a/", true},
        {"a", "@/a", true},
        {"ab", "@/a", false},
        {"b", "@/a", false},
        {"b", "@/a:@/b", true},
        {"b", "/", true},
        {"link/model", "@/a", true},
        {"a/../b", "@/a", false},
        {"a/out", "@/a", false}, // leads to b
        {"a/nothing/yet", "@/a", true},
        {"nothing/../a/new", "@/a", false}, // through what is not there
        {"a/model/../../b/new", "@/a", false},
        {"a/model", "@/a\n@/b", false}, // in every list
        {"a/model", "@/a\n@/a/model", true},
    };
    struct fl_error e;
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const enum policy_action action = i % 2 ? POLICY_WARN : POLICY_REFUSE; // all the same here
        if (cases[i].allowed) {
            check_ok(check(cases[i].model, "a", cases[i].roots, NULL, action, &e), &e);
            check_ok(check("a/model", cases[i].model, NULL, cases[i].roots, action, &e), &e);
            continue;
        }
        check_error(check(cases[i].model, "a", cases[i].roots, NULL, action, &e), &e,
                    "this site's policy allows models only below ");
        assert_int_equal(e.code, -EPERM);
        check_error(check("a/model", cases[i].model, NULL, cases[i].roots, action, &e), &e,
                    "this site's policy allows output only below ");
    }
    // The list that refuses is named, by its own line.
    check_error(check("b", "a", "@/b\n/x:/y", NULL, POLICY_WARN, &e), &e,
                "/b: this site's policy allows models only below /x:/y (policy.yaml:2)");
}

static void memory(void **state)
{
    const struct spec spec = {
        .source = (char *)"job.yaml", .model = (char *)"/m", .output_dir = (char *)"/o"};
    const struct plan plan = {.host_bytes = 3ull << 30, .dry = true, .mapped_bytes = 5ull << 30};
    struct launch launch = {
        .world = 4, .limits = {.host = {2ull << 30, "policy.yaml:3"}, .action = POLICY_REFUSE}};
    static const char host[] = "job.yaml: the plan of 3.00 GiB of host memory a rank is above the "
                               "cap of 2.00 GiB (policy.yaml:3)",
                      ranks[] = "4 ranks are more than the 3 of max_ranks (policy.yaml:4): start "
                                "fewer";
    struct allowed_warnings warnings;
    struct fl_error e;
    (void)state;

    check_error(allowed_check(&launch, &spec, &plan, 0, &warnings, &e), &e, host);
    assert_int_equal(e.code, -ENOSPC);
    launch.limits.host.value = 3ull << 30;
    check_ok(allowed_check(&launch, &spec, &plan, 0, &warnings, &e), &e);
    launch.limits.ranks = (struct policy_limit){3, "policy.yaml:4"};
    check_error(allowed_check(&launch, &spec, &plan, 0, &warnings, &e), &e, ranks);

    // Under warn every cap warns.
    launch.limits.host.value = 2ull << 30;
    launch.limits.device = (struct policy_limit){4ull << 30, "policy.yaml:1"};
    launch.limits.action = POLICY_WARN;
    check_ok(allowed_check(&launch, &spec, &plan, 0, &warnings, &e), &e);
    assert_int_equal(warnings.count, ALLOWED_WARNINGS);
    assert_non_null(strstr(warnings.line[0].text, "policy.yaml:1: job.yaml: the plan of 5.00 GiB"));
    assert_string_equal(warnings.line[1].text, host);
    assert_string_equal(warnings.line[2].text, ranks);
    launch.limits = (struct limits){0};
    check_ok(allowed_check(&launch, &spec, &plan, 0, &warnings, &e), &e);
    assert_int_equal(warnings.count, 0);

    launch.cap_source = "policy.yaml:1";
    error_set(&e, -ENOSPC, "job.yaml: the plan is too large");
    assert_int_equal(allowed_check(&launch, &spec, &plan, -ENOSPC, &warnings, &e), -ENOSPC);
    assert_string_equal(e.text, "policy.yaml:1: job.yaml: the plan is too large");
    error_set(&e, -EINVAL, "other");
    assert_int_equal(allowed_check(&launch, &spec, &plan, -EINVAL, &warnings, &e), -EINVAL);
    assert_string_equal(e.text, "other");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(roots), cmocka_unit_test(memory)};

    return cmocka_run_group_tests_name("allowed", tests, folder_setup, folder_teardown);
}
