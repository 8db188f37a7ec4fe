// SPDX-License-Identifier: Apache-2.0
// Which backend runs a job, and its start on this rank.
#include "train/backend.h"

#include "job/runnable.h"

#include <errno.h>

static int cuda_refuse(const struct spec *spec, const char *why, struct fl_error *e)
{
    return error_set(e, -ENOTSUP, "%s: backend cuda: %s", spec->source, why);
}

int backend_choose(struct spec *spec, struct fl_error *e)
{
    spec->backend = runnable_backend(spec);
    if (spec->backend == BACKEND_CPU)
        return 0;
    if (ops_cuda_devices() == 0)
        return cuda_refuse(spec,
                           "no GPU is visible to this build: take a build with CUDA on a node with "
                           "a driver and request GPUs, or write backend: cpu",
                           e);
    if (spec->numerics == NUMERICS_EXACT)
        return cuda_refuse(
            spec, "numerics exact runs on the CPU: write backend: cpu or numerics: fp8", e);
    return 0;
}

int backend_open(const struct spec *spec, const struct model *model, int device, uint64_t cap_bytes,
                 struct arena **arena, struct ops **ops, struct fl_error *e)
{
    int rc;

    if (spec->backend == BACKEND_CPU) {
        rc = arena_create_host(cap_bytes, arena, e);
        return rc < 0 ? rc : ops_cpu_create(model, spec->numerics, *arena, ops, e);
    }
    rc = ops_cuda_use(device, e);
    if (rc == 0)
        rc = arena_create_device(cap_bytes, arena, e);
    return rc < 0 ? rc : ops_cuda_create(model, *arena, ops, e);
}
