// SPDX-License-Identifier: Apache-2.0
// Groups of CPU ranks over MPI: nonblocking calls, waited for with a yielding, watching loop.
#include "comm/backend.h"

#include "base/memory.h"

#include <mpi.h>

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef MPI_CHUNK_BYTES
#define MPI_CHUNK_BYTES (1 << 30) // of one message: MPI counts are int; the test makes it small
#endif
#define CHUNK_BYTES ((size_t)MPI_CHUNK_BYTES)

// A wait tests this often at once, then yields the core, then sleeps a little longer every time.
#define SPIN_TESTS     200
#define YIELD_TESTS    2000
#define SLEEP_FIRST_NS 20000
#define SLEEP_LAST_NS  1000000
#define WATCH_NS       100000000

struct mpi_comm {
    struct comm base;
    MPI_Comm handle;
};

static struct mpi_comm *mpi_of(struct comm *comm)
{
    return (struct mpi_comm *)comm;
}

static int check(int mpi_code, const char *call, struct fl_error *e)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;

    if (mpi_code == MPI_SUCCESS)
        return 0;
    MPI_Error_string(mpi_code, text, &length);
    return error_set(e, -ECONNABORTED, "%s failed: %s", call, text);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// Waits for all requests. On an error they stay pending: their buffers must then outlive MPI, which
// they do because a dead group ends the process.
static int requests_wait(struct mpi_comm *c, MPI_Request *requests, int count, const char *call,
                         struct fl_error *e)
{
    int64_t watched = 0, sleep_ns = SLEEP_FIRST_NS;

    for (unsigned tests = 0;; tests++) {
        int done, rc = check(MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE), call, e);
        if (rc < 0 || done)
            return rc;
        if (tests < SPIN_TESTS)
            continue;
        if (c->base.watch && now_ns() - watched > WATCH_NS) {
            watched = now_ns();
            rc = c->base.watch(c->base.watch_context, e);
            if (rc < 0)
                return rc;
        }
        if (tests < YIELD_TESTS) {
            sched_yield();
            continue;
        }
        nanosleep(&(struct timespec){.tv_nsec = sleep_ns}, NULL);
        sleep_ns = sleep_ns * 2 < SLEEP_LAST_NS ? sleep_ns * 2 : SLEEP_LAST_NS;
    }
}

static int mpi_all_reduce(struct comm *comm, void *data, size_t count, enum comm_type type,
                          enum comm_op op, struct fl_error *e)
{
    struct mpi_comm *c = mpi_of(comm);
    MPI_Datatype mpi_type = type == COMM_F32   ? MPI_FLOAT
                            : type == COMM_F64 ? MPI_DOUBLE
                                               : MPI_UINT64_T;
    size_t size = comm_type_bytes(type), chunk = CHUNK_BYTES / size;

    for (size_t done = 0; done < count; done += chunk) {
        int n = (int)(count - done < chunk ? count - done : chunk);
        MPI_Request request;
        int rc = check(MPI_Iallreduce(MPI_IN_PLACE, (char *)data + done * size, n, mpi_type,
                                      op == COMM_SUM ? MPI_SUM : MPI_MAX, c->handle, &request),
                       "MPI_Iallreduce", e);
        if (rc == 0)
            rc = requests_wait(c, &request, 1, "MPI_Iallreduce", e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int mpi_broadcast(struct comm *comm, void *data, size_t bytes, int root, struct fl_error *e)
{
    struct mpi_comm *c = mpi_of(comm);

    for (size_t done = 0; done < bytes; done += CHUNK_BYTES) {
        int n = (int)(bytes - done < CHUNK_BYTES ? bytes - done : CHUNK_BYTES);
        MPI_Request request;
        int rc = check(MPI_Ibcast((char *)data + done, n, MPI_BYTE, root, c->handle, &request),
                       "MPI_Ibcast", e);
        if (rc == 0)
            rc = requests_wait(c, &request, 1, "MPI_Ibcast", e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

// Starts the messages of one direction to or from rank; returns how many, or an error.
static int messages_start(struct mpi_comm *c, bool sending, char *data, size_t bytes, int rank,
                          MPI_Request *requests, struct fl_error *e)
{
    int started = 0;

    for (size_t done = 0; done < bytes; done += CHUNK_BYTES) {
        int n = (int)(bytes - done < CHUNK_BYTES ? bytes - done : CHUNK_BYTES);
        MPI_Request *request = &requests[started++];
        int rc = sending ? check(MPI_Isend(data + done, n, MPI_BYTE, rank, 0, c->handle, request),
                                 "MPI_Isend", e)
                         : check(MPI_Irecv(data + done, n, MPI_BYTE, rank, 0, c->handle, request),
                                 "MPI_Irecv", e);
        if (rc < 0)
            return rc;
    }
    return started;
}

static size_t messages_of(size_t bytes)
{
    return (bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
}

// Messages between pairs instead of MPI_Ialltoallv, whose displacements stop at 2 GiB. Rank r
// starts with its neighbour r + 1, so that not all send to rank 0 first.
static int mpi_exchange(struct comm *comm, const void *send, bool same_to_all,
                        const size_t *send_bytes, void *recv, const size_t *recv_bytes,
                        struct fl_error *e)
{
    struct mpi_comm *c = mpi_of(comm);
    int rc = 0, size = comm->size, started = 0;
    size_t *send_at = memory_zeroed((size_t)size + 1, sizeof *send_at);
    size_t *recv_at = memory_zeroed((size_t)size + 1, sizeof *recv_at);
    size_t most = 0;
    MPI_Request *requests;

    for (int i = 0; i < size; i++) {
        send_at[i + 1] = same_to_all ? 0 : send_at[i] + send_bytes[i];
        recv_at[i + 1] = recv_at[i] + recv_bytes[i];
        most += messages_of(send_bytes[i]) + messages_of(recv_bytes[i]);
    }
    requests = memory_zeroed(most + 1, sizeof *requests);
    for (int i = 1; i < size; i++) {
        int from = (comm->rank + size - i) % size;
        rc = messages_start(c, false, (char *)recv + recv_at[from], recv_bytes[from], from,
                            requests + started, e);
        if (rc < 0)
            goto out;
        started += rc;
    }
    for (int i = 1; i < size; i++) {
        int to = (comm->rank + i) % size;
        rc = messages_start(c, true, (char *)(uintptr_t)send + send_at[to], send_bytes[to], to,
                            requests + started, e);
        if (rc < 0)
            goto out;
        started += rc;
    }
    if (send_bytes[comm->rank] != recv_bytes[comm->rank]) {
        rc = error_set(e, -EINVAL, "a rank sends itself %zu bytes and expects %zu",
                       send_bytes[comm->rank], recv_bytes[comm->rank]);
        goto out;
    }
    if (recv_bytes[comm->rank])
        memmove((char *)recv + recv_at[comm->rank], (const char *)send + send_at[comm->rank],
                recv_bytes[comm->rank]);
    rc = requests_wait(c, requests, started, "MPI message", e);
out:
    free(requests);
    free(send_at);
    free(recv_at);
    return rc;
}

static int mpi_split(struct comm *comm, int color, int key, struct comm **out, struct fl_error *e);

static void mpi_destroy(struct comm *comm)
{
    struct mpi_comm *c = mpi_of(comm);

    // MPI_Comm_free and MPI_Finalize wait for all ranks: not with a dead one.
    if (!comm->dead) {
        if (comm->parent)
            MPI_Comm_free(&c->handle);
        else
            MPI_Finalize();
    }
    free(c);
}

static const struct comm_backend mpi_backend = {
    .split = mpi_split,
    .destroy = mpi_destroy,
    .all_reduce = mpi_all_reduce,
    .exchange = mpi_exchange,
    .broadcast = mpi_broadcast,
};

static int comm_wrap(MPI_Comm handle, struct comm **out, struct fl_error *e)
{
    struct mpi_comm *c = memory_zeroed(1, sizeof *c);
    int rc =
        check(MPI_Comm_set_errhandler(handle, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", e);

    if (rc < 0) {
        free(c);
        return rc;
    }
    c->base.backend = &mpi_backend;
    c->handle = handle;
    MPI_Comm_rank(handle, &c->base.rank);
    MPI_Comm_size(handle, &c->base.size);
    *out = &c->base;
    return 0;
}

static int mpi_split(struct comm *comm, int color, int key, struct comm **out, struct fl_error *e)
{
    MPI_Comm handle;
    int rc = comm_barrier(comm, e); // so that MPI's own wait, which watches nothing, is short

    if (rc == 0)
        rc = check(MPI_Comm_split(mpi_of(comm)->handle, color, key, &handle), "MPI_Comm_split", e);
    return rc < 0 ? rc : comm_wrap(handle, out, e);
}

// Whether a launcher has left MPI a way to find its peers; without one, MPI_Init ends the process
// with a page of text or makes a world of one rank.
static bool launcher_speaks_mpi(void)
{
    static const char *const names[] = {"PMIX_RANK", "PMIX_NAMESPACE", "OMPI_COMM_WORLD_SIZE",
                                        "PMI_RANK", "PMI_FD"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]))
            return true;
    return false;
}

int comm_mpi_create(int expected_size, struct comm **out, struct fl_error *e)
{
    int rc, provided, size;

    *out = NULL;
    if (expected_size > 1 && !launcher_speaks_mpi())
        return error_set(e, -ENOTCONN,
                         "%d ranks were started without MPI: start them with `srun --mpi=pmix`",
                         expected_size);
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    rc = check(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread", e);
    if (rc < 0)
        return rc;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (provided < MPI_THREAD_FUNNELED)
        rc = error_set(e, -ENOTSUP, "this MPI does not allow threads (MPI_THREAD_FUNNELED)");
    else if (size != expected_size)
        rc = error_set(e, -ENOTCONN,
                       "MPI sees %d rank%s where %d were started: start them with "
                       "`srun --mpi=pmix`",
                       size, size == 1 ? "" : "s", expected_size);
    else
        rc = comm_wrap(MPI_COMM_WORLD, out, e);
    if (rc < 0)
        MPI_Finalize();
    return rc;
}
