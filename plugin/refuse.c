// SPDX-License-Identifier: Apache-2.0
// Ends a client or a task with one line.
#include "refuse.h"

#include <slurm/spank.h>
#include <stdlib.h>
#include <unistd.h>

_Noreturn void refuse_client(const struct fl_error *e)
{
    slurm_error("fp8-lora: %s", e->text);
    exit(EXIT_FAILURE);
}

_Noreturn void refuse_task(const struct fl_error *e)
{
    slurm_error("fp8-lora: %s", e->text);
    _exit(EXIT_FAILURE);
}
