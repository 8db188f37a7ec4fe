// SPDX-License-Identifier: Apache-2.0
// A group of one rank.
#include "comm/backend.h"

#include "base/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int self_split(struct comm *comm, int color, int key, struct comm **out, struct fl_error *e)
{
    (void)comm, (void)color, (void)key;
    return comm_self_create(out, e);
}

static void self_destroy(struct comm *comm)
{
    free(comm);
}

static int self_all_reduce(struct comm *comm, void *data, size_t count, enum comm_type type,
                           enum comm_op op, struct fl_error *e)
{
    (void)comm, (void)data, (void)count, (void)type, (void)op, (void)e;
    return 0;
}

static int self_exchange(struct comm *comm, const void *send, bool same_to_all,
                         const size_t *send_bytes, void *recv, const size_t *recv_bytes,
                         struct fl_error *e)
{
    (void)comm, (void)same_to_all;
    if (send_bytes[0] != recv_bytes[0])
        return error_set(e, -EINVAL, "a rank sends itself %zu bytes and expects %zu", send_bytes[0],
                         recv_bytes[0]);
    if (recv_bytes[0] && recv != send)
        memcpy(recv, send, recv_bytes[0]);
    return 0;
}

static int self_broadcast(struct comm *comm, void *data, size_t bytes, int root, struct fl_error *e)
{
    (void)comm, (void)data, (void)bytes, (void)root, (void)e;
    return 0;
}

static const struct comm_backend self_backend = {
    .split = self_split,
    .destroy = self_destroy,
    .all_reduce = self_all_reduce,
    .exchange = self_exchange,
    .broadcast = self_broadcast,
};

int comm_self_create(struct comm **out, struct fl_error *e)
{
    struct comm *comm = memory_zeroed(1, sizeof *comm);

    (void)e;
    comm->backend = &self_backend;
    comm->size = 1;
    *out = comm;
    return 0;
}
