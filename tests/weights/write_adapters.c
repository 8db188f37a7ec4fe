// SPDX-License-Identifier: Apache-2.0
// Writes known adapters from several ranks. Usage: write_adapters RANKS EP FOLDER
#include "comm/comm.h"
#include "unit/adapter_fixture.h"
#include "weights/adapters_out.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    struct spec spec = adapter_spec(LORA_ALL_LINEAR);
    struct layout layout;
    struct comm *world = NULL;
    struct arena *arena = NULL;
    struct adapters *adapters = NULL;
    struct fl_error e;
    int rc;

    if (argc != 4)
        return 2;
    spec.expert_parallel = atoi(argv[2]);
    spec.tensor_parallel = 1;
    spec.micro_batch_size = 1;
    spec.global_batch_size = atoi(argv[1]);
    rc = comm_mpi_create(atoi(argv[1]), &world, &e);
    if (rc == 0)
        rc = layout_make(&spec, &adapter_model, comm_size(world), comm_rank(world), &layout, &e);
    if (rc == 0)
        rc = arena_create_host(0, &arena, &e);
    if (rc == 0)
        rc = adapters_create(&spec, &adapter_model, &layout, arena, &adapters, &e);
    if (rc == 0 && layout.ep_group == 0) // other replicas stay zero: theirs are not written
        adapters_fill(adapters);
    if (rc == 0)
        rc = adapters_write(argv[3], &spec, &adapter_model, &layout, adapters, world, &e);
    if (rc < 0)
        fprintf(stderr, "rank %d: %s\n", world ? comm_rank(world) : 0, e.text);
    adapters_destroy(adapters);
    arena_destroy(arena);
    comm_destroy(world);
    return rc < 0;
}
