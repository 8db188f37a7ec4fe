// SPDX-License-Identifier: Apache-2.0
// All ranks of a group agree whether a stage succeeded, so that none goes on or waits alone.
#ifndef FL_COMM_AGREE_H
#define FL_COMM_AGREE_H

#include "comm/comm.h"

// rc and e: how this rank fared. When a rank failed, every rank gets the code and text of the
// lowest one that did; *failed_rank (may be NULL) is its number, -1 when all are well. In a dead
// group nobody can be asked: rc and e stay this rank's own.
int comm_agree(struct comm *comm, int rc, int *failed_rank, struct fl_error *e);

#endif
