// SPDX-License-Identifier: Apache-2.0
// A build without CUDA has no GPUs.
#include "mem/arena.h"
#include "ops/ops.h"

#include <errno.h>

static int absent(struct fl_error *e)
{
    return error_set(e, -ENOTSUP, "built without CUDA: configure with --with-cuda");
}

int ops_cuda_devices(void)
{
    return 0;
}

int ops_cuda_use(int device, struct fl_error *e)
{
    (void)device;
    return absent(e);
}

int ops_cuda_create(const struct model *model, struct arena *arena, struct ops **out,
                    struct fl_error *e)
{
    (void)model, (void)arena;
    *out = NULL;
    return absent(e);
}

int arena_create_device(uint64_t cap_bytes, struct arena **out, struct fl_error *e)
{
    (void)cap_bytes;
    *out = NULL;
    return absent(e);
}
