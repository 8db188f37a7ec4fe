// SPDX-License-Identifier: Apache-2.0
// job/limits: what slurmstepd hands over comes back whole, and any other bytes, cut, changed or
// made up, are refused; of the file they come in, seals, owner and size count.
#include "unit/check.h"

#include "job/limits_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static char *paths[] = {(char *)"/models", (char *)"/scratch/a b"};
static const struct policy_roots models[] = {{"policy.yaml:3", paths, 2},
                                             {"policy.yaml:9, partition a", paths + 1, 1}},
                                 outputs[] = {{"policy.yaml:4", paths, 1}};
static const struct limits whole = {
    .device = {UINT64_C(80) << 30, "policy.yaml:1"},
    .host = {UINT64_C(1) << 62, "policy.yaml:2, account b"},
    .ranks = {8, "policy.yaml:7"},
    .action = POLICY_KILL,
    .models = models,
    .outputs = outputs,
    .model_lists = 2,
    .output_lists = 1,
};

static void encode(const struct limits *limits, void **bytes, size_t *size)
{
    struct fl_error e;

    check_ok(limits_encode(limits, bytes, size, &e), &e);
}

static void equal(const struct limits *a, const struct limits *b)
{
    assert_memory_equal(&a->device, &b->device, sizeof a->device);
    assert_memory_equal(&a->host, &b->host, sizeof a->host);
    assert_memory_equal(&a->ranks, &b->ranks, sizeof a->ranks);
    assert_true(a->action == b->action && a->model_lists == b->model_lists &&
                a->output_lists == b->output_lists);
    for (int i = 0; i < a->model_lists; i++) {
        assert_string_equal(a->models[i].source, b->models[i].source);
        assert_int_equal(a->models[i].count, b->models[i].count);
        for (size_t k = 0; k < a->models[i].count; k++)
            assert_string_equal(a->models[i].paths[k], b->models[i].paths[k]);
    }
    for (int i = 0; i < a->output_lists; i++)
        assert_string_equal(a->outputs[i].paths[0], b->outputs[i].paths[0]);
}

static void there_and_back(void **state)
{
    const struct limits nothing = {0};
    struct limits back;
    struct fl_error e;
    void *bytes;
    size_t size;
    (void)state;

    encode(&whole, &bytes, &size);
    check_ok(limits_decode(bytes, size, &back, &e), &e);
    memset(bytes, 0xff, size); // nothing of it is kept
    equal(&whole, &back);
    limits_clear(&back);
    free(bytes);
    encode(&nothing, &bytes, &size);
    check_ok(limits_decode(bytes, size, &back, &e), &e);
    equal(&nothing, &back);
    limits_clear(&back);
    limits_clear(&back);
    free(bytes);
}

static void the_largest_policy(void **state)
{
    static struct policy_roots lists[POLICY_SECTIONS];
    static char path[POLICY_PATH] = "/", *many[POLICY_ROOTS];
    struct limits limits = {.models = lists, .model_lists = POLICY_SECTIONS}, back;
    struct fl_error e;
    void *bytes;
    size_t size;
    (void)state;

    for (size_t i = 0; i < POLICY_ROOTS; i++)
        many[i] = path;
    for (size_t i = 0; i < POLICY_SECTIONS; i++)
        lists[i] = (struct policy_roots){.paths = many, .count = POLICY_ROOTS};
    encode(&limits, &bytes, &size);
    check_ok(limits_decode(bytes, size, &back, &e), &e);
    assert_string_equal(back.models[POLICY_SECTIONS - 1].paths[POLICY_ROOTS - 1], "/");
    limits_clear(&back);
    free(bytes);
    memset(path + 1, 'x', sizeof path - 2);
    check_error(limits_encode(&limits, &bytes, &size, &e), &e, "at most 262144 are handed over");
}

// Bytes of the header after which a change must be noticed: the numbers are anything.
#define NUMBERS_FROM 16
#define NUMBERS_TO   40

static void cut_and_changed(void **state)
{
    struct limits back;
    struct fl_error e;
    void *bytes;
    char *copy;
    size_t size;
    (void)state;

    encode(&whole, &bytes, &size);
    for (size_t n = 0; n < size; n++) { // exact memory, so that sanitizers see a byte beyond
        copy = malloc(n ? n : 1);
        memcpy(copy, bytes, n);
        check_error(limits_decode(copy, n, &back, &e), &e, "limits: ");
        assert_true(!back.memory && !back.model_lists);
        free(copy);
    }
    copy = malloc(size + 1);
    memcpy(copy, bytes, size);
    copy[size] = 0;
    check_error(limits_decode(copy, size + 1, &back, &e), &e, "limits: the header");
    for (size_t at = 0; at < size; at++)
        for (int value = 0; value < 256; value += at < 64 ? 1 : 15) {
            char old = copy[at];
            copy[at] = (char)value;
            if (!limits_decode(copy, size, &back, &e)) {
                assert_true(at >= NUMBERS_FROM || copy[at] == old);
                assert_true(back.action <= POLICY_KILL && back.model_lists <= POLICY_SECTIONS);
                limits_clear(&back);
            } else {
                assert_int_equal(e.code, -EINVAL);
                assert_true(at < NUMBERS_FROM || at >= NUMBERS_TO);
            }
            copy[at] = old;
        }
    free(copy);
    free(bytes);
}

// ---- the file

static int file_of(const void *bytes, size_t size, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, size), size);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

#define ALL (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static void sealed(void **state)
{
    struct limits back;
    struct fl_error e;
    char path[64], byte;
    int fd = -1, again;
    (void)state;

    check_ok(limits_file_create(&whole, LIMITS_FD, &fd, &e), &e);
    assert_int_equal(fd, LIMITS_FD);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_true(write(fd, "x", 1) < 0 && pwrite(fd, "x", 1, 0) < 0 && ftruncate(fd, 0) < 0);
    assert_true(fcntl(fd, F_ADD_SEALS, 0) < 0);
    assert_true(mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd); // opened anew it is sealed as well
    again = open(path, O_RDWR | O_CLOEXEC);
    assert_true(again >= 0 && write(again, "x", 1) < 0);
    close(again);
    assert_int_equal(lseek(fd, 5, SEEK_SET), 5); // whatever others read through it
    check_ok(limits_file_read(fd, geteuid(), &back, &e), &e);
    equal(&whole, &back);
    limits_clear(&back);
    assert_int_equal(lseek(fd, 0, SEEK_CUR), 5);
    check_error(limits_file_create(&whole, LIMITS_FD, &again, &e), &e,
                "limits: descriptor 200 is taken");
    assert_int_equal(e.code, -EBUSY);
    assert_true(fcntl(LIMITS_FD, F_GETFD) >= 0); // and stays what it was
    assert_true(read(fd, &byte, 1) == 1);
    close(fd);
    assert_int_equal(limits_file_read(LIMITS_FD, geteuid(), &back, &e), 1);
    assert_true(!back.device.value && !back.memory);
    check_ok(limits_file_create(&whole, -1, &fd, &e), &e);
    close(fd);
}

static void other_files(void **state)
{
    static const int lacking[] = {F_SEAL_WRITE, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL};
    struct limits back;
    struct fl_error e;
    void *bytes;
    size_t size;
    int fd, pipes[2];
    (void)state;

    encode(&whole, &bytes, &size);
    for (size_t i = 0; i < 4; i++) {
        fd = file_of(bytes, size, ALL & ~lacking[i]);
        check_error(limits_file_read(fd, geteuid(), &back, &e), &e, "is not a sealed file");
        assert_int_equal(e.code, -EPERM);
        close(fd);
    }
    fd = file_of(bytes, size, ALL);
    check_ok(limits_file_read(fd, geteuid(), &back, &e), &e);
    limits_clear(&back);
    check_error(limits_file_read(fd, geteuid() + 1, &back, &e), &e, "is not a sealed file");
    close(fd);
    fd = file_of("", 0, ALL);
    check_error(limits_file_read(fd, geteuid(), &back, &e), &e, "has 0 bytes");
    close(fd);
    fd = file_of(bytes, size - 1, ALL);
    check_error(limits_file_read(fd, geteuid(), &back, &e), &e, "limits: the header");
    close(fd);
    fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, LIMITS_BYTES_MAX + 1), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, ALL), 0);
    check_error(limits_file_read(fd, geteuid(), &back, &e), &e, "has 262145 bytes");
    close(fd);
    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    check_error(limits_file_read(fd, geteuid(), &back, &e), &e, "is not a sealed file");
    close(fd);
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    check_error(limits_file_read(pipes[0], geteuid(), &back, &e), &e, "is not a sealed file");
    close(pipes[0]);
    close(pipes[1]);
    free(bytes);
}

// What a user makes is the user's, and the trainer wants root's.
static void forged(void **state)
{
    int status;
    pid_t child;
    (void)state;

    if (geteuid()) {
        skip();
        return;
    }
    child = fork();
    assert_true(child >= 0);
    if (!child) {
        struct limits back, none = {0};
        struct fl_error e;
        int fd;
        if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534) ||
            limits_file_create(&none, -1, &fd, &e))
            _exit(1);
        _exit(limits_file_read(fd, 0, &back, &e) == -EPERM ? 0 : 2);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back),  cmocka_unit_test(the_largest_policy),
        cmocka_unit_test(cut_and_changed), cmocka_unit_test(sealed),
        cmocka_unit_test(other_files),     cmocka_unit_test(forged),
    };

    return cmocka_run_group_tests_name("limits", tests, NULL, NULL);
}
