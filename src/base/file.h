// SPDX-License-Identifier: Apache-2.0
// Whole files: read with a limit, written so that no reader ever sees half of one.
#ifndef FL_BASE_FILE_H
#define FL_BASE_FILE_H

#include "base/error.h"

#include <stddef.h>

// Reads path into *text (NUL behind it; free()); more than limit_bytes is an error.
int file_read(const char *path, size_t limit_bytes, char **text, size_t *bytes, struct fl_error *e);

// Writes path.tmp-PID, fsyncs, renames onto path and fsyncs the folder; on failure path is as it
// was.
int file_write(const char *path, const void *data, size_t bytes, struct fl_error *e);

// The same for a file that is written piece by piece.
struct file_writer;
int file_writer_open(const char *path, struct file_writer **w, struct fl_error *e);
int file_writer_append(struct file_writer *w, const void *data, size_t bytes, struct fl_error *e);
// Renames into place and frees w; on failure nothing is left.
int file_writer_commit(struct file_writer *w, struct fl_error *e);
// Removes what was written; NULL-safe.
void file_writer_abort(struct file_writer *w);

// mkdir -p; then checks that a file can be created in it.
int folder_writable(const char *path, struct fl_error *e);

#endif
