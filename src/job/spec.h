// SPDX-License-Identifier: Apache-2.0
// A job as its user wrote it: job.yaml or the old trainer's flags, one table of names for both.
#ifndef FL_JOB_SPEC_H
#define FL_JOB_SPEC_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum backend { BACKEND_AUTO, BACKEND_CPU, BACKEND_CUDA };
enum numerics { NUMERICS_FP8, NUMERICS_EXACT }; // exact: dequantised weights, fp32 throughout (CPU)
// The chat template; AUTO: what the model's own says.
enum chat_template { CHAT_AUTO, CHAT_QWEN3_CODER, CHAT_QWEN3 };
enum decay { DECAY_COSINE, DECAY_LINEAR, DECAY_CONSTANT };
// What of a layer is computed again for its backward pass; AUTO: as little as the cap allows.
enum recompute { RECOMPUTE_FULL, RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_AUTO };
enum recompute_part { RECOMPUTE_EXPERTS, RECOMPUTE_ATTENTION }; // of SELECTIVE
enum storage { STORAGE_FP32, STORAGE_FP16, STORAGE_BF16, STORAGE_FP8 };
// Where the inputs of layers that are computed again wait.
enum layer_inputs { LAYER_INPUTS_DEVICE, LAYER_INPUTS_FP8, LAYER_INPUTS_HOST };

// LoRA targets. QKV, PROJ, FC1, FC2 are the fused modules, one A each; Q, K, V have an A of their
// own and are used instead of QKV.
enum lora_target {
    LORA_QKV = 1 << 0,
    LORA_Q = 1 << 1,
    LORA_K = 1 << 2,
    LORA_V = 1 << 3,
    LORA_PROJ = 1 << 4,
    LORA_FC1 = 1 << 5,
    LORA_FC2 = 1 << 6,
    LORA_ALL_LINEAR = LORA_QKV | LORA_PROJ | LORA_FC1 | LORA_FC2,
};

struct spec {
    char *source; // "job.yaml" or "command line", for messages

    char *model;                     // folder in Hugging Face layout
    char **datasets, **val_datasets; // files
    size_t dataset_count, val_dataset_count;
    double split_dataset_ratio; // of the samples that validate; 0: none
    enum chat_template chat_template;
    char *output_dir;

    enum backend backend;
    enum numerics numerics;

    unsigned lora_targets; // enum lora_target
    int lora_rank;
    double lora_alpha, lora_dropout; // scale = alpha / rank

    int tensor_parallel, expert_parallel;
    int micro_batch_size, global_batch_size; // samples
    int max_length;                          // tokens of a sample; longer ones are dropped
    double aux_loss_coeff;                   // 0: none
    double capacity_factor;                  // 0: dropless

    enum recompute recompute;
    enum recompute_part recompute_part;
    enum layer_inputs layer_inputs;
    bool shard_frozen;      // attention, embedding and head weights are spread over the ranks
    bool optimizer_offload; // optimizer states wait in host memory
    enum storage main_params, main_grads, exp_avg, exp_avg_sq;

    double lr, min_lr, lr_warmup_fraction;
    enum decay lr_decay;
    double weight_decay, adam_beta1, adam_beta2, adam_eps, clip_grad; // clip_grad 0: none
    int epochs;
    int64_t train_iters;                                // 0: epochs decide
    int64_t eval_interval, save_interval, log_interval; // iterations; 0: never
    int eval_iters;                                     // global batches an evaluation; 0: all
    uint64_t seed;
    int threads; // data threads a rank

    int nproc_per_node; // NPROC_PER_NODE before `sft`: ranks of the old launcher; 0: not given
    char **notes;       // "flag: what is so instead", of given flags without their old effect
    size_t note_count;
};

// Parses YAML text; name is the file's name for messages. On success *out is the caller's.
int spec_parse_yaml(const char *text, size_t bytes, const char *name, struct spec **out,
                    struct fl_error *e);

// Parses the words after `--`: NAME=VALUE environment words, `sft`, --flag value, --flag=value,
// --flag.
int spec_parse_flags(int argc, char *const *argv, struct spec **out, struct fl_error *e);

// Reads either form: one word naming a file, or flags. What srun, the core and the tool call.
int spec_load(int argc, char *const *argv, struct spec **out, struct fl_error *e);

void spec_destroy(struct spec *spec); // NULL-safe

// Whether there are samples to evaluate on.
static inline bool spec_evaluates(const struct spec *spec)
{
    return spec->val_dataset_count > 0 || spec->split_dataset_ratio > 0;
}

#endif
