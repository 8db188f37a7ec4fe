// SPDX-License-Identifier: Apache-2.0
// Collectives over a group of ranks; one header for self, MPI and NCCL.
//
// Every call is made by all ranks of the group in the same order. A failed or aborted call returns
// -ECONNABORTED (a peer died or gave up) or another negative errno, and the group is then dead.
// While a call waits it yields the core and polls the watch, so that no rank hangs on a dead peer.
#ifndef FL_COMM_COMM_H
#define FL_COMM_COMM_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum comm_type { COMM_F32, COMM_F64, COMM_U64 };
enum comm_op { COMM_SUM, COMM_MAX };

struct comm;

int comm_self_create(struct comm **out, struct fl_error *e);
// MPI's world: initialises MPI once. expected_size: ranks the launcher promised; a different size
// (no --mpi=pmix) is an error that says so.
int comm_mpi_create(int expected_size, struct comm **out, struct fl_error *e);
// The ranks of equal color, ordered by key; color >= 0. The result is destroyed before its parent.
int comm_split(struct comm *comm, int color, int key, struct comm **out, struct fl_error *e);
// NULL-safe; finalises MPI with the world. A dead group only frees its memory: MPI would wait for
// the dead rank, so the process then leaves by _exit.
void comm_destroy(struct comm *comm);

// Whether no call has failed in the group or in what it was split from, nor was it abandoned.
bool comm_alive(const struct comm *comm);
// This rank gives up alone: the group is dead to it from now on, and its end ends the others.
void comm_abandon(struct comm *comm);

int comm_rank(const struct comm *comm);
int comm_size(const struct comm *comm);

// Called about every 100 ms while a call waits; a negative return ends the call with that error.
// Groups split from comm afterwards watch likewise.
void comm_watch(struct comm *comm, int (*watch)(void *context, struct fl_error *e), void *context);

// In place. Sums are deterministic for a given group size.
int comm_all_reduce(struct comm *comm, void *data, size_t count, enum comm_type type,
                    enum comm_op op, struct fl_error *e);
// recv holds size * bytes, ordered by rank.
int comm_all_gather(struct comm *comm, const void *send, void *recv, size_t bytes,
                    struct fl_error *e);
// bytes from every rank to every rank.
int comm_all_to_all(struct comm *comm, const void *send, void *recv, size_t bytes,
                    struct fl_error *e);
// Ragged: send_bytes[i] to rank i from consecutive places, recv_bytes[i] from rank i likewise.
int comm_all_to_all_v(struct comm *comm, const void *send, const size_t *send_bytes, void *recv,
                      const size_t *recv_bytes, struct fl_error *e);
int comm_broadcast(struct comm *comm, void *data, size_t bytes, int root, struct fl_error *e);
int comm_barrier(struct comm *comm, struct fl_error *e);

#endif
