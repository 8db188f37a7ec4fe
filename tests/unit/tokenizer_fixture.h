// SPDX-License-Identifier: Apache-2.0
// The tiny checkpoint's tokenizer, and edited copies of it for the tests of refusals.
#ifndef FL_TESTS_UNIT_TOKENIZER_FIXTURE_H
#define FL_TESTS_UNIT_TOKENIZER_FIXTURE_H

#include "unit/check.h"

#include "data/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TINY_TOKENIZER FL_SOURCE_DIR "/tests/data/tiny-qwen3-moe-fp8/tokenizer.json"

static inline struct tokenizer *tiny_tokenizer(void)
{
    struct tokenizer *t;
    struct fl_error e;
    check_ok(tokenizer_load(TINY_TOKENIZER, &t, &e), &e);
    return t;
}

// A new file with this text; its path is the caller's to remove and free.
static inline char *temporary_file(const char *text, size_t bytes)
{
    char *path = strdup("/tmp/fl-test-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, bytes), bytes);
    close(fd);
    return path;
}

static inline void temporary_remove(char *path)
{
    unlink(path);
    free(path);
}

#endif
