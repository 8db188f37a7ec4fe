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

// The text with the folder in place of every '@'; free().
static char *roots_of(const char *text)
{
    char *out = NULL;
    size_t bytes;
    FILE *file;

    if (!text)
        return NULL;
    file = open_memstream(&out, &bytes);
    for (; *text; text++)
        fprintf(file, *text == '@' ? "%s" : "%.1s", *text == '@' ? folder : text);
    fclose(file);
    return out;
}

// What allowed_check says of a model and an output folder below the test's own, under roots "@/a".
static int check(const char *model, const char *output, const char *models, const char *outputs,
                 struct fl_error *e)
{
    char *model_path = path_of(model), *output_path = path_of(output);
    char *model_roots = roots_of(models), *output_roots = roots_of(outputs);
    const struct launch launch = {.model_roots = model_roots, .output_roots = output_roots};
    const struct spec spec = {
        .source = (char *)"job.yaml", .model = model_path, .output_dir = output_path};
    const struct plan plan = {0};
    int rc = allowed_check(&launch, &spec, &plan, 0, e);

    free(model_path);
    free(output_path);
    free(model_roots);
    free(output_roots);
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
        {"a/model", "", false},
    };
    struct fl_error e;
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i].allowed) {
            check_ok(check(cases[i].model, "a", cases[i].roots, NULL, &e), &e);
            check_ok(check("a/model", cases[i].model, NULL, cases[i].roots, &e), &e);
            continue;
        }
        check_error(check(cases[i].model, "a", cases[i].roots, NULL, &e), &e,
                    "this site's policy allows models only below ");
        assert_int_equal(e.code, -EPERM);
        check_error(check("a/model", cases[i].model, NULL, cases[i].roots, &e), &e,
                    "this site's policy allows output only below ");
    }
}

static void memory(void **state)
{
    const struct spec spec = {
        .source = (char *)"job.yaml", .model = (char *)"/m", .output_dir = (char *)"/o"};
    const struct plan plan = {.host_bytes = 3ull << 30};
    struct launch launch = {.host_cap = 2ull << 30, .host_source = "policy.yaml:3"};
    struct fl_error e;
    (void)state;

    check_error(allowed_check(&launch, &spec, &plan, 0, &e), &e,
                "job.yaml: the plan of 3.00 GiB of host memory a rank is above the cap of 2.00 GiB "
                "(policy.yaml:3)");
    launch.host_cap = 3ull << 30;
    check_ok(allowed_check(&launch, &spec, &plan, 0, &e), &e);
    launch.cap_source = "policy.yaml:1";
    error_set(&e, -ENOSPC, "job.yaml: the plan is too large");
    assert_int_equal(allowed_check(&launch, &spec, &plan, -ENOSPC, &e), -ENOSPC);
    assert_string_equal(e.text, "policy.yaml:1: job.yaml: the plan is too large");
    error_set(&e, -EINVAL, "other");
    assert_int_equal(allowed_check(&launch, &spec, &plan, -EINVAL, &e), -EINVAL);
    assert_string_equal(e.text, "other");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(roots), cmocka_unit_test(memory)};

    return cmocka_run_group_tests_name("allowed", tests, folder_setup, folder_teardown);
}
