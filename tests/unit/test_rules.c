// SPDX-License-Identifier: Apache-2.0
// plugin/rules: whose file a policy may be, and what it decides where nobody tells of the job. As
// root, like the plugin; skipped otherwise.
#include "unit/check.h"

#include "base/memory.h"
#include "plugin/rules.h"
#include "plugin/trusted.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/var/tmp/fl-rules-XXXXXX", path[64];

static void put(const char *text, size_t bytes)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, 0644), 0);
}

static int load(struct rules *rules, struct fl_error *e)
{
    const struct settings settings = {.policy = path, .account = "/nonexistent"};

    return rules_load(&settings, rules, e);
}

static void refused(const char *words)
{
    struct rules rules;
    struct fl_error e;

    check_error(load(&rules, &e), &e, words);
    assert_null(rules.policy);
    rules_clear(&rules);
}

static void whose_file(void **state)
{
    static const char text[] = "max_ranks: 4\n";
    char *large = memory_zeroed(POLICY_BYTES_MAX + 2, 1), other[80];
    struct rules rules;
    struct fl_error e;
    (void)state;

    put(text, strlen(text));
    check_ok(load(&rules, &e), &e);
    assert_non_null(rules.policy);
    rules_clear(&rules);
    assert_int_equal(chmod(path, 0664), 0);
    refused("others than root may replace it; chown root and chmod go-w");
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(chown(path, 65534, 0), 0);
    refused("others than root may replace it");
    assert_int_equal(chown(path, 0, 0), 0);
    assert_int_equal(chmod(folder, 0777), 0);
    refused("others than root may change this folder");
    assert_int_equal(chmod(folder, 01777), 0); // as /tmp
    check_ok(load(&rules, &e), &e);
    rules_clear(&rules);
    assert_int_equal(chmod(folder, 0755), 0);
    snprintf(other, sizeof other, "%s.real", path);
    assert_int_equal(rename(path, other), 0);
    refused("No such file or directory");
    assert_int_equal(symlink(other, path), 0);
    refused("not a file (a link to one does not do)");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0644), 0);
    refused("not a file");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0755), 0);
    refused("not a file");
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(unlink(other), 0);
    put("max_ranks: 4\0\n", 14);
    refused("holds a NUL byte");
    memset(large, '#', POLICY_BYTES_MAX + 1);
    put(large, POLICY_BYTES_MAX + 1);
    refused("more than 65536 bytes");
    put(large, POLICY_BYTES_MAX);
    check_ok(load(&rules, &e), &e);
    rules_clear(&rules);
    free(large);
}

static void opened(const char *name, const char *words)
{
    struct fl_error e = {0};
    int fd = -1;

    if (words)
        check_error(trusted_open(name, &fd, &e), &e, words);
    else
        check_ok(trusted_open(name, &fd, &e), &e);
    if (fd >= 0) {
        assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
        close(fd);
    }
}

static int descriptors(void)
{
    int count = 0;

    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

// Every folder on the way is held by its descriptor and looked at, and no link is followed.
static void folders_one_by_one(void **state)
{
    char sub[80], deep[96], link_path[80], text[400];
    int before = descriptors();
    (void)state;

    snprintf(sub, sizeof sub, "%s/sub", folder);
    snprintf(deep, sizeof deep, "%s/policy.yaml", sub);
    snprintf(link_path, sizeof link_path, "%s/link", folder);
    assert_int_equal(mkdir(sub, 0755), 0);
    close(open(deep, O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    opened(deep, NULL);
    snprintf(text, sizeof text, "//%s///sub//policy.yaml", folder + 1);
    opened(text, NULL);
    assert_int_equal(symlink("sub", link_path), 0); // though it is root's, and leads to root's
    snprintf(text, sizeof text, "%s/policy.yaml", link_path);
    opened(text, "link: a link; write the folder it leads to");
    opened(link_path, "not a file (a link to one does not do)");
    snprintf(text, sizeof text, "%s/../sub/policy.yaml", sub);
    opened(text, "a path without . and .. is needed");
    snprintf(text, sizeof text, "%s/./policy.yaml", sub);
    opened(text, "a path without . and ..");
    opened("policy.yaml", "not an absolute path");
    opened("", "not an absolute path");
    opened("/", "/: not a file");
    opened(sub, "not a file");
    snprintf(text, sizeof text, "%s/policy.yaml/x", sub);
    opened(text, "policy.yaml: Not a directory");
    memset(text, 'x', sizeof text - 1);
    text[0] = '/';
    text[sizeof text - 1] = 0;
    opened(text, "a name too long");
    assert_int_equal(chown(sub, 65534, 0), 0);
    opened(deep, "sub: others than root may change this folder");
    assert_int_equal(chown(sub, 0, 0), 0);
    assert_int_equal(chmod(sub, 0775), 0);
    opened(deep, "sub: others than root may change this folder");
    assert_int_equal(chmod(sub, 0755), 0);
    opened(deep, NULL);
    assert_int_equal(descriptors(), before);
    unlink(link_path);
    unlink(deep);
    rmdir(sub);
}

// The program that would ask slurmctld is not there: any of the limits may be the job's.
static void nobody_tells(void **state)
{
    static const char text[] = "partitions: {a: {max_device_memory: 3GiB}, b: {max_ranks: 2}}\n";
    const struct settings settings = {.policy = path, .account = "/nonexistent"};
    struct rules rules;
    struct fl_error e;
    (void)state;

    put(text, strlen(text));
    check_ok(load(&rules, &e), &e);
    assert_false(rules_govern(&rules));
    rules_decide_node(&rules, &settings, 77);
    assert_true(rules.unknown.code != 0);
    assert_non_null(strstr(rules.unknown.text, "so the strictest of the policy's limits apply: "));
    assert_non_null(strstr(rules.unknown.text, "/nonexistent"));
    assert_true(rules.decision.device_memory.value == 3ull << 30 &&
                rules.decision.ranks.value == 2);
    assert_non_null(
        strstr(rules.decision.device_memory.source, "partition a (the job is not known)"));
    // The client leaves aside what it does not know.
    rules_decide_client(&rules, NULL, NULL, NULL);
    assert_true(!rules.decision.device_memory.value && !rules.decision.ranks.value);
    rules_decide_client(&rules, "b", NULL, NULL);
    assert_true(!rules.decision.device_memory.value && rules.decision.ranks.value == 2);
    assert_string_equal(rules.node_only, "");
    // Of several partitions it does not know which.
    rules_decide_client(&rules, "a,b", NULL, NULL);
    assert_true(!rules.decision.device_memory.value && !rules.decision.ranks.value);
    assert_string_equal(rules.node_only, "partition a, b");
    rules_clear(&rules);
    put("qos: {low: {enforce: whole-job}}\n", 33);
    check_ok(load(&rules, &e), &e);
    assert_true(rules_govern(&rules));
    rules_clear(&rules);
}

static void a_cap_alone(void **state)
{
    const struct settings settings = {.max_device_memory = 1 << 30,
                                      .action = WATCH_WARN,
                                      .on_failure = WATCH_END,
                                      .grace_ms = 700};
    struct rules rules;
    struct fl_error e;
    (void)state;

    check_ok(rules_load(&settings, &rules, &e), &e);
    rules_decide_node(&rules, &settings, 1);
    assert_true(rules.decision.device_memory.value == 1 << 30 && !rules.unknown.code);
    assert_true(rules.decision.action == POLICY_WARN && rules.decision.watch_grace_ms == 700);
    assert_true(rules.decision.watch_failure == FAILURE_END);
    assert_string_equal(rules.decision.device_memory.source, "plugstack.conf");
    rules_clear(&rules);
    check_ok(rules_load(&(struct settings){0}, &rules, &e), &e);
    rules_decide_node(&rules, &settings, 1);
    assert_true(!rules.policy && !rules.decision.device_memory.value && rules.decision.wrap);
    rules_clear(&rules);
}

static int folder_make(void **state)
{
    (void)state;
    if (!mkdtemp(folder) || chmod(folder, 0755))
        return -1;
    snprintf(path, sizeof path, "%s/policy.yaml", folder);
    return 0;
}

static int folder_remove(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whose_file),
        cmocka_unit_test(folders_one_by_one),
        cmocka_unit_test(nobody_tells),
        cmocka_unit_test(a_cap_alone),
    };

    if (geteuid()) {
        puts("1..0 # SKIP only root's files are policies: run it as root");
        return 0;
    }
    return cmocka_run_group_tests_name("rules", tests, folder_make, folder_remove);
}
