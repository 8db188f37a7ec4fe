// SPDX-License-Identifier: Apache-2.0
// Files that root may believe: nobody else can change them, nor put others in their place.
#ifndef FL_PLUGIN_TRUSTED_H
#define FL_PLUGIN_TRUSTED_H

#include "base/error.h"

// Opens an absolute path for reading, closed on exec: one folder after the other from / on, each by
// the descriptor of the one before, so that what was looked at is what is used. No link is
// followed, in the folders neither. Each folder and the file must be root's and writable by nobody
// else (a sticky folder, as /tmp, may be); the file must be a regular one. Errors: -EPERM: others
// may change it; -EINVAL: not such a path or file; else what the system says.
int trusted_open(const char *path, int *fd, struct fl_error *e);

// The same of an open file by itself; path is for the message.
int trusted_file(int fd, const char *path, struct fl_error *e);

#endif
