// SPDX-License-Identifier: Apache-2.0
// plugin/nvml and plugin/watch: the driver's library, and the program that a slurmstepd starts.
#include "unit/watch_tree.h"

#include "plugin/nvml.h"
#include "plugin/settings.h"
#include "plugin/watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GIB (UINT64_C(1) << 30)

// ---- the driver's library

static void values_put(const char *text)
{
    char path[128];

    snprintf(path, sizeof path, "%s/nvml.values", tree);
    text_put(path, text, strlen(text));
}

// Copies the library that this build made beside its values; a descriptor of it, by which it finds
// them: to be closed behind nvml_close.
static int library_open(const char *name)
{
    char from[PATH_MAX], to[128], bytes[65536];
    int in, out;
    ssize_t got;

    tree_clear();
    snprintf(from, sizeof from, "%s/tests/slurm/.libs/%s.so", getenv("FL_BUILD_DIR"), name);
    snprintf(to, sizeof to, "%s/libnvidia-ml.so.1", tree);
    in = open(from, O_RDONLY);
    out = open(to, O_WRONLY | O_CREAT, 0755);
    assert_true(in >= 0 && out >= 0);
    while ((got = read(in, bytes, sizeof bytes)) > 0)
        assert_int_equal(write(out, bytes, (size_t)got), got);
    close(in);
    close(out);
    in = open(to, O_RDONLY | O_CLOEXEC);
    assert_true(in >= 0);
    return in;
}

#define GPUS "gpu GPU-aaaa\ngpu GPU-bbbb\n"

static void library_samples(void **state)
{
    static const char *const names[] = {"nvml", "nvml_old"};
    struct nvml_use uses[8];
    struct nvml *nvml;
    struct fl_error e;
    size_t count;
    (void)state;
    for (int i = 0; i < 2; i++) {
        int fd = library_open(names[i]);
        values_put(GPUS "use 0 10 100\nuse 1 10 300\nuse 0 11 50\nuse 0 11 60\ndraw 0 10 120\n"
                        "draw 1 12 7\nuse 1 13 ?\n");
        check_ok(nvml_open(fd, &nvml, &e), &e);
        assert_string_equal(nvml_uuid(nvml, 1), "GPU-bbbb");
        assert_string_equal(nvml_uuid(nvml, 2), "");
        check_ok(nvml_sample(nvml, uses, 8, &count, &e), &e);
        assert_int_equal(count, 5);
        assert_int_equal(uses[0].pid, 10); // computes and draws: once, the larger number
        assert_int_equal(uses[0].bytes, 120);
        assert_int_equal(uses[1].pid, 11); // two instances of one device
        assert_int_equal(uses[1].bytes, 110);
        assert_int_equal(uses[2].device, 1);
        assert_int_equal(uses[2].bytes, 300);
        assert_true(uses[3].bytes == NVML_UNKNOWN);
        assert_int_equal(uses[4].pid, 12);
        check_error(nvml_sample(nvml, uses, 4, &count, &e), &e, "more than 4 processes");
        values_put(GPUS "fail compute 999\n");
        check_error(nvml_sample(nvml, uses, 8, &count, &e), &e, "NVML: GPU-aaaa: error 999");
        values_put(GPUS "fail compute 15\nfail graphics 15\n"); // lost: nothing is there
        check_ok(nvml_sample(nvml, uses, 8, &count, &e), &e);
        assert_int_equal(count, 0);
        values_put(GPUS "fail graphics 3\nuse 1 5 5\n"); // a device without graphics
        check_ok(nvml_sample(nvml, uses, 8, &count, &e), &e);
        assert_int_equal(count, 1);
        values_put(GPUS "share 0 14 40\n"); // of MPS, which the older library does not tell
        check_ok(nvml_sample(nvml, uses, 8, &count, &e), &e);
        assert_int_equal(count, i ? 0 : 1);
        values_put(GPUS "fail mps 3\nuse 1 5 5\n");
        check_ok(nvml_sample(nvml, uses, 8, &count, &e), &e);
        assert_int_equal(count, 1);
        values_put(GPUS "fail graphics 4\n");
        check_error(nvml_sample(nvml, uses, 8, &count, &e), &e, "NVML: GPU-aaaa: error 4");
        nvml_close(nvml);
        close(fd);
    }
    nvml_close(NULL);
}

static void library_refusals(void **state)
{
    int fd = library_open("nvml"), other;
    char path[128];
    struct nvml *nvml = NULL;
    struct fl_error e;
    (void)state;
    values_put(GPUS "driver 535.86.10\n");
    check_error(nvml_open(fd, &nvml, &e), &e, "driver 535.86.10 lays out its processes");
    values_put(GPUS "driver 535.98\n");
    check_ok(nvml_open(fd, &nvml, &e), &e);
    nvml_close(nvml);
    values_put(GPUS "fail nvmlInit_v2 9\n");
    check_error(nvml_open(fd, &nvml, &e), &e, "NVML: cannot start: error 9");
    values_put(GPUS "fail nvmlDeviceGetCount_v2 9\n");
    check_error(nvml_open(fd, &nvml, &e), &e, "NVML: the number of GPUs: error 9");
    values_put(GPUS "fail nvmlDeviceGetUUID 9\n");
    check_error(nvml_open(fd, &nvml, &e), &e, "NVML: a GPU: error 9");
    values_put(GPUS "fail nvmlSystemGetDriverVersion 9\n");
    check_error(nvml_open(fd, &nvml, &e), &e, "NVML: the driver's version: error 9");
    close(fd);
    snprintf(path, sizeof path, "%s/text", tree);
    text_put(path, "no library", 10);
    other = open(path, O_RDONLY);
    check_error(nvml_open(other, &nvml, &e), &e, "NVML: /proc/self/fd/");
    close(other);
    snprintf(path, sizeof path, "%s/tests/slurm/.libs/hooks.so", getenv("FL_BUILD_DIR"));
    other = open(path, O_RDONLY);
    assert_true(other >= 0);
    check_error(nvml_open(other, &nvml, &e), &e, "NVML: "); // it wants Slurm's symbols
    close(other);
}

static void library_limits(void **state)
{
    int fd = library_open("nvml");
    struct nvml *nvml;
    struct fl_error e;
    char path[128], line[256];
    FILE *f;
    (void)state;
    values_put(GPUS);
    check_ok(nvml_open(fd, &nvml, &e), &e);
    check_ok(nvml_limit(nvml, "/sys/fs/cgroup/a/user/task_0", 64 * GIB, &e), &e);
    snprintf(path, sizeof path, "%s/nvml.limits", tree);
    f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    assert_string_equal(line, "GPU-aaaa /sys/fs/cgroup/a/user/task_0 0 68719476736\n");
    assert_non_null(fgets(line, sizeof line, f));
    assert_string_equal(line, "GPU-bbbb /sys/fs/cgroup/a/user/task_0 0 68719476736\n");
    assert_null(fgets(line, sizeof line, f));
    fclose(f);
    values_put(GPUS "fail nvmlDeviceSetMemoryLimits_v1 3\n");
    check_error(nvml_limit(nvml, "/sys/fs/cgroup/b", GIB, &e), &e, "/sys/fs/cgroup/b: error 3");
    values_put(GPUS "fail nvmlDeviceGetMemoryLimits_v1 3\n");
    check_error(nvml_limit(nvml, "/sys/fs/cgroup/b", GIB, &e), &e, "/sys/fs/cgroup/b: error 3");
    values_put("gpu GPU-a b\n"); // its own limits cannot be read back
    check_error(nvml_limit(nvml, "/sys/fs/cgroup/c", GIB, &e), &e, "was set, ");
    nvml_close(nvml);
    close(fd);
    fd = library_open("nvml_old");
    values_put(GPUS);
    check_ok(nvml_open(fd, &nvml, &e), &e);
    assert_int_equal(nvml_limit(nvml, "/sys/fs/cgroup/a", GIB, &e), -ENOSYS);
    nvml_close(nvml);
    close(fd);
}

// ---- the program

static char program[PATH_MAX], library[128];

static struct watch_request request_of(enum watch_action action, enum watch_failure on_failure)
{
    return (struct watch_request){.program = program,
                                  .nvml = library,
                                  .job = 77,
                                  .step = 2,
                                  .ranks = 4,
                                  .uid = getuid(),
                                  .stepd = getpid(),
                                  .cap_bytes = GIB,
                                  .interval_ms = 50,
                                  .grace_ms = 100,
                                  .action = action,
                                  .on_failure = on_failure,
                                  .source = "a test"};
}

static void requests(void **state)
{
    struct watch *watch = NULL;
    struct fl_error e;
    (void)state;
#define REFUSED(field, value, text)                                                                \
    do {                                                                                           \
        struct watch_request r = request_of(WATCH_KILL, WATCH_END);                                \
        r.field = value;                                                                           \
        check_error(watch_start(&r, &watch, &e), &e, text);                                        \
    } while (0)
    REFUSED(interval_ms, 0, "a sample every 0 ms, expected 1 to 1000");
    REFUSED(interval_ms, 1001, "a sample every 1001 ms");
    REFUSED(grace_ms, WATCH_GRACE_MAX_MS + 1, "a grace of 3600001 ms, expected at most 3600000");
    REFUSED(action, WATCH_ACTIONS, "action 3");
    REFUSED(on_failure, WATCH_FAILURES, "on failure 2");
    REFUSED(program, "/nonexistent/watch", "/nonexistent/watch: No such file");
    REFUSED(program, "/proc/self/status", "not an executable file");
    assert_null(watch);
    watch_stop(NULL);
}

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static void rank_until(const struct watch *watch, uint32_t rank, struct record_rank *slot,
                       enum watch_state wanted)
{
    for (int i = 0; i < 200; i++) {
        if (watch_rank(watch, rank, slot) && slot->watch == wanted)
            return;
        pause_ms(50);
    }
    fail_msg("rank %u is not under watch %d", rank, (int)wanted);
}

static pid_t rank_fork(void)
{
    pid_t child = fork();

    if (!child) {
        alarm(60);
        pause();
        _exit(0);
    }
    return child;
}

// In slurmstepd's place: this program. Its standard error gets what the step's would.
static void program_watches(void **state)
{
    struct watch_request request = request_of(WATCH_KILL, WATCH_CONTINUE);
    char text[256], told[1024] = "", path[] = "/tmp/fl-watch-told-XXXXXX";
    struct watch *watch = NULL;
    struct record_rank slot;
    struct fl_error e;
    uint32_t rank;
    int status, saved, file;
    pid_t child;
    (void)state;
    snprintf(program, sizeof program, "%s/fp8-lora-watch", getenv("FL_BUILD_DIR"));
    close(library_open("nvml"));
    snprintf(library, sizeof library, "%s/libnvidia-ml.so.1", tree);
    if (pidfds_missing() || geteuid() || settings_trusted(program, &e) ||
        settings_trusted_file(library, &e))
        skip();
    values_put(GPUS);
    check_ok(watch_start(&request, &watch, &e), &e);
    assert_false(watch_rank(watch, 2, &slot)); // no rank was told
    assert_false(watch_lost(watch));
    child = rank_fork();
    watch_task(watch, child, 2);
    rank_until(watch, 2, &slot, WATCH_WATCHES);
    assert_int_equal(slot.measured, 0);
    assert_int_equal(slot.cap, GIB);
    assert_int_equal(slot.pid, child);
    snprintf(text, sizeof text, GPUS "use 1 %d 1000\n", child);
    values_put(text);
    for (int i = 0; i < 100 && !slot.measured; i++) {
        pause_ms(20);
        assert_true(watch_rank(watch, 2, &slot));
    }
    assert_int_equal(slot.measured, 1000);
    assert_string_equal(slot.gpu, "GPU-bbbb");
    assert_false(watch_ends(watch, &rank));

    file = mkstemp(path);
    saved = dup(2);
    dup2(file, 2);
    snprintf(text, sizeof text, GPUS "use 1 %d 2147483648\n", child);
    values_put(text);
    assert_int_equal(waitpid(child, &status, 0), child);
    dup2(saved, 2);
    close(saved);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    assert_true(watch_ends(watch, &rank));
    assert_int_equal(rank, 2);
    assert_true(watch_rank(watch, 2, &slot));
    assert_int_equal(slot.measured, 2 * GIB);
    assert_non_null(strstr(slot.cause, "over the cap of 1.00 GiB (a test): process "));
    assert_true(pread(file, told, sizeof told - 1, 0) > 0);
    assert_non_null(strstr(told, "fp8-lora: rank 2 is over the cap of 1.00 GiB (a test): "));
    assert_non_null(strstr(told, "fp8-lora: the step is ended: rank 2: over the cap"));
    close(file);
    unlink(path);
    assert_false(watch_lost(watch));
    assert_false(watch_must_end(watch));
    watch_stop(watch);
}

static int folders_make(const char *top, char *inner)
{
    char path[256];

    snprintf(path, sizeof path, "%s%s", top, inner);
    for (char *slash = strchr(path + strlen(top) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0755))
            return -1;
        *slash = '/';
    }
    return mkdir(path, 0755);
}

static void folders_remove(const char *top, const char *inner)
{
    char path[256], *slash;

    snprintf(path, sizeof path, "%s%s", top, inner);
    while ((slash = strrchr(path, '/')) >= path + strlen(top)) {
        (void)rmdir(path);
        *slash = 0;
    }
}

// A rank in a cgroup of its own gets the driver's limit there. Where cgroup v2 is mounted beside
// version 1 it has no folder in /sys/fs/cgroup, so a plain one stands for it.
static void program_limits(void **state)
{
    static const char *const mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    struct watch_request request = request_of(WATCH_KILL, WATCH_CONTINUE);
    char inner[64], path[256], line[512], wanted[512];
    struct watch *watch = NULL;
    struct record_rank slot;
    struct fl_error e;
    int mount = -1;
    pid_t child;
    FILE *f;
    (void)state;
    for (int i = 0; i < 2 && mount < 0; i++) {
        snprintf(path, sizeof path, "%s/cgroup.controllers", mounts[i]);
        mount = access(path, F_OK) ? -1 : i;
    }
    snprintf(inner, sizeof inner, "/fl-watch-%d/job_77/step_2/user/task_0", getpid());
    if (pidfds_missing() || geteuid() || mount < 0 || settings_trusted(program, &e) ||
        settings_trusted_file(library, &e))
        skip();
    if (folders_make(mounts[mount], inner) || (mount && folders_make(mounts[0], inner))) {
        folders_remove(mounts[mount], inner);
        skip();
    }
    values_put(GPUS);
    child = rank_fork();
    snprintf(path, sizeof path, "%s%s/cgroup.procs", mounts[mount], inner);
    snprintf(line, sizeof line, "%d", child);
    text_put(path, line, strlen(line));
    check_ok(watch_start(&request, &watch, &e), &e);
    watch_task(watch, child, 0);
    rank_until(watch, 0, &slot, WATCH_LIMITS);
    assert_int_equal(slot.members, MEMBERS_CGROUP);
    watch_stop(watch);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    pause_ms(50); // the cgroup is empty a moment later
    folders_remove(mounts[mount], inner);
    if (mount)
        folders_remove(mounts[0], inner);
    snprintf(path, sizeof path, "%s/nvml.limits", tree);
    f = fopen(path, "r");
    assert_non_null(f);
    snprintf(wanted, sizeof wanted, "GPU-aaaa /sys/fs/cgroup%s 0 1073741824\n", inner);
    assert_non_null(fgets(line, sizeof line, f));
    assert_string_equal(line, wanted);
    fclose(f);
}

// Processes of the program that watch for this slurmstepd.
static int watchers(pid_t stepd)
{
    DIR *folder = opendir("/proc");
    struct dirent *entry;
    int found = 0;

    assert_non_null(folder);
    while ((entry = readdir(folder))) {
        char path[300], words[4096], number[16];
        size_t size;
        FILE *f;
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        f = *entry->d_name >= '0' && *entry->d_name <= '9' ? fopen(path, "r") : NULL;
        if (!f)
            continue;
        size = fread(words, 1, sizeof words, f); // valgrind's own words may stand before
        fclose(f);
        found +=
            memmem(words, size, "fp8-lora-watch", 14) &&
            memmem(words, size, number, (size_t)snprintf(number, sizeof number, "%d", stepd) + 1);
    }
    closedir(folder);
    return found;
}

// The watch and its guardian need not be told to stop: they go with slurmstepd.
static void program_ends_with_stepd(void **state)
{
    struct fl_error e;
    int status, started[2], end[2], seen = 0;
    pid_t stepd;
    char byte;
    (void)state;
    if (pidfds_missing() || geteuid() || settings_trusted(program, &e) ||
        settings_trusted_file(library, &e))
        skip();
    values_put(GPUS);
    assert_int_equal(pipe2(started, O_CLOEXEC), 0);
    assert_int_equal(pipe2(end, O_CLOEXEC), 0);
    stepd = fork();
    if (!stepd) {
        struct watch_request request = request_of(WATCH_KILL, WATCH_END);
        struct watch *watch = NULL;
        alarm(60);
        close(end[1]);
        if (watch_start(&request, &watch, &e) || write(started[1], "", 1) != 1 ||
            read(end[0], &byte, 1))
            _exit(1);
        _exit(0); // without watch_stop
    }
    close(started[1]);
    assert_int_equal(read(started[0], &byte, 1), 1);
    for (int i = 0; i < 200 && (seen = watchers(stepd)) != 2; i++)
        pause_ms(20);
    assert_int_equal(seen, 2);
    close(end[1]);
    assert_int_equal(waitpid(stepd, &status, 0), stepd);
    assert_int_equal(status, 0);
    for (int i = 0; i < 200 && (seen = watchers(stepd)); i++)
        pause_ms(20);
    assert_int_equal(seen, 0);
    close(started[0]);
    close(end[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(library_samples),         cmocka_unit_test(library_refusals),
        cmocka_unit_test(library_limits),          cmocka_unit_test(requests),
        cmocka_unit_test(program_watches),         cmocka_unit_test(program_limits),
        cmocka_unit_test(program_ends_with_stepd),
    };
    return cmocka_run_group_tests_name("watch", tests, tree_make, tree_remove);
}
