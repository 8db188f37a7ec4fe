// SPDX-License-Identifier: Apache-2.0
// The tiny checkpoint on one rank, ready to train, with a batch of made-up tokens.
#ifndef FL_TESTS_TRAIN_STAGE_H
#define FL_TESTS_TRAIN_STAGE_H

#include "unit/check.h"

#include "base/memory.h"
#include "comm/comm.h"
#include "job/plan.h"
#include "net/net.h"

#include <stdlib.h>

#define TINY FL_SOURCE_DIR "/tests/data/tiny-qwen3-moe-fp8"

enum { SAMPLES = 2, LENGTH = 24, TOKENS = SAMPLES * LENGTH };

struct stage {
    struct spec *spec;
    struct model model;
    struct layout layout;
    struct comm *world;
    struct arena *arena;
    struct ops *ops;
    struct model_weights *weights;
    struct adapters *adapters;
    struct net *net;
    struct batch *batch;
    struct fl_error e;
};

// A cmocka setup; *state becomes the struct stage.
static inline int stage_setup(void **state)
{
    static const char job[] = "model: " TINY "\ndataset: x\noutput_dir: y\nnumerics: exact\n"
                              "lora_rank: 4\nlora_alpha: 8\nlora_dropout: 0\nclip_grad: 0.5\n"
                              "moe_aux_loss_coeff: 0\n";
    struct stage *s = memory_zeroed(1, sizeof *s);

    check_ok(spec_parse_yaml(job, sizeof job - 1, "job", &s->spec, &s->e), &s->e);
    check_ok(model_load(TINY, &s->model, &s->e), &s->e);
    check_ok(layout_make(s->spec, &s->model, 1, 0, &s->layout, &s->e), &s->e);
    check_ok(comm_self_create(&s->world, &s->e), &s->e);
    check_ok(arena_create_host(0, &s->arena, &s->e), &s->e);
    check_ok(ops_cpu_create(&s->model, NUMERICS_EXACT, s->arena, &s->ops, &s->e), &s->e);
    check_ok(model_weights_create(&s->model, &s->layout, s->arena, &s->weights, &s->e), &s->e);
    check_ok(model_weights_load(s->weights, TINY, &s->model, &s->layout, 1, NULL, NULL, &s->e),
             &s->e);
    check_ok(adapters_create(s->spec, &s->model, &s->layout, s->arena, &s->adapters, &s->e), &s->e);
    adapters_init(s->adapters, 1);
    const struct net_config config = {.spec = s->spec,
                                      .model = &s->model,
                                      .layout = &s->layout,
                                      .ops = s->ops,
                                      .arena = s->arena,
                                      .ep_comm = s->world,
                                      .weights = s->weights,
                                      .adapters = s->adapters};
    check_ok(net_create(&config, &s->net, &s->e), &s->e);
    s->batch = batch_create(TOKENS, SAMPLES);
    s->batch->tokens = TOKENS;
    s->batch->samples = SAMPLES;
    for (int i = 0; i <= SAMPLES; i++)
        s->batch->starts[i] = i * LENGTH;
    for (int t = 0; t < TOKENS; t++) {
        s->batch->ids[t] = (t * 37 + 11) % s->model.vocab;
        s->batch->positions[t] = t % LENGTH;
        s->batch->keys[t] = (uint64_t)t;
        s->batch->targets[t] = (t * 53 + 5) % s->model.vocab;
    }
    s->batch->target_count = TOKENS;
    *state = s;
    return 0;
}

static inline int stage_teardown(void **state)
{
    struct stage *s = *state;

    batch_destroy(s->batch);
    net_destroy(s->net);
    adapters_destroy(s->adapters);
    model_weights_destroy(s->weights);
    ops_destroy(s->ops);
    arena_destroy(s->arena);
    comm_destroy(s->world);
    spec_destroy(s->spec);
    free(s);
    return 0;
}

static inline size_t params_count(const struct stage *s)
{
    return s->adapters->replicated + s->adapters->expert;
}

#endif
