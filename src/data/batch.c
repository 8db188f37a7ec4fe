// SPDX-License-Identifier: Apache-2.0
// Memory of a micro-batch.
#include "data/batch.h"

#include "base/memory.h"

#include <stdlib.h>

struct batch *batch_create(size_t tokens, size_t samples)
{
    struct batch *b = memory_zeroed(1, sizeof *b);

    b->ids = memory_zeroed(tokens, sizeof *b->ids);
    b->targets = memory_zeroed(tokens, sizeof *b->targets);
    b->positions = memory_zeroed(tokens, sizeof *b->positions);
    b->starts = memory_zeroed(samples + 1, sizeof *b->starts);
    b->keys = memory_zeroed(tokens, sizeof *b->keys);
    return b;
}

void batch_destroy(struct batch *b)
{
    if (!b)
        return;
    free(b->ids);
    free(b->targets);
    free(b->positions);
    free(b->starts);
    free(b->keys);
    free(b);
}
