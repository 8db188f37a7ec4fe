// SPDX-License-Identifier: Apache-2.0
// Runs in the core's place: a rank whose arena takes more than was planned, under the cap that the
// plugin hands over, and ends as the core does.
#include "base/log.h"
#include "train/launch.h"
#include "train/slot.h"

#include <stdlib.h>

#define PIECE ((size_t)8 << 20)

int main(int argc, char **argv)
{
    struct plan plan = {0};
    struct launch launch;
    struct arena *arena = NULL;
    struct slot *slot = NULL;
    struct fl_error e;
    void *at;
    int rc = launch_read(argc, argv, &launch, &e);

    if (rc == 0) {
        plan.layout.world = launch.world;
        plan.layout.rank = launch.rank;
        rc = slot_create(&plan, launch.local_rank, launch.cap, &slot, &e);
    }
    if (rc == 0)
        rc = arena_create_host(launch.cap, &arena, &e);
    while (rc == 0)
        rc = arena_alloc(arena, MEMORY_ACTIVATIONS, PIECE, &at, &e);
    if (launch.cap_source)
        error_prefix(&e, "%s", launch.cap_source);
    log_error("%s", e.text);
    if (arena)
        slot_memory(slot, arena);
    if (slot)
        slot_state(slot, RANK_FAILED, e.text);
    slot_destroy(slot);
    arena_destroy(arena);
    launch_clear(&launch);
    return EXIT_FAILURE;
}
