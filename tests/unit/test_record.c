// SPDX-License-Identifier: Apache-2.0
// report/record: sealing, round trip, hostile bytes, a reader beside a writer in another process.
#include "unit/check.h"

#include "report/record.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct record_rank sample(uint32_t rank)
{
    struct record_rank values = {
        .rank = rank,
        .local_rank = rank % 8,
        .state = RANK_TRAINING,
        .pid = 4711,
        .planned_total = 10 << 20,
        .peak_total = 11 << 20,
        .measured = 12 << 20,
        .watch = WATCH_WATCHES,
        .members = MEMBERS_CGROUP,
        .iterations = 7,
        .tokens_per_second = 1.5,
        .loss = 0.25,
    };
    snprintf(values.node, sizeof values.node, "node%u", rank);
    snprintf(values.gpu, sizeof values.gpu, "cpu");
    values.peak[MEMORY_WEIGHTS] = 9 << 20;
    return values;
}

static void round_trip(void **state)
{
    struct record *record, *other;
    struct record_rank in = sample(3), got;
    struct fl_error e;
    int fd, status = 0;
    uint32_t rank = 0;
    (void)state;
    check_ok(record_create(4, &record, &fd, &e), &e);
    check_ok(record_open(fd, &other, &e), &e);
    assert_int_equal(record_ranks(other), 4);
    assert_int_equal(record_read(other, 3, &got), -ENOENT);
    assert_int_equal(record_write(record, &in), 0);
    assert_int_equal(record_read(other, 3, &got), 0);
    assert_memory_equal(&in, &got, sizeof in);
    assert_int_equal(record_read(other, 2, &got), -ENOENT);
    assert_int_equal(record_read(other, 4, &got), -EINVAL);
    in.rank = 4;
    assert_int_equal(record_write(record, &in), -EINVAL);
    assert_int_equal(record_aborted(other, NULL, NULL), 0);
    record_abort(record, 2, 9);
    record_abort(record, 1, 256); // the first death counts
    assert_int_equal(record_aborted(other, &rank, &status), 1);
    assert_int_equal(rank, 2);
    assert_int_equal(status, 9);
    record_close(other);
    record_close(record);
    close(fd);
}

static void size_is_sealed(void **state)
{
    struct record *record;
    struct stat s;
    struct fl_error e;
    int fd;
    (void)state;
    check_ok(record_create(2, &record, &fd, &e), &e);
    assert_int_equal(fstat(fd, &s), 0);
    assert_int_equal(ftruncate(fd, 0), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(ftruncate(fd, s.st_size + 4096), -1);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    record_close(record);
    close(fd);
}

static void refusals(void **state)
{
    struct record *record = NULL;
    struct record_rank values;
    struct fl_error e;
    uint64_t zero = 0;
    int fd;
    (void)state;
    check_error(record_create(0, &record, &fd, &e), &e, "0 ranks, expected 1 to 65536");
    check_error(record_create(RECORD_RANKS_MAX + 1, &record, &fd, &e), &e, "65537 ranks");
    check_error(record_open(-1, &record, &e), &e, "descriptor -1");
    fd = open("/dev/null", O_RDWR);
    check_error(record_open(fd, &record, &e), &e, "not a sealed record");
    close(fd);
    fd = memfd_create("plain", MFD_ALLOW_SEALING);
    check_error(record_open(fd, &record, &e), &e, "not a sealed record");
    assert_int_equal(ftruncate(fd, 100), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    check_error(record_open(fd, &record, &e), &e, "100 bytes, which no record has");
    close(fd);
    check_ok(record_create(1, &record, &fd, &e), &e);
    assert_int_equal(pwrite(fd, &zero, sizeof zero, 0), sizeof zero);
    struct record *other = NULL;
    check_error(record_open(fd, &other, &e), &e, "not version 2's");
    assert_null(other);
    assert_int_equal(record_read(record, 0, &values), -ENOENT); // the daemon reads on
    record_close(record);
    record_close(NULL);
    close(fd);
}

static bool string_bounded(const char *text, size_t size)
{
    size_t used = strnlen(text, size);

    for (size_t i = 0; i < used; i++)
        if (text[i] < 0x20 || text[i] > 0x7e)
            return false;
    return used < size;
}

static void values_bounded(const struct record_rank *v, uint32_t rank)
{
    assert_int_equal(v->rank, rank);
    assert_true(v->state < RANK_STATES && v->exit_code >= 0 && v->pid >= 0);
    assert_true(string_bounded(v->node, sizeof v->node));
    assert_true(string_bounded(v->gpu, sizeof v->gpu));
    assert_true(string_bounded(v->cause, sizeof v->cause));
    assert_true(v->peak_total <= UINT64_C(1) << 56 && v->measured <= UINT64_C(1) << 56);
    assert_true(v->watch < WATCH_STATES && v->members < MEMBERS_KINDS);
    assert_true(isnan(v->loss) || isfinite(v->loss));
    assert_true(isnan(v->tokens_per_second) || isfinite(v->tokens_per_second));
}

// A writer that knows the checksum may put anything in the fields.
static void hostile_fields(void **state)
{
    struct record *record;
    struct record_rank values, got;
    struct fl_error e;
    int fd;
    (void)state;
    check_ok(record_create(1, &record, &fd, &e), &e);
    values = sample(0);
    memset(values.node, 'x', sizeof values.node);
    memset(values.cause, '\n', sizeof values.cause);
    values.loss = INFINITY;
    values.tokens_per_second = -NAN;
    assert_int_equal(record_write(record, &values), 0);
    assert_int_equal(record_read(record, 0, &got), 0);
    values_bounded(&got, 0);
    assert_int_equal(strlen(got.node), sizeof got.node - 1);
#define HOSTILE(field, value)                                                                      \
    do {                                                                                           \
        values = sample(0);                                                                        \
        values.field = value;                                                                      \
        assert_int_equal(record_write(record, &values), 0);                                        \
        assert_int_equal(record_read(record, 0, &got), -EINVAL);                                   \
    } while (0)
    HOSTILE(state, RANK_STATES);
    HOSTILE(local_rank, UINT32_MAX);
    HOSTILE(exit_code, -1);
    HOSTILE(pid, -1);
    HOSTILE(cap, UINT64_MAX);
    HOSTILE(measured, UINT64_MAX);
    HOSTILE(watch, WATCH_STATES);
    HOSTILE(members, MEMBERS_KINDS);
    HOSTILE(peak[MEMORY_COMMUNICATION], UINT64_MAX);
    HOSTILE(planned_total, UINT64_MAX);
    HOSTILE(tokens, UINT64_MAX);
    record_close(record);
    close(fd);
}

// Random bytes over the whole mapping, and random bytes under a valid checksum.
static void hostile_bytes(void **state)
{
    struct record *record;
    struct record_rank values, got;
    struct fl_error e;
    struct stat s;
    unsigned char *raw;
    int fd, accepted = 0;
    (void)state;
    check_ok(record_create(3, &record, &fd, &e), &e);
    assert_int_equal(fstat(fd, &s), 0);
    raw = mmap(NULL, (size_t)s.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(raw != MAP_FAILED);
    srand(1);
    for (int round = 0; round < 300; round++) {
        for (off_t i = 0; i < s.st_size; i++)
            raw[i] = (unsigned char)(rand() >> 7);
        for (uint32_t rank = 0; rank < 3; rank++) {
            int code = record_read(record, rank, &got);
            assert_true(code == -EINVAL || code == -EAGAIN);
        }
        (void)record_aborted(record, &got.rank, &got.exit_code);
    }
    for (int round = 0; round < 3000; round++) {
        unsigned char *bytes = (unsigned char *)&values;
        values = sample(1);
        for (int flips = rand() % 40; flips >= 0; flips--)
            bytes[(size_t)rand() % sizeof values] = (unsigned char)(rand() >> 7);
        values.rank = 1;
        assert_int_equal(record_write(record, &values), 0);
        if (record_read(record, 1, &got) == 0) {
            accepted++;
            values_bounded(&got, 1);
        }
    }
    assert_true(accepted > 0);
    munmap(raw, (size_t)s.st_size);
    record_close(record);
    close(fd);
}

// Every copy that is handed out is one the writer wrote as a whole.
static void reader_beside_writer(void **state)
{
    struct record *record;
    struct record_rank values = sample(0), got;
    struct fl_error e;
    int fd, status, copies = 0;
    uint64_t last = 0;
    pid_t child;
    (void)state;
    check_ok(record_create(1, &record, &fd, &e), &e);
    child = fork();
    assert_true(child >= 0);
    if (!child) {
        for (uint64_t i = 1;; i++) {
            values.iterations = values.tokens = values.rss_peak = i;
            for (int c = 0; c < MEMORY_CATEGORIES; c++)
                values.peak[c] = i;
            snprintf(values.cause, sizeof values.cause, "%llu", (unsigned long long)i);
            record_write(record, &values);
        }
    }
    while (copies < 20000 || last < 100) {
        int code = record_read(record, 0, &got);
        if (code) {
            assert_true(code == -EAGAIN || code == -ENOENT);
            continue;
        }
        copies++;
        assert_true(got.iterations >= last);
        last = got.iterations;
        assert_int_equal(got.tokens, last);
        assert_int_equal(got.rss_peak, last);
        assert_int_equal(got.peak[MEMORY_COMMUNICATION], last);
        assert_int_equal(strtoull(got.cause, NULL, 10), last);
    }
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(record_write(record, &values), 0); // after a writer killed anywhere
    assert_int_equal(record_read(record, 0, &got), 0);
    record_close(record);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),    cmocka_unit_test(size_is_sealed),
        cmocka_unit_test(refusals),      cmocka_unit_test(hostile_fields),
        cmocka_unit_test(hostile_bytes), cmocka_unit_test(reader_beside_writer),
    };
    return cmocka_run_group_tests_name("record", tests, NULL, NULL);
}
