// SPDX-License-Identifier: Apache-2.0
// The first-step gate.
#include "train/gate.h"

#include "base/memory.h"
#include "comm/agree.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gate {
    const struct model *model;
    const struct adapters *adapters;
    uint64_t *reached; // [layers, experts] tokens whose gradient must reach the expert
    const struct batch *batch;
    int *experts;                 // [batch->tokens, top_k] of the layer
    bool *matters, *matters_last; // [batch->tokens] to the loss; through the last layer
};

struct gate *gate_create(const struct model *model, const struct adapters *adapters)
{
    struct gate *gate = memory_zeroed(1, sizeof *gate);

    gate->model = model;
    gate->adapters = adapters;
    gate->reached = memory_zeroed((size_t)model->layers * (size_t)model->experts, sizeof(uint64_t));
    return gate;
}

void gate_destroy(struct gate *gate)
{
    if (!gate)
        return;
    free(gate->reached);
    free(gate->experts);
    free(gate->matters);
    free(gate->matters_last);
    free(gate);
}

// kept: [tokens, top_k], 0 where the capacity dropped the token.
static void routing_note(struct gate *gate, int layer, const real *kept)
{
    const struct model *m = gate->model;
    uint64_t *reached = gate->reached + (size_t)layer * (size_t)m->experts;
    const bool *matters = layer == m->layers - 1 ? gate->matters_last : gate->matters;
    int slots = gate->batch->tokens * m->top_k;

    for (int s = 0; s < slots; s++)
        reached[gate->experts[s]] += matters[s / m->top_k] && kept[s] > 0;
}

// The routing decision comes before what the capacity left of it.
static void gate_see(void *context, const char *what, int layer, const real *values, int rows,
                     int cols)
{
    struct gate *gate = context;
    size_t slots = (size_t)rows * (size_t)cols;

    if (strcmp(what, "experts") == 0) {
        gate->experts = memory_resize(gate->experts, slots + 1, sizeof *gate->experts);
        for (size_t s = 0; s < slots; s++)
            gate->experts[s] = (int)values[s];
    } else if (strcmp(what, "kept") == 0) {
        routing_note(gate, layer, values);
    }
}

void gate_batch(struct gate *gate, struct net *net, const struct batch *batch)
{
    const struct net_probe probe = {.see = gate_see, .context = gate};

    gate->batch = batch;
    gate->matters = memory_resize(gate->matters, (size_t)batch->tokens + 1, sizeof(bool));
    gate->matters_last = memory_resize(gate->matters_last, (size_t)batch->tokens + 1, sizeof(bool));
    for (int s = 0; s < batch->samples; s++) {
        bool behind = false;
        for (int t = batch->starts[s + 1] - 1; t >= batch->starts[s]; t--) {
            gate->matters_last[t] = batch->targets[t] >= 0;
            gate->matters[t] = behind |= batch->targets[t] >= 0;
        }
    }
    net_probe_set(net, &probe);
}

static const char *module_name(const struct adapter *adapter, char *text, size_t bytes)
{
    const char *name = adapter->target == LORA_QKV    ? "self_attn.linear_qkv"
                       : adapter->target == LORA_Q    ? "self_attn.q_proj"
                       : adapter->target == LORA_K    ? "self_attn.k_proj"
                       : adapter->target == LORA_V    ? "self_attn.v_proj"
                       : adapter->target == LORA_PROJ ? "self_attn.linear_proj"
                       : adapter->target == LORA_FC1  ? "linear_fc1"
                                                      : "linear_fc2";

    if (adapter->expert < 0)
        snprintf(text, bytes, "model.layers.%d.%s", adapter->layer, name);
    else
        snprintf(text, bytes, "model.layers.%d.mlp.experts.%d.%s", adapter->layer, adapter->expert,
                 name);
    return text;
}

// Whether a token the loss depends on came to the module.
static bool module_reached(const struct gate *gate, const struct adapter *adapter)
{
    return adapter->expert < 0 ||
           gate->reached[(size_t)adapter->layer * (size_t)gate->model->experts +
                         (size_t)adapter->expert] > 0;
}

static int modules_check(const struct gate *gate, struct ops *ops, struct fl_error *e)
{
    char name[96];

    for (int i = 0; i < gate->adapters->count; i++) {
        const struct adapter *adapter = &gate->adapters->list[i];
        double squares;
        int rc;
        if (!module_reached(gate, adapter))
            continue;
        rc = ops->sum_squares(ops, gate->adapters->grads + adapter->b,
                              (size_t)adapter->out * (size_t)adapter->rank, &squares, e);
        if (rc < 0)
            return rc;
        if (!(squares > 0))
            return error_set(e, -EDOM,
                             "iteration 1: %s received tokens, but the gradient of its lora_B is "
                             "zero: it would not be trained; take it out of target_modules",
                             module_name(adapter, name, sizeof name));
    }
    return 0;
}

int gate_check(struct gate *gate, struct net *net, double loss, double norm, struct ops *ops,
               struct comm *world, struct fl_error *e)
{
    double most = log(gate->model->vocab) + 1;
    int rc;

    net_probe_set(net, &(struct net_probe){0});
    if (!isfinite(loss))
        return error_set(e, -EDOM,
                         "iteration 1: the lm loss is not finite: the checkpoint is damaged or not "
                         "what its config.json says");
    if (loss > most)
        return error_set(e, -EDOM,
                         "iteration 1: lm loss %.4f is above ln(vocabulary) + 1 = %.4f, worse than "
                         "guessing: check that model and tokenizer belong together",
                         loss, most);
    if (!isfinite(norm) || norm == 0)
        return error_set(e, -EDOM,
                         "iteration 1: the gradient norm is %s: nothing would be trained; check "
                         "target_modules and the data",
                         norm == 0 ? "zero" : "not finite");
    rc = comm_all_reduce(world, gate->reached,
                         (size_t)gate->model->layers * (size_t)gate->model->experts, COMM_U64,
                         COMM_SUM, e);
    if (rc == 0)
        rc = modules_check(gate, ops, e);
    return comm_agree(world, rc, NULL, e);
}
