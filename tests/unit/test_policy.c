// SPDX-License-Identifier: Apache-2.0
// job/policy: what applies to whom, where it comes from, and every text that is refused.
#include "unit/check.h"

#include "base/memory.h"
#include "job/policy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define GIB (1ull << 30)

static const char site[] =
    "# of the site\n"
    "max_device_memory: 78GiB\n"
    "max_host_memory: 100 GiB\n"
    "model_roots: [/models, /scratch/models/]\n"
    "watch_grace: 10\n"
    "gpus:\n"
    "  H100: {max_device_memory: 76GiB}\n"
    "  h200:\n"
    "    max_device_memory: 138GiB\n"
    "partitions:\n"
    "  debug:\n"
    "    max_ranks: 8\n"
    "    max_device_memory: 20GiB\n"
    "    output_roots: [/tmp]\n"
    "  gpu:\n"
    "    max_ranks: 64\n"
    "    enforce: all-gpu-steps\n"
    "accounts:\n"
    "  students: {max_ranks: 4, wrap: false, action: kill, model_roots: [/models/small]}\n"
    "qos:\n"
    "  low:\n"
    "    max_host_memory: 50GiB\n"
    "    watch_failure: end\n"
    "    watch_interval: 0.1\n";

static struct policy *policy_of(const char *text)
{
    struct policy *policy;
    struct fl_error e;

    check_ok(policy_parse(text, strlen(text), "/etc/slurm/policy.yaml", &policy, &e), &e);
    return policy;
}

static void the_strictest_counts(void **state)
{
    struct policy *policy = policy_of(site);
    struct policy_decision d;
    (void)state;

    assert_true(policy_asks_job(policy) && policy_asks_gpu(policy));
    policy_decide(policy, &(struct policy_facts){"NVIDIA H100 80GB HBM3", "gpu", "staff", "high"},
                  &d);
    assert_true(d.device_memory.value == 76 * GIB && d.host_memory.value == 100 * GIB);
    assert_string_equal(d.device_memory.source, "policy.yaml:7, GPU H100");
    assert_string_equal(d.host_memory.source, "policy.yaml:3");
    assert_true(d.ranks.value == 64 && d.wrap && d.action == POLICY_REFUSE);
    assert_string_equal(d.ranks.source, "policy.yaml:16, partition gpu");
    assert_true(d.enforce == ENFORCE_GPU_STEPS && d.watch_failure == FAILURE_CONTINUE);
    assert_true(d.watch_interval_ms == 500 && d.watch_grace_ms == 10000);
    assert_true(d.model_root_count == 1 && d.output_root_count == 0);
    // An H200 is allowed more by its section, but not more than all are.
    policy_decide(policy, &(struct policy_facts){"NVIDIA H200", "gpu", "staff", "high"}, &d);
    assert_true(d.device_memory.value == 78 * GIB);
    policy_decide(policy, &(struct policy_facts){"NVIDIA H200", "debug", "students", "low"}, &d);
    assert_true(d.device_memory.value == 20 * GIB && d.ranks.value == 4 && !d.wrap);
    assert_true(d.action == POLICY_KILL && d.host_memory.value == 50 * GIB);
    assert_true(d.watch_failure == FAILURE_END && d.watch_interval_ms == 100);
    assert_true(d.model_root_count == 2 && d.output_root_count == 1);
    assert_string_equal(d.ranks.source, "policy.yaml:19, account students");
    policy_destroy(policy);
}

// What is not known may be any of what the policy names.
static void the_unknown_is_strict(void **state)
{
    struct policy *policy = policy_of(site);
    struct policy_decision d;
    (void)state;

    policy_decide(policy, &(struct policy_facts){0}, &d);
    assert_true(d.device_memory.value == 20 * GIB && d.ranks.value == 4 && !d.wrap);
    assert_true(d.enforce == ENFORCE_GPU_STEPS && d.action == POLICY_KILL);
    policy_decide(policy, &(struct policy_facts){.partition = "gpu"}, &d);
    assert_true(d.device_memory.value == 76 * GIB && d.ranks.value == 4);
    policy_destroy(policy);
    policy = policy_of_cap(5 * GIB, POLICY_WARN, FAILURE_END, 250, "plugstack.conf");
    policy_decide(policy, &(struct policy_facts){0}, &d);
    assert_true(d.device_memory.value == 5 * GIB && !policy_asks_job(policy));
    assert_string_equal(d.device_memory.source, "plugstack.conf");
    assert_true(d.action == POLICY_WARN && d.watch_failure == FAILURE_END &&
                d.watch_grace_ms == 250);
    policy_destroy(policy);
    policy = policy_of("");
    policy_decide(policy, &(struct policy_facts){0}, &d);
    assert_true(!d.device_memory.value && !d.ranks.value && d.wrap && d.enforce == ENFORCE_OPTION);
    policy_destroy(policy);
}

static void roots(void **state)
{
    struct policy *policy = policy_of(site);
    struct policy_decision d;
    (void)state;

    policy_decide(policy, &(struct policy_facts){"x", "debug", "staff", "high"}, &d);
    assert_true(d.model_root_count == 1 && d.model_roots[0].count == 2);
    assert_string_equal(d.model_roots[0].paths[1], "/scratch/models/");
    assert_string_equal(d.model_roots[0].source, "policy.yaml:4");
    assert_true(d.output_root_count == 1 && d.output_roots[0].count == 1);
    assert_string_equal(d.output_roots[0].source, "policy.yaml:14, partition debug");
    policy_destroy(policy);
}

// Of a job of which nothing is known every list counts, however many there are.
static void roots_of_all(void **state)
{
    enum { ACCOUNTS = 60 };
    char *text = memory_zeroed(1 << 14, 1), *at = text;
    struct policy_decision d;
    struct policy *policy;
    (void)state;

    at += sprintf(at, "model_roots: [/models]\naccounts:\n");
    for (int i = 0; i < ACCOUNTS; i++)
        at += sprintf(at, "  a%d: {model_roots: [/models/%d], output_roots: [/o/%d]}\n", i, i, i);
    policy = policy_of(text);
    policy_decide(policy, &(struct policy_facts){0}, &d);
    assert_true(d.model_root_count == ACCOUNTS + 1 && d.output_root_count == ACCOUNTS);
    assert_string_equal(d.model_roots[ACCOUNTS].paths[0], "/models/59");
    policy_decide(policy, &(struct policy_facts){.account = "a40"}, &d);
    assert_true(d.model_root_count == 2 && d.output_root_count == 1);
    assert_string_equal(d.output_roots[0].paths[0], "/o/40");
    policy_destroy(policy);
    free(text);
}

static void refused(void **state)
{
    static const char *const cases[][2] = {
        {"max_device_memry: 1GiB", "p.yaml:1: unknown key 'max_device_memry', did you mean "
                                   "'max_device_memory'?"},
        {"partitons: {}", "p.yaml:1: unknown key 'partitons', did you mean 'partitions'?"},
        {"max_ranks: 1\nxyzzy: 2", "p.yaml:2: unknown key 'xyzzy'"},
        {"partitions:\n  a:\n    gpus: {}", "p.yaml:3: unknown key 'gpus'"},
        {"max_ranks: 1\nmax_ranks: 2", "p.yaml:2: 'max_ranks' is given twice"},
        {"qos:\n  a: {}\n  a: {}", "p.yaml:3: 'a' is given twice"},
        {"max_device_memory: much", "p.yaml:1: max_device_memory: 'much' is not an amount"},
        {"max_device_memory: 0", "max_device_memory: '0' is not an amount of memory above 0"},
        {"max_device_memory: [1]", "max_device_memory: '' is not an amount"},
        {"max_ranks: 0", "p.yaml:1: max_ranks: '0' is not in [1, 65536]"},
        {"max_ranks: 8x", "'8x' is not in"},
        {"wrap: maybe", "p.yaml:1: wrap: 'maybe' is not one of false, true"},
        {"action: shoot", "action: 'shoot' is not one of warn, refuse, kill"},
        {"enforce: all", "enforce: 'all' is not one of option, all-gpu-steps, whole-job"},
        {"watch_failure: x", "'x' is not one of continue, end"},
        {"watch_interval: 2", "watch_interval: '2' is not a number of seconds in [0.05, 1]"},
        {"watch_grace: -1", "watch_grace: '-1' is not a number of seconds in [0, 3600]"},
        {"model_roots: /models", "p.yaml:1: model_roots: write a list of folders"},
        {"output_roots: []", "p.yaml:1: output_roots: write at least one folder"},
        {"qos:\n  a: {model_roots: []}", "p.yaml:2: model_roots: write at least one folder"},
        {"model_roots: [models]", "'models' is not an absolute path"},
        {"output_roots: [/a/../b]", "'/a/../b' is not an absolute path without :, . and .."},
        {"output_roots: ['/a:b']", "'/a:b' is not an absolute path"},
        {"partitions: [a]", "p.yaml:1: partitions: write a name and below it keys and values"},
        {"partitions:\n  a: 3", "p.yaml:2: partition 'a': write keys and values"},
        {"[1, 2]", "p.yaml:1: not keys and values"},
        {"a: &x 1\nb: *x", "p.yaml:1: anchors, aliases and tags are not for a policy"},
        {"max_ranks: !!int 3", "p.yaml:1: anchors, aliases and tags"},
        {"max_ranks: 1\n---\nmax_ranks: 2", "p.yaml: more than one document"},
        {"max_ranks: [", "p.yaml:2: not YAML: "},
        {"? [a]\n: b", "p.yaml:1: a key must be a word"},
        {"\xff\xfe: 1", "not YAML"},
    };
    struct policy *policy;
    struct fl_error e;
    char *large = memory_zeroed(POLICY_BYTES_MAX + 2, 1);
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_error(policy_parse(cases[i][0], strlen(cases[i][0]), "p.yaml", &policy, &e), &e,
                    cases[i][1]);
        assert_null(policy);
    }
    check_error(policy_parse("max_ranks: 1\0", 13, "p.yaml", &policy, &e), &e, "holds a NUL byte");
    memset(large, '#', POLICY_BYTES_MAX + 1);
    check_error(policy_parse(large, POLICY_BYTES_MAX + 1, "p.yaml", &policy, &e), &e,
                "p.yaml: more than 65536 bytes");
    assert_int_equal(e.code, -EFBIG);
    free(large);
}

// More sections, and more folders, than there is room for.
static void bounds(void **state)
{
    char *text = memory_zeroed(1 << 16, 1), *at = text;
    struct policy *policy;
    struct fl_error e;
    (void)state;

    at += sprintf(at, "qos:\n");
    for (int i = 0; i < POLICY_SECTIONS; i++)
        at += sprintf(at, "  q%d: {}\n", i);
    check_error(policy_parse(text, strlen(text), "p.yaml", &policy, &e), &e,
                "more than 127 sections");
    at = text + sprintf(text, "model_roots:\n");
    for (int i = 0; i <= POLICY_ROOTS; i++)
        at += sprintf(at, "- /m%d\n", i);
    check_error(policy_parse(text, strlen(text), "p.yaml", &policy, &e), &e,
                "p.yaml:66: model_roots: more than 64 folders");
    memset(text, '[', 20000); // deeper than any parser's stack should go
    text[20000] = 0;
    check_error(policy_parse(text, strlen(text), "p.yaml", &policy, &e), &e, "p.yaml:");
    free(text);
}

static void several_partitions(void **state)
{
    static const char text[] = "partitions: {a: {max_ranks: 2}, b: {max_ranks: 1}}\n"
                               "gpus: {H100: {max_ranks: 3}}\naccounts: {x: {max_ranks: 4}}\n";
    static const struct {
        const char *partition;
        uint64_t ranks;
    } cases[] = {{"a", 2}, {"b,a", 1}, {"a,c", 2}, {"c", 0}, {"ab", 0}, {"", 0}, {",", 0}};
    struct policy_decision d;
    struct policy *policy;
    struct fl_error e;
    char words[64];
    (void)state;

    check_ok(policy_parse(text, strlen(text), "p.yaml", &policy, &e), &e);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        policy_decide(policy, &(struct policy_facts){"none", cases[i].partition, "y", "z"}, &d);
        assert_int_equal(d.ranks.value, cases[i].ranks);
    }
    policy_unknown(policy, &(struct policy_facts){0}, words, sizeof words);
    assert_string_equal(words, "GPU H100; partition a, b; account x");
    policy_unknown(policy, &(struct policy_facts){.partition = "a"}, words, sizeof words);
    assert_string_equal(words, "GPU H100; account x");
    policy_unknown(policy, &(struct policy_facts){"g", "p", "a", "q"}, words, sizeof words);
    assert_string_equal(words, "");
    policy_unknown(policy, &(struct policy_facts){0}, words, 20);
    assert_string_equal(words, "GPU H100; partit...");
    policy_destroy(policy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_strictest_counts),
        cmocka_unit_test(the_unknown_is_strict),
        cmocka_unit_test(roots),
        cmocka_unit_test(roots_of_all),
        cmocka_unit_test(refused),
        cmocka_unit_test(bounds),
        cmocka_unit_test(several_partitions),
    };

    return cmocka_run_group_tests_name("policy", tests, NULL, NULL);
}
