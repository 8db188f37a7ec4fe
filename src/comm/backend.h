// SPDX-License-Identifier: Apache-2.0
// What a communication backend fills in; private to comm/.
#ifndef FL_COMM_BACKEND_H
#define FL_COMM_BACKEND_H

#include "comm/comm.h"

#include <stdbool.h>

// The members are as in comm.h; comm.c has checked arguments and that the group is alive.
struct comm_backend {
    int (*split)(struct comm *comm, int color, int key, struct comm **out, struct fl_error *e);
    void (*destroy)(struct comm *comm);
    int (*all_reduce)(struct comm *comm, void *data, size_t count, enum comm_type type,
                      enum comm_op op, struct fl_error *e);
    // Ragged all-to-all; same_to_all: every rank gets the same bytes from the start of send.
    int (*exchange)(struct comm *comm, const void *send, bool same_to_all, const size_t *send_bytes,
                    void *recv, const size_t *recv_bytes, struct fl_error *e);
    int (*broadcast)(struct comm *comm, void *data, size_t bytes, int root, struct fl_error *e);
};

// First member of every backend's own structure.
struct comm {
    const struct comm_backend *backend;
    int rank, size;
    struct comm *parent; // NULL for a world
    bool dead;           // a call failed here or in a group split from here
    int (*watch)(void *context, struct fl_error *e);
    void *watch_context;
};

// Marks comm and all it was split from dead and returns rc.
int comm_fail(struct comm *comm, int rc);

static inline size_t comm_type_bytes(enum comm_type type)
{
    return type == COMM_F32 ? 4 : 8;
}

#endif
