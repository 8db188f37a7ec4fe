// SPDX-License-Identifier: Apache-2.0
// Stands for mpi.c where configure found no MPI.
#include "comm/comm.h"

#include <errno.h>

int comm_mpi_create(int expected_size, struct comm **out, struct fl_error *e)
{
    *out = NULL;
    return error_set(e, -ENOTSUP,
                     "%d ranks on the CPU need MPI, which this build lacks: install libopenmpi-dev "
                     "and configure again, or run one rank",
                     expected_size);
}
