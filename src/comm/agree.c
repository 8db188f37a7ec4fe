// SPDX-License-Identifier: Apache-2.0
// All ranks of a group agree whether a stage succeeded.
#include "comm/agree.h"

int comm_agree(struct comm *comm, int rc, int *failed_rank, struct fl_error *e)
{
    int failed = rc < 0 ? comm_rank(comm) : -1, asked;
    // The lowest failing rank is the greatest distance from the end.
    uint64_t distance = rc < 0 ? (uint64_t)(comm_size(comm) - comm_rank(comm)) : 0;
    struct fl_error first = rc < 0 ? *e : (struct fl_error){0};

    if (!comm_alive(comm))
        goto out;
    asked = comm_all_reduce(comm, &distance, 1, COMM_U64, COMM_MAX, &first);
    if (asked == 0 && distance) {
        failed = comm_size(comm) - (int)distance;
        asked = comm_broadcast(comm, &first, sizeof first, failed, &first);
    }
    if (asked == 0 && distance) {
        *e = first;
        rc = first.code;
    } else if (asked < 0 && rc == 0) {
        *e = first;
        rc = asked;
        failed = comm_rank(comm);
    }
out:
    if (failed_rank)
        *failed_rank = failed;
    return rc;
}
