// SPDX-License-Identifier: Apache-2.0
// A group of any size seen from one rank, without the others.
#ifndef FL_COMM_DRY_H
#define FL_COMM_DRY_H

#include "comm/comm.h"

// Collectives return at once. The peers are taken to be like this rank: each sends it what it sends
// itself. Buffers of a dry run (mem/dry.h) are not touched. Such a group cannot be split.
int comm_dry_create(int rank, int size, struct comm **out, struct fl_error *e);

#endif
