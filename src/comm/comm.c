// SPDX-License-Identifier: Apache-2.0
// Collectives over a group of ranks: what all backends share.
#include "comm/backend.h"

#include "base/memory.h"

#include <errno.h>
#include <stdlib.h>

int comm_fail(struct comm *comm, int rc)
{
    for (struct comm *c = comm; c; c = c->parent)
        c->dead = true;
    return rc;
}

bool comm_alive(const struct comm *comm)
{
    for (const struct comm *c = comm; c; c = c->parent)
        if (c->dead)
            return false;
    return true;
}

static int alive(const struct comm *comm, struct fl_error *e)
{
    return comm_alive(comm) ? 0
                            : error_set(e, -ECONNABORTED, "the group of ranks has failed before");
}

int comm_split(struct comm *comm, int color, int key, struct comm **out, struct fl_error *e)
{
    int rc = alive(comm, e);

    *out = NULL;
    if (rc == 0)
        rc = comm->backend->split(comm, color, key, out, e);
    if (rc < 0)
        return comm_fail(comm, rc);
    (*out)->parent = comm;
    (*out)->watch = comm->watch;
    (*out)->watch_context = comm->watch_context;
    return 0;
}

void comm_destroy(struct comm *comm)
{
    if (comm)
        comm->backend->destroy(comm);
}

void comm_abandon(struct comm *comm)
{
    comm_fail(comm, 0);
}

int comm_rank(const struct comm *comm)
{
    return comm->rank;
}

int comm_size(const struct comm *comm)
{
    return comm->size;
}

void comm_watch(struct comm *comm, int (*watch)(void *context, struct fl_error *e), void *context)
{
    comm->watch = watch;
    comm->watch_context = context;
}

int comm_all_reduce(struct comm *comm, void *data, size_t count, enum comm_type type,
                    enum comm_op op, struct fl_error *e)
{
    int rc = alive(comm, e);

    if (rc == 0 && count)
        rc = comm->backend->all_reduce(comm, data, count, type, op, e);
    return rc < 0 ? comm_fail(comm, rc) : 0;
}

static int exchange(struct comm *comm, const void *send, bool same_to_all, const size_t *send_bytes,
                    void *recv, const size_t *recv_bytes, struct fl_error *e)
{
    int rc = alive(comm, e);

    if (rc == 0)
        rc = comm->backend->exchange(comm, send, same_to_all, send_bytes, recv, recv_bytes, e);
    return rc < 0 ? comm_fail(comm, rc) : 0;
}

// bytes to and from every rank.
static int exchange_even(struct comm *comm, const void *send, bool same_to_all, void *recv,
                         size_t bytes, struct fl_error *e)
{
    size_t *all = memory_zeroed((size_t)comm->size, sizeof *all);
    int rc;

    for (int i = 0; i < comm->size; i++)
        all[i] = bytes;
    rc = exchange(comm, send, same_to_all, all, recv, all, e);
    free(all);
    return rc;
}

int comm_all_gather(struct comm *comm, const void *send, void *recv, size_t bytes,
                    struct fl_error *e)
{
    return exchange_even(comm, send, true, recv, bytes, e);
}

int comm_all_to_all(struct comm *comm, const void *send, void *recv, size_t bytes,
                    struct fl_error *e)
{
    return exchange_even(comm, send, false, recv, bytes, e);
}

int comm_all_to_all_v(struct comm *comm, const void *send, const size_t *send_bytes, void *recv,
                      const size_t *recv_bytes, struct fl_error *e)
{
    return exchange(comm, send, false, send_bytes, recv, recv_bytes, e);
}

int comm_broadcast(struct comm *comm, void *data, size_t bytes, int root, struct fl_error *e)
{
    int rc = alive(comm, e);

    if (rc == 0 && bytes)
        rc = comm->backend->broadcast(comm, data, bytes, root, e);
    return rc < 0 ? comm_fail(comm, rc) : 0;
}

int comm_barrier(struct comm *comm, struct fl_error *e)
{
    uint64_t nothing = 0;
    return comm_all_reduce(comm, &nothing, 1, COMM_U64, COMM_MAX, e);
}
