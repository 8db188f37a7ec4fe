// SPDX-License-Identifier: Apache-2.0
// What a plan can count and this version's trainer cannot run yet.
#include "job/runnable.h"

#include <errno.h>

enum backend runnable_backend(const struct spec *spec)
{
    return spec->backend == BACKEND_CUDA ? BACKEND_CUDA : BACKEND_CPU;
}

// Of the network, on any backend.
static bool network_gap(const struct spec *spec, struct runnable_gap *gap)
{
    const struct {
        bool asked;
        struct runnable_gap gap;
    } refused[] = {
        {spec->tensor_parallel > 1,
         {"tensor_model_parallel_size above 1", "use 1 and more data-parallel ranks"}},
        {spec->recompute == RECOMPUTE_SELECTIVE && spec->recompute_part == RECOMPUTE_ATTENTION,
         {"recompute_modules attention", "write experts, or recompute_granularity full"}},
        {spec->layer_inputs != LAYER_INPUTS_DEVICE,
         {"layer_inputs other than device", "write device"}},
        {spec->shard_frozen, {"shard_frozen", "write false"}},
        {spec->optimizer_offload, {"optimizer_offload", "write false"}},
    };

    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (refused[i].asked) {
            *gap = refused[i].gap;
            return true;
        }
    return false;
}

bool runnable_gap(const struct spec *spec, bool on_gpu, const struct gpu *gpu, int world,
                  struct runnable_gap *gap)
{
    if (network_gap(spec, gap))
        return true;
    if (on_gpu && world > 1) { // the one line to lift when the CUDA backend runs more
        *gap = (struct runnable_gap){"backend cuda on more than one rank",
                                     "start one task, or write backend: cpu"};
        return true;
    }
    if (on_gpu && gpu && !gpu->kernels) {
        *gap = (struct runnable_gap){"backend cuda on this GPU", "its kernels are Hopper's"};
        return true;
    }
    return false;
}

int runnable_check(const struct spec *spec, int world, struct fl_error *e)
{
    struct runnable_gap gap;

    if (!runnable_gap(spec, runnable_backend(spec) == BACKEND_CUDA, NULL, world, &gap))
        return 0;
    return error_set(e, -ENOTSUP, "%s: this version's trainer cannot run %s: %s", spec->source,
                     gap.what, gap.instead);
}

bool runnable_network(const struct spec *spec)
{
    struct runnable_gap gap;

    return !network_gap(spec, &gap);
}

int runnable_shapes(const struct spec *spec, const struct model *model, const struct layout *layout,
                    struct fl_error *e)
{
    const struct {
        const char *key;
        int value, step, most; // a multiple of step, at most so much
    } limits[] = {
        {"hidden_size", model->hidden, 16, 16384},
        {"moe_intermediate_size", model->expert_width, 16, 65536},
        {"head_dim", model->head_dim, 64, 128},
        {"num_experts", model->experts, 1, 512},
        {"experts of a rank", layout->experts_local, 1, 256},
        {"num_experts_per_tok", model->top_k, 1, 64},
        {"vocab_size", model->vocab, 1, 393216},
        {"lora_rank", spec->lora_rank, 1, 256},
    };

    if (spec->backend != BACKEND_CUDA)
        return 0;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].value % limits[i].step || limits[i].value > limits[i].most)
            return error_set(e, -ENOTSUP,
                             "%s: backend cuda: %s %d is not a multiple of %d up to %d: choose "
                             "another, or write backend: cpu",
                             spec->source, limits[i].key, limits[i].value, limits[i].step,
                             limits[i].most);
    return 0;
}
