// SPDX-License-Identifier: Apache-2.0
// weights/safetensors and its writer: round trips, every refused header by its message, and random
// damage.
#include "unit/check.h"

#include "base/file.h"
#include "base/memory.h"
#include "unit/fixture.h"
#include "weights/safetensors.h"
#include "weights/safetensors_writer.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define TINY_SHARD FL_SOURCE_DIR "/tests/data/tiny-qwen3-moe-fp8/model-00002-of-00002.safetensors"

static char *folder, *path;

static int setup(void **state)
{
    (void)state;
    folder = folder_make();
    path = memory_format("%s/x.safetensors", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    folder_remove(folder);
    free(path);
    return 0;
}

// A file of header length, header and so many bytes of data.
static void file_make(uint64_t length, const char *header, size_t data_bytes)
{
    size_t n = strlen(header);
    char *file = memory_zeroed(8 + n + data_bytes, 1);
    struct fl_error e;

    length = htole64(length);
    memcpy(file, &length, 8);
    memcpy(file + 8, header, n);
    check_ok(file_write(path, file, 8 + n + data_bytes, &e), &e);
    free(file);
}

static void written_and_read(void **state)
{
    static const struct tensor list[] = {
        {.name = "f", .type = TENSOR_F32, .dims = 2, .shape = {2, 3}},
        {.name = "scalar", .type = TENSOR_BF16, .dims = 0},
        {.name = "empty", .type = TENSOR_F32, .dims = 2, .shape = {0, 7}},
        {.name = "a \"quoted\" name", .type = TENSOR_F8_E4M3, .dims = 1, .shape = {5}},
    };
    uint8_t data[24 + 2 + 5], copy[24];
    char *first, *second;
    size_t first_bytes, second_bytes;
    struct safetensors_writer *w;
    struct safetensors *file;
    const struct tensor *t;
    struct fl_error e;
    uint64_t header;
    (void)state;

    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(3 * i + 1);
    check_ok(safetensors_writer_open(path, list, 4, &w, &e), &e);
    check_ok(safetensors_writer_append(w, data, 7, &e), &e); // pieces need not end with a tensor
    assert_int_not_equal(access(path, F_OK), 0);
    check_ok(safetensors_writer_append(w, data + 7, sizeof data - 7, &e), &e);
    check_ok(safetensors_writer_commit(w, &e), &e);

    check_ok(safetensors_open(path, &file, &e), &e);
    assert_string_equal(safetensors_path(file), path);
    assert_int_equal(safetensors_count(file), 4);
    for (size_t i = 1; i < 4; i++)
        assert_true(strcmp(safetensors_at(file, i - 1)->name, safetensors_at(file, i)->name) < 0);
    t = safetensors_find(file, "f");
    assert_int_equal(t->type, TENSOR_F32);
    assert_int_equal(t->dims, 2);
    assert_int_equal(t->shape[1], 3);
    assert_int_equal(t->offset % 8, 0);
    check_ok(safetensors_read(file, t, 0, copy, 24, &e), &e);
    assert_memory_equal(copy, data, 24);
    check_ok(safetensors_read(file, t, 8, copy, 5, &e), &e);
    assert_memory_equal(copy, data + 8, 5);
    check_error(safetensors_read(file, t, 20, copy, 5, &e), &e, "tensor 'f': bytes 20 to 25");
    t = safetensors_find(file, "scalar");
    assert_int_equal(t->bytes, 2);
    t = safetensors_find(file, "a \"quoted\" name");
    check_ok(safetensors_read(file, t, 0, copy, 5, &e), &e);
    assert_memory_equal(copy, data + 26, 5);
    assert_null(safetensors_find(file, "g"));
    safetensors_close(file);

    check_ok(file_read(path, 1 << 20, &first, &first_bytes, &e), &e);
    memcpy(&header, first, 8);
    assert_int_equal(le64toh(header) % 8, 0);
    assert_non_null(strstr(first + 8, "{\"__metadata__\":{\"format\":\"pt\"},\"f\":{"));
    check_ok(safetensors_writer_open(path, list, 4, &w, &e), &e);
    check_ok(safetensors_writer_append(w, data, sizeof data, &e), &e);
    check_ok(safetensors_writer_commit(w, &e), &e);
    check_ok(file_read(path, 1 << 20, &second, &second_bytes, &e), &e);
    assert_int_equal(first_bytes, second_bytes);
    assert_memory_equal(first, second, first_bytes);
    free(first);
    free(second);
}

// Nothing is left of a file that was not finished.
static void writer_failures(void **state)
{
    static const struct tensor list[] = {{"a", TENSOR_U8, 1, {4}, 0, 0},
                                         {"a", TENSOR_U8, 0, {0}, 0, 0}};
    static const struct tensor huge = {"huge", TENSOR_F64, 2, {1ll << 40, 1ll << 40}, 0, 0};
    struct safetensors_writer *w;
    struct fl_error e;
    (void)state;

    unlink(path); // of another test
    check_error(safetensors_writer_open(path, list, 2, &w, &e), &e, "tensor 'a': listed twice");
    check_error(safetensors_writer_open(path, &huge, 1, &w, &e), &e, "tensor 'huge'");
    check_error(safetensors_writer_open("/nonexistent/x", list, 1, &w, &e), &e, "/nonexistent/x");
    check_ok(safetensors_writer_open(path, list, 1, &w, &e), &e);
    check_ok(safetensors_writer_append(w, "abc", 3, &e), &e);
    check_error(safetensors_writer_append(w, "de", 2, &e), &e, "1 bytes of data more than its 4");
    check_error(safetensors_writer_commit(w, &e), &e, "3 bytes of data, announced were 4");
    check_ok(safetensors_writer_open(path, list, 1, &w, &e), &e);
    safetensors_writer_abort(w);
    safetensors_writer_abort(NULL);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(mkdir(folder, 0700), 0);
}

#define T(rest)         "{\"t\": {" rest "}}"
#define OFFSETS(b, end) ", \"data_offsets\": [" #b ", " #end "]"

static void bad_headers(void **state)
{
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *words;
    } cases[] = {
        {"{", 0, "header is not valid JSON at byte "},
        {"[1]", 0, "header is not a JSON object"},
        {"{}", 3, "3 bytes behind the last tensor belong to none"},
        {"{\"t\": 1}", 0, "tensor 't': the header gives no dtype"},
        {"{\"t\": {}, \"t\": {}}", 0, "duplicate"},
        {T("\"dtype\": 4, \"shape\": []" OFFSETS(0, 4)), 4, "'t': the header gives no dtype"},
        {T("\"dtype\": \"F4\", \"shape\": []" OFFSETS(0, 4)), 4, "'t': unsupported dtype 'F4'"},
        {T("\"dtype\": \"F32\"" OFFSETS(0, 4)), 4, "tensor 't': the header gives no shape"},
        {T("\"dtype\": \"F32\", \"shape\": [1.5]" OFFSETS(0, 4)), 4, "not a whole number"},
        {T("\"dtype\": \"F32\", \"shape\": [-1]" OFFSETS(0, 4)), 4, "not a whole number"},
        {T("\"dtype\": \"F32\", \"shape\": [1,1,1,1,1,1,1,1,1]" OFFSETS(0, 4)), 4,
         "more than 8 dimensions"},
        {T("\"dtype\": \"F32\", \"shape\": [1]"), 4, "data_offsets must be [begin, end]"},
        {T("\"dtype\": \"F32\", \"shape\": [1]" OFFSETS(4, 0)), 4, "with begin <= end"},
        {T("\"dtype\": \"F32\", \"shape\": [1]" OFFSETS(-4, 0)), 4, "with begin <= end"},
        {T("\"dtype\": \"F32\", \"shape\": [1]" OFFSETS(0.5, 4)), 4, "with begin <= end"},
        {T("\"dtype\": \"F32\", \"shape\": [1]" OFFSETS(0, 99999999999999999999)), 4,
         "too big integer"},
        {T("\"dtype\": \"F32\", \"shape\": [2]" OFFSETS(0, 8)), 5,
         "tensor 't': ends 3 bytes behind the end of the file"},
        {T("\"dtype\": \"F32\", \"shape\": [1]" OFFSETS(0, 9223372036854775807)), 4,
         "behind the end of the file"},
        {T("\"dtype\": \"F32\", \"shape\": [2, 3]" OFFSETS(0, 20)), 20,
         "shape [2, 3] of F32 takes 24 bytes, the header gives it 20"},
        {T("\"dtype\": \"F32\", \"shape\": [4611686018427387904, 4]" OFFSETS(0, 0)), 0,
         "shape [4611686018427387904, 4] is larger than any file"},
        {T("\"dtype\": \"U8\", \"shape\": [2]" OFFSETS(1, 3)), 3,
         "tensor 't': 1 bytes before it belong to no tensor"},
        {"{\"t\": {\"dtype\": \"U8\", \"shape\": [2], \"data_offsets\": [0, 2]}, "
         "\"u\": {\"dtype\": \"U8\", \"shape\": [2], \"data_offsets\": [1, 3]}}",
         3, "tensor 'u': its data overlap those of 't'"},
        {"{\"t\": {\"dtype\": \"U8\", \"shape\": [2], \"data_offsets\": [0, 2]}, "
         "\"u\": {\"dtype\": \"U8\", \"shape\": [2], \"data_offsets\": [0, 2]}}",
         2, "tensor 'u': its data overlap those of 't'"},
    };
    struct safetensors *file;
    struct fl_error e;
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        file_make(strlen(cases[i].header), cases[i].header, cases[i].data_bytes);
        check_error(safetensors_open(path, &file, &e), &e, cases[i].words);
        assert_non_null(strstr(e.text, path));
        assert_null(file);
    }
}

static void bad_files(void **state)
{
    static const char *const shrinking = T("\"dtype\": \"U8\", \"shape\": [9]" OFFSETS(0, 9));
    struct safetensors *file;
    const struct tensor *t;
    struct fl_error e;
    char byte;
    (void)state;

    check_ok(file_write(path, "1234567", 7, &e), &e);
    check_error(safetensors_open(path, &file, &e), &e, "7 bytes: too short for a safetensors file");
    file_make(3, "{}", 0);
    check_error(safetensors_open(path, &file, &e), &e,
                "header length 3 reaches beyond the file (10 bytes)");
    file_make(UINT64_MAX, "{}", 0);
    check_error(safetensors_open(path, &file, &e), &e, "header length 18446744073709551615");
    file_make(SAFETENSORS_HEADER_LIMIT + 1, "{}", 0);
    assert_int_equal(truncate(path, SAFETENSORS_HEADER_LIMIT + 100), 0);
    check_error(safetensors_open(path, &file, &e), &e, "is above the format's 100000000");
    check_error(safetensors_open(folder, &file, &e), &e, "not a regular file");
    check_error(safetensors_open("/nonexistent/x", &file, &e), &e, "/nonexistent/x: cannot open");
    assert_int_equal(e.code, -ENOENT);

    // A file that shrinks after it was opened.
    file_make(strlen(shrinking), shrinking, 9);
    check_ok(safetensors_open(path, &file, &e), &e);
    t = safetensors_find(file, "t");
    assert_int_equal(truncate(path, (off_t)t->offset + 4), 0);
    check_ok(safetensors_read(file, t, 3, &byte, 1, &e), &e);
    check_error(safetensors_read(file, t, 4, &byte, 1, &e), &e, "tensor 't': cannot read");
    safetensors_close(file);
    safetensors_close(NULL);
}

// Damaged headers are refused or read consistently, never followed out of the file.
static void random_damage(void **state)
{
    char *original, *damaged;
    uint64_t length;
    size_t file_bytes, bytes;
    struct fl_error e;
    uint32_t seed = 1;
    int refused = 0;
    (void)state;

    check_ok(file_read(TINY_SHARD, 1u << 30, &original, &file_bytes, &e), &e);
    memcpy(&length, original, 8);
    bytes = 8 + le64toh(length);
    damaged = memory_zeroed(bytes, 1);
    for (int round = 0; round < 300; round++) {
        struct safetensors *file;
        uint8_t *end;
        memcpy(damaged, original, bytes);
        for (int i = 0; i < 1 + round % 4; i++) {
            size_t at;
            seed = seed * 1664525u + 1013904223u;
            at = round % 10 ? (seed >> 4) % bytes : (seed >> 4) % 8;
            seed = seed * 1664525u + 1013904223u;
            damaged[at] = round % 3 ? (char)(seed >> 24) : "0123456789[]{}\",:-"[(seed >> 24) % 18];
        }
        check_ok(file_write(path, damaged, bytes, &e), &e);
        assert_int_equal(truncate(path, (off_t)file_bytes), 0);
        if (safetensors_open(path, &file, &e) < 0) {
            assert_non_null(strstr(e.text, path));
            refused++;
            continue;
        }
        for (size_t i = 0; i < safetensors_count(file); i++) {
            const struct tensor *t = safetensors_at(file, i);
            end = memory_zeroed(t->bytes, 1);
            check_ok(safetensors_read(file, t, 0, end, t->bytes, &e), &e);
            assert_ptr_equal(safetensors_find(file, t->name), t);
            free(end);
        }
        safetensors_close(file);
    }
    assert_true(refused > 0);
    free(damaged);
    free(original);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_and_read), cmocka_unit_test(writer_failures),
        cmocka_unit_test(bad_headers),      cmocka_unit_test(bad_files),
        cmocka_unit_test(random_damage),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
