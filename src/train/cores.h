// SPDX-License-Identifier: Apache-2.0
// How many threads a CPU rank runs.
#ifndef FL_TRAIN_CORES_H
#define FL_TRAIN_CORES_H

#include "comm/comm.h"

// Has OpenMP's threads sleep while they have nothing to do, unless OMP_WAIT_POLICY is set: on
// shared cores their spinning takes the time of those that work. OpenMP reads its settings before
// main, so this starts the program again; argv is main's.
void cores_idle_asleep(char **argv);

// OMP_NUM_THREADS when set; else the cores this rank may run on, divided by the ranks of its host
// that may run on one of them too; at least 1. All ranks call together.
int cores_threads(struct comm *world, int *threads, struct fl_error *e);

// Sets the threads of OpenMP regions and of BLAS.
void cores_use(int threads);

#endif
