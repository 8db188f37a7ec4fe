// SPDX-License-Identifier: Apache-2.0
// Every collective, on as many ranks as started it; rank 0 speaks TAP. Usage: test_comm [RANKS
// [killed FILE]]: "killed" has the last rank die while the others wait for it, and FILE, made by
// it just before, is what their watch sees.
#include "base/memory.h"
#include "comm/agree.h"
#include "comm/comm.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct comm *world;
static struct fl_error error;
static int test_number, failures;

// All ranks agree: one wrong rank fails the test.
static void ok(int right, const char *what)
{
    uint64_t wrong = !right;

    if (!right)
        printf("# rank %d of %d: %s: %s\n", comm_rank(world), comm_size(world), what, error.text);
    if (comm_all_reduce(world, &wrong, 1, COMM_U64, COMM_SUM, &error) < 0)
        wrong = 1;
    test_number++;
    failures += wrong != 0;
    if (comm_rank(world) == 0)
        printf("%s %d - %s on %d ranks\n", wrong ? "not ok" : "ok", test_number, what,
               comm_size(world));
    fflush(stdout);
}

static void sums_and_maxima(struct comm *comm, const char *what)
{
    enum { N = 1337 };
    int rank = comm_rank(comm), size = comm_size(comm), right = 1;
    float *f = memory_zeroed(N, sizeof *f), *again = memory_zeroed(N, sizeof *again);
    double d[2] = {rank, -rank};
    uint64_t u[2] = {(uint64_t)rank + ((uint64_t)1 << 40), 1};

    for (int i = 0; i < N; i++)
        f[i] = again[i] = (float)(i + 1) / (float)(3 + rank);
    right &= comm_all_reduce(comm, f, N, COMM_F32, COMM_SUM, &error) == 0;
    right &= comm_all_reduce(comm, again, N, COMM_F32, COMM_SUM, &error) == 0;
    right &= memcmp(f, again, N * sizeof *f) == 0;
    for (int i = 0; i < N; i++) {
        double sum = 0;
        for (int r = 0; r < size; r++)
            sum += (float)(i + 1) / (float)(3 + r);
        right &= f[i] > sum * (1 - 1e-6) && f[i] < sum * (1 + 1e-6);
    }
    // The same bits on every rank.
    float *all = memory_zeroed((size_t)size * N, sizeof *all);
    right &= comm_all_gather(comm, f, all, N * sizeof *f, &error) == 0;
    for (int r = 0; r < size; r++)
        right &= memcmp(all + (size_t)r * N, f, N * sizeof *f) == 0;
    right &= comm_all_reduce(comm, d, 2, COMM_F64, COMM_MAX, &error) == 0;
    right &= d[0] == size - 1 && d[1] == 0;
    right &= comm_all_reduce(comm, u, 2, COMM_U64, COMM_SUM, &error) == 0;
    right &= u[0] == ((uint64_t)size << 40) + (uint64_t)(size * (size - 1) / 2);
    right &= u[1] == (uint64_t)size;
    right &= comm_all_reduce(comm, NULL, 0, COMM_F32, COMM_SUM, &error) == 0;
    free(f);
    free(again);
    free(all);
    ok(right, what);
}

static unsigned char byte_of(int from, int to, size_t i)
{
    return (unsigned char)(from * 31 + to * 7 + (int)(i % 251));
}

// bytes_of(from, to) bytes between every pair.
static int ragged_right(struct comm *comm, size_t (*bytes_of)(int from, int to))
{
    int rank = comm_rank(comm), size = comm_size(comm), right = 1;
    size_t *send_bytes = memory_zeroed((size_t)size, sizeof *send_bytes), send_total = 0;
    size_t *recv_bytes = memory_zeroed((size_t)size, sizeof *recv_bytes), recv_total = 0;
    unsigned char *send, *recv, *at;

    for (int r = 0; r < size; r++) {
        send_total += send_bytes[r] = bytes_of(rank, r);
        recv_total += recv_bytes[r] = bytes_of(r, rank);
    }
    at = send = memory_zeroed(send_total + 1, 1);
    for (int r = 0; r < size; r++)
        for (size_t i = 0; i < send_bytes[r]; i++)
            *at++ = byte_of(rank, r, i);
    at = recv = memory_zeroed(recv_total + 1, 1);
    right &= comm_all_to_all_v(comm, send, send_bytes, recv, recv_bytes, &error) == 0;
    for (int r = 0; r < size; r++)
        for (size_t i = 0; i < recv_bytes[r]; i++)
            right &= *at++ == byte_of(r, rank, i);
    right &= *at == 0;
    free(send);
    free(recv);
    free(send_bytes);
    free(recv_bytes);
    return right;
}

static size_t bytes_ragged(int from, int to)
{
    return (from + to) % 3 == 0 ? 0 : (size_t)(1 + 977 * from + 3001 * to);
}

static size_t bytes_one_way(int from, int to)
{
    return from == 0 && to > 0 ? 5000 : 0;
}

static size_t bytes_none(int from, int to)
{
    (void)from, (void)to;
    return 0;
}

static void exchanges(void)
{
    enum { N = 700 };
    int rank = comm_rank(world), size = comm_size(world), right = 1;
    int *send = memory_zeroed((size_t)size * N, sizeof *send);
    int *recv = memory_zeroed((size_t)size * N, sizeof *recv);

    for (int r = 0; r < size; r++)
        for (int i = 0; i < N; i++)
            send[r * N + i] = (rank * size + r) * N + i;
    right &= comm_all_to_all(world, send, recv, N * sizeof *send, &error) == 0;
    for (int r = 0; r < size; r++)
        for (int i = 0; i < N; i++)
            right &= recv[r * N + i] == (r * size + rank) * N + i;
    ok(right, "even all-to-all");
    free(send);
    free(recv);
    ok(ragged_right(world, bytes_ragged), "ragged all-to-all with empty pairs");
    ok(ragged_right(world, bytes_one_way), "all-to-all from one rank only");
    ok(ragged_right(world, bytes_none), "empty all-to-all");
}

static void broadcasts(void)
{
    int right = 1;

    for (int root = 0; root < comm_size(world); root++) {
        char data[2500];
        memset(data, comm_rank(world) == root ? 'a' + root : '.', sizeof data);
        right &= comm_broadcast(world, data, sizeof data, root, &error) == 0;
        for (size_t i = 0; i < sizeof data; i++)
            right &= data[i] == 'a' + root;
    }
    right &= comm_broadcast(world, NULL, 0, 0, &error) == 0;
    right &= comm_barrier(world, &error) == 0;
    ok(right, "broadcast from every root");
}

static void groups(void)
{
    int rank = comm_rank(world), size = comm_size(world), right = 1;
    struct comm *half = NULL, *alone = NULL;

    right &= comm_split(world, rank % 2, -rank, &half, &error) == 0;
    right &= comm_size(half) == (size + 1 - rank % 2) / 2;
    right &= comm_rank(half) == comm_size(half) - 1 - rank / 2; // ordered by key: backwards
    ok(right, "split into halves");
    sums_and_maxima(half, "sums within a split group");
    ok(ragged_right(half, bytes_ragged), "ragged all-to-all within a split group");
    right = comm_split(half, comm_rank(half), 0, &alone, &error) == 0;
    right &= comm_size(alone) == 1 && ragged_right(alone, bytes_ragged);
    ok(right, "a group of one split from a group");
    comm_destroy(alone);
    comm_destroy(half);
}

// Ranks 1 and above fail, each with a text of its own: all learn that of the lowest.
static void agreement(void)
{
    int rank = comm_rank(world), last = comm_size(world) - 1, lowest = last < 1 ? last : 1;
    int failed = 7, right, rc;
    struct fl_error e = {0};

    right = comm_agree(world, 0, &failed, &e) == 0 && failed == -1 && !e.text[0];
    rc = rank < lowest ? 0 : error_set(&e, -EINVAL - rank, "rank %d has no bread", rank);
    right &= comm_agree(world, rc, &failed, &e) == -EINVAL - lowest && failed == lowest;
    right &= !strncmp(e.text, "rank ", 5) && atoi(e.text + 5) == lowest;
    ok(right, "the lowest failing rank's error is everyone's");
}

static int file_exists(void *context, struct fl_error *e)
{
    const char *path = context;
    return access(path, F_OK) == 0 ? error_set(e, -ECONNABORTED, "the watch saw a rank die") : 0;
}

// The last rank dies by SIGKILL while the others wait for it in one call after another.
static int killed(char *path)
{
    struct timespec start, end;
    struct comm *group;
    uint64_t one = 1;
    int last = comm_size(world) - 1, rc = 0;
    double seconds;

    comm_watch(world, file_exists, path);
    if (comm_split(world, 0, comm_rank(world), &group, &error) < 0)
        return 1;
    if (comm_rank(world) == last) {
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
        close(open(path, O_WRONLY | O_CREAT, 0600));
        raise(SIGKILL);
    }
    clock_gettime(CLOCK_MONOTONIC, &start);
    while (rc == 0) // a reduction may end on some ranks before all have come
        rc = comm_all_reduce(group, &one, 1, COMM_U64, COMM_SUM, &error);
    clock_gettime(CLOCK_MONOTONIC, &end);
    seconds = (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) * 1e-9;
    fprintf(stderr, "rank %d: %d after %s: %s\n", comm_rank(world), rc,
            seconds < 5 ? "less than 5 s" : "too long", error.text);
    rc = comm_barrier(world, &error);
    fprintf(stderr, "rank %d: then %d: %s\n", comm_rank(world), rc, error.text);
    comm_destroy(group);
    comm_destroy(world);
    _exit(3);
}

int main(int argc, char **argv)
{
    int ranks = argc > 1 ? atoi(argv[1]) : 1, rank;
    int rc = argc > 1 ? comm_mpi_create(ranks, &world, &error) : comm_self_create(&world, &error);

    if (rc < 0) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    if (argc > 3)
        return killed(argv[3]);
    sums_and_maxima(world, "sums and maxima");
    exchanges();
    broadcasts();
    groups();
    agreement();
    rank = comm_rank(world);
    comm_destroy(world);
    if (rank == 0)
        printf("1..%d\n", test_number);
    return failures != 0;
}
