// SPDX-License-Identifier: Apache-2.0
// A temporary folder of a test's, and whether this kernel knows processes by descriptor.
#ifndef FL_TESTS_UNIT_WATCH_TREE_H
#define FL_TESTS_UNIT_WATCH_TREE_H

#include "unit/check.h"

#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char tree[] = "/tmp/fl-watch-XXXXXX";

static inline void text_put(const char *path, const char *text, size_t size)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static inline int entry_remove(const char *path, const struct stat *s, int type, struct FTW *ftw)
{
    (void)s;
    (void)type;
    return ftw->level ? remove(path) : 0;
}

static inline void tree_clear(void)
{
    assert_int_equal(nftw(tree, entry_remove, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static inline bool pidfds_missing(void)
{
    int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);

    if (fd >= 0)
        close(fd);
    return fd < 0;
}

static inline int tree_make(void **state)
{
    (void)state;
    return mkdtemp(tree) ? 0 : -1;
}

static inline int tree_remove(void **state)
{
    (void)state;
    tree_clear();
    return rmdir(tree);
}

#endif
