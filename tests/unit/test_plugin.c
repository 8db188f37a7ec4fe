// SPDX-License-Identifier: Apache-2.0
// plugin/: the parts that need no Slurm: command words, stamps, settings, values, the helper's
// start.
#include "unit/check.h"

#include "plugin/helper.h"
#include "plugin/settings.h"
#include "plugin/stamp.h"
#include "plugin/values.h"
#include "plugin/words.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORDS(literal) words_of(literal, sizeof literal)

static struct words words_of(const char *literal, size_t size)
{
    struct words words;
    struct fl_error e;
    char *bytes = malloc(size);

    memcpy(bytes, literal, size);
    check_ok(words_split(bytes, size, &words, &e), &e);
    return words;
}

static void command_words(void **state)
{
    struct words w = WORDS("srun\0-n2\0--fp8-lo\0--ntasks=4\0job.yaml\0--bcast");
    struct fl_error e;
    (void)state;
    assert_int_equal(w.argc, 6);
    assert_string_equal(w.argv[4], "job.yaml");
    assert_null(w.argv[6]);
    assert_string_equal(words_option(&w, 4, "fp8-lora"), "--fp8-lo");
    assert_null(words_option(&w, 2, "fp8-lora"));
    assert_null(words_option(&w, 4, "bcast"));
    assert_non_null(words_option(&w, INT_MAX, "bcast"));
    assert_int_equal(words_tasks(&w, 4), 4);
    assert_int_equal(words_tasks(&w, 2), 2);
    words_free(&w);
    w = WORDS("srun\0--fp8-lora=x\0--\0--multi-prog\0-n\0"
              "3");
    assert_string_equal(words_option(&w, INT_MAX, "fp8-lora"), "--fp8-lora=x");
    assert_null(words_option(&w, INT_MAX, "multi-prog")); // the job's own words
    assert_int_equal(words_tasks(&w, INT_MAX), 0);
    words_free(&w);
    w = WORDS("srun\0-n\0"
              "3\0-N\0"
              "2\0--ntasks\0"
              "8\0-nx\0-n\0");
    assert_int_equal(words_tasks(&w, 3), 3);
    assert_int_equal(words_tasks(&w, INT_MAX), 8);
    assert_string_equal(words_value(&w, INT_MAX, "nodes", 3, 'N'), "2");
    assert_null(words_value(&w, INT_MAX, "partition", 3, 'p'));
    assert_null(words_option(&w, INT_MAX, "fp8-lora"));
    words_free(&w);
    w = WORDS("srun\0--fp8-lora-other\0--fp8-loraX\0-fp8-lora\0--n");
    assert_null(words_option(&w, INT_MAX, "fp8-lora"));
    assert_int_equal(words_tasks(&w, INT_MAX), 0);
    words_free(&w);
    w = WORDS("srun\0--cpu-bind=none\0--cpu-b\0cores\0--cpu-freq=1\0--\0--cpu-bind=q");
    assert_string_equal(words_value(&w, INT_MAX, "cpu-bind", 5, 0), "cores");
    assert_string_equal(words_value(&w, 2, "cpu-bind", 5, 0), "none");
    assert_null(words_value(&w, INT_MAX, "cpu_bind", 4, 0));
    words_free(&w);
    check_error(words_split(strdup("x"), 1, &w, &e), &e, "does not end");
    check_ok(words_read(&w, &e), &e);
    assert_non_null(strstr(w.argv[0], "test_plugin"));
    words_free(&w);
}

static void stamps(void **state)
{
    static const char *const bad[] = {
        "",           "1",          "1.2.3.4",     "1.2.3.4.5.6",
        "1.2.3.4.0 ", "-1.2.3.4.0", "1..3.4.0",    "4294967296.0.1.1.0",
        " 1.2.3.4.0", "1.2.3.4.",   "0x1.2.3.4.0", "99999999999999999999.0.0.0.0"};
    struct stamp in = {4294967295u, 0, 128, 8, STAMP_SHOW_PLACEMENT | STAMP_CPU_BIND}, out;
    char text[STAMP_MAX];
    (void)state;
    stamp_format(&in, text);
    assert_string_equal(text, "4294967295.0.128.8.3");
    assert_int_equal(stamp_parse(text, &out), 0);
    assert_memory_equal(&in, &out, sizeof in);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(stamp_parse(bad[i], &out), -EINVAL);
}

static void allocator(const char *settings, const char *expected)
{
    char out[64];

    assert_int_equal(values_allocator(settings, out, sizeof out), 0);
    assert_string_equal(out, expected);
}

static void values(void **state)
{
    char small[20];
    (void)state;
    allocator("", "expandable_segments:True");
    allocator("max_split_size_mb:64", "max_split_size_mb:64,expandable_segments:True");
    allocator("expandable_segments:False", "expandable_segments:False");
    allocator("a:1, expandable_segments:True,b:2", "a:1, expandable_segments:True,b:2");
    allocator("no_expandable_segments:1", "no_expandable_segments:1,expandable_segments:True");
    assert_int_equal(values_allocator("", small, sizeof small), -ENAMETOOLONG);
    for (uint32_t job = 0; job < 5000; job++) {
        int port = values_port(job * 858993u, job);
        assert_true(port >= VALUES_PORT_FIRST && port < VALUES_PORT_FIRST + VALUES_PORT_COUNT);
        assert_int_not_equal(values_port(job, 0), values_port(job, 1));
        assert_int_not_equal(values_port(job, 0), values_port(job + 1, 0));
    }
    assert_true(values_binds("none"));
    assert_true(values_binds("verbose,cores"));
    assert_true(values_binds("map_cpu:0,1"));
    assert_true(values_binds("quiet,mask_cpu:0x1,0x2"));
    assert_false(values_binds("verbose"));
    assert_false(values_binds("v,q,QUIET"));
    assert_false(values_binds(""));
    assert_int_equal(values_threads(4, 0, 64), 4);
    assert_int_equal(values_threads(4, 8, 64), 8);
    assert_int_equal(values_threads(8, 0, 2), 2);
    assert_int_equal(values_threads(0, 0, 0), 1);
    assert_int_equal(values_threads(UINT32_MAX, 0, 4), 1);
}

// A file of root's in a folder that is not, straight or by a link of root's.
static void folders_above(const char *base)
{
    char folder[PATH_MAX], link[PATH_MAX], file[PATH_MAX], linked[PATH_MAX];
    struct fl_error e;
    int fd;

    snprintf(folder, sizeof folder, "%.200s.folder", base);
    snprintf(link, sizeof link, "%.200s.folder-link", base);
    snprintf(file, sizeof file, "%.220s/program", folder);
    snprintf(linked, sizeof linked, "%.220s/program", link);
    assert_int_equal(mkdir(folder, 0755), 0);
    assert_int_equal(symlink(folder, link), 0);
    fd = open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0755);
    assert_true(fd >= 0);
    close(fd);
    check_ok(settings_trusted(file, &e), &e);
    check_ok(settings_trusted(linked, &e), &e);
    assert_int_equal(chmod(folder, 0777), 0);
    check_error(settings_trusted(file, &e), &e, "others than root may change this folder");
    check_error(settings_trusted(linked, &e), &e, "others than root may change this folder");
    assert_int_equal(chmod(folder, 01777), 0);
    check_ok(settings_trusted(file, &e), &e);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(chown(folder, 65534, 65534), 0);
    check_error(settings_trusted(file, &e), &e, "others than root may change this folder");
    unlink(file);
    rmdir(folder);
    unlink(link);
}

static void cap_settings(void)
{
    static const struct {
        const char *argument, *says;
    } refused[] = {
        {"max_device_memory=lots", "plugstack.conf: max_device_memory: "},
        {"max_device_memory=", "plugstack.conf: max_device_memory: "},
        {"action=shoot", "'action=shoot': expected action=refuse, kill or warn"},
        {"action=", "'action=': expected"},
        {"on_failure=stop", "'on_failure=stop': expected"},
        {"grace=-1", "'grace=-1': expected"},
        {"grace=3601", "grace=SECONDS up to 3600"},
        {"grace=5s", "'grace=5s': expected"},
        {"grace=", "'grace=': expected"},
        {"grace=nan", "'grace=nan': expected"},
        {"nvml=libnvidia-ml.so.1", "argument 'nvml=libnvidia-ml.so.1' is not core=/PATH"},
        {"watch=watch", "argument 'watch=watch' is not core=/PATH"},
        {"ration=1", "argument 'ration=1' is not core=/PATH"},
    };
    char *all[] = {
        (char *)"watch=/w",    (char *)"nvml=/n",        (char *)"max_device_memory=2GiB",
        (char *)"action=warn", (char *)"on_failure=end", (char *)"grace=1.5"};
    struct settings s;
    struct fl_error e;
    check_ok(settings_parse(0, NULL, &s, &e), &e);
    assert_string_equal(s.watch, FL_WATCH_PATH);
    assert_null(s.nvml);
    assert_int_equal(s.max_device_memory, 0);
    assert_int_equal(s.action, WATCH_REFUSE);
    assert_int_equal(s.on_failure, WATCH_CONTINUE);
    assert_int_equal(s.grace_ms, SETTINGS_GRACE_MS);
    check_ok(settings_parse(6, all, &s, &e), &e);
    assert_string_equal(s.watch, "/w");
    assert_string_equal(s.nvml, "/n");
    assert_int_equal(s.max_device_memory, UINT64_C(2) << 30);
    assert_int_equal(s.action, WATCH_WARN);
    assert_int_equal(s.on_failure, WATCH_END);
    assert_int_equal(s.grace_ms, 1500);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char *argument = (char *)refused[i].argument;
        check_error(settings_parse(1, &argument, &s, &e), &e, refused[i].says);
    }
}

static void settings(void **state)
{
    char *both[] = {(char *)"account=/a", (char *)"core=/c"}, *relative[] = {(char *)"core=c"};
    char path[] = "/tmp/fl-plugin-XXXXXX", link[40];
    struct settings s;
    struct fl_error e;
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    close(fd);
    check_ok(settings_parse(0, NULL, &s, &e), &e);
    assert_string_equal(s.core, FL_CORE_PATH);
    assert_string_equal(s.account, FL_ACCOUNT_PATH);
    check_ok(settings_parse(2, both, &s, &e), &e);
    assert_string_equal(s.core, "/c");
    assert_string_equal(s.account, "/a");
    check_error(settings_parse(1, relative, &s, &e), &e, "argument 'core=c' is not core=/PATH");
    cap_settings();
    check_ok(settings_trusted("/usr/bin/true", &e), &e);
    check_error(settings_trusted("/nonexistent", &e), &e, "/nonexistent: No such file");
    check_error(settings_trusted("/usr/bin", &e), &e, "not an executable file");
    check_error(settings_trusted(path, &e), &e, "not an executable file");
    assert_int_equal(chmod(path, 0777), 0);
    check_error(settings_trusted(path, &e), &e, "others than root may replace it");
    if (!geteuid()) {
        assert_int_equal(chmod(path, 0755), 0);
        check_ok(settings_trusted(path, &e), &e);
        assert_int_equal(chown(path, 65534, 65534), 0);
        check_error(settings_trusted(path, &e), &e, "others than root may replace it");
        folders_above(path);
    }
    snprintf(link, sizeof link, "%s.link", path);
    assert_int_equal(symlink("/usr/bin/true", link), 0);
    check_error(settings_trusted(link, &e), &e, "not an executable file");
    check_error(settings_trusted_file(link, &e), &e, "not a file (a link to one does not do)");
    check_error(settings_trusted_file("/usr/bin", &e), &e, "not a file");
    check_ok(settings_trusted_file("/etc/passwd", &e), &e); // not executable
    unlink(link);
    unlink(path);
}

static int shell(const char *script, int fd, struct fl_error *e)
{
    char *argv[] = {(char *)"sh", (char *)"-c", (char *)script, NULL};

    e->text[0] = 0;
    return helper_run("/bin/sh", argv, true, &fd, fd >= 0 ? 1 : 0, e);
}

// Of what the daemon has, the helper gets the record and the daemon's own SLURM_CONF, nothing else.
static void helper_gets_little(void **state)
{
    struct fl_error e;
    struct stat s;
    int fd = memfd_create("record", 0), extra = dup2(fd, 40);
    (void)state;
    assert_int_equal(write(fd, "hello", 5), 5);
    signal(SIGTERM, SIG_IGN);
    setenv("SLURM_CONF", "/etc/some.conf", 1);
    setenv("LD_PRELOAD_LIKE", "bad", 1);
    check_error(shell("env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= | tr '\\n' ' ' >&2", fd, &e), &e,
                "/bin/sh: SLURM_CONF=/etc/some.conf ");
    assert_null(strstr(e.text, "LD_PRELOAD_LIKE"));
    unsetenv("SLURM_CONF");
    check_error(shell("env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= | tr '\\n' ' ' >&2", fd, &e), &e,
                "ended without a word");
    check_error(shell("cat /proc/self/fd/3 >&2; for f in /proc/$$/fd/*; do printf ' %s' ${f##*/} "
                      ">&2; done; exit 1",
                      fd, &e),
                &e, "hello 0 1 2 3");
    assert_null(strstr(e.text, " 40")); // 4 is the listing itself
    assert_null(strstr(e.text, " 5"));
    check_error(shell("kill -TERM $$; sleep 1; exit 0", -1, &e), &e, "ended without a word");
    check_error(shell("[ -e /proc/self/fd/3 ] && echo open >&2; exit 1", -1, &e), &e,
                "ended without a word");
    check_ok(shell("(sleep 0.1; echo ok >&2) & exit 7", fd, &e), &e);
    setenv("SLURM_CONF", "/etc/some.conf", 1);
    check_error(helper_run("/usr/bin/env",
                           (char *[]){(char *)"env", (char *)"sh", (char *)"-c",
                                      (char *)"echo conf=$SLURM_CONF >&2", NULL},
                           false, NULL, 0, &e),
                &e, "/usr/bin/env: conf=");
    assert_null(strstr(e.text, "some.conf"));
    unsetenv("SLURM_CONF");
    check_error(helper_run("/nonexistent", (char *[]){(char *)"x", NULL}, true, &fd, 1, &e), &e,
                "/nonexistent: ");
    assert_int_equal(fstat(fd, &s), 0); // still ours
    signal(SIGTERM, SIG_DFL);
    close(extra);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(command_words),
        cmocka_unit_test(stamps),
        cmocka_unit_test(values),
        cmocka_unit_test(settings),
        cmocka_unit_test(helper_gets_little),
    };
    return cmocka_run_group_tests_name("plugin", tests, NULL, NULL);
}
