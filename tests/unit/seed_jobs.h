// SPDX-License-Identifier: Apache-2.0
// Two command lines of the old trainer, word for word as a shell hands them over.
#ifndef FL_TESTS_UNIT_SEED_JOBS_H
#define FL_TESTS_UNIT_SEED_JOBS_H

#define SEED_ENVIRONMENT                                                                           \
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "NPROC_PER_NODE=8",                        \
        "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7"

#define SEED_SAME_1                                                                                \
    "--target_modules", "all-linear", "--load_safetensors", "true", "--save_safetensors", "true"

#define SEED_SAME_2                                                                                \
    "--fp8_param_gather", "true", "--dataset", "/test/ml/CodeAlpaca-20k.jsonl",                    \
        "--load_from_cache_file", "true"

#define SEED_SAME_3                                                                                \
    "--expert_model_parallel_size", "8", "--moe_permute_fusion", "true", "--moe_grouped_gemm",     \
        "true", "--moe_shared_expert_overlap", "true", "--moe_aux_loss_coeff", "1e-6"

#define SEED_SAME_4                                                                                \
    "--global_batch_size", "16", "--recompute_granularity", "full", "--recompute_method",          \
        "uniform", "--recompute_num_layers", "1", "--max_epochs", "1", "--finetune", "true",       \
        "--cross_entropy_loss_fusion", "true", "--lr", "1e-5", "--lr_warmup_fraction", "0.05",     \
        "--min_lr", "1e-6"

#define SEED_SAME_5                                                                                \
    "--eval_interval", "200", "--save_interval", "200", "--max_length", "2048", "--num_workers",   \
        "8", "--dataset_num_proc", "8", "--no_save_optim", "true", "--no_save_rng", "true",        \
        "--sequence_parallel", "true", "--moe_expert_capacity_factor", "2",                        \
        "--use_precision_aware_optimizer", "true", "--exp_avg_dtype", "bf16",                      \
        "--exp_avg_sq_dtype", "bf16", "--attention_backend", "flash", "--model_author", "swift"

static const char *const seed_job_1[] = {SEED_ENVIRONMENT,
                                         "sft",
                                         "--model",
                                         "/test/weights/Qwen3-Coder-30B-A3B-Instruct-FP8",
                                         "--train_type",
                                         "lora",
                                         "--lora_rank",
                                         "16",
                                         "--lora_alpha",
                                         "32",
                                         SEED_SAME_1,
                                         "--fp8_recipe",
                                         "delayed",
                                         "--fp8_format",
                                         "hybrid",
                                         SEED_SAME_2,
                                         "--tensor_model_parallel_size",
                                         "1",
                                         SEED_SAME_3,
                                         "--micro_batch_size",
                                         "2",
                                         SEED_SAME_4,
                                         "--save",
                                         "megatron_output/Qwen3-Coder-30B-A3B-Instruct-FP8-result",
                                         SEED_SAME_5,
                                         "--main_params_dtype",
                                         "fp16",
                                         "--model_name",
                                         "swift-robot",
                                         "--merge_lora",
                                         "false"};

static const char *const seed_job_2[] = {
    SEED_ENVIRONMENT,
    "sft",
    "--model",
    "/test/weights/Qwen3-Coder-480B-A35B-Instruct-FP8",
    "--train_type",
    "lora",
    "--lora_rank",
    "128",
    "--lora_alpha",
    "256",
    SEED_SAME_1,
    "--fp8_recipe",
    "blockwise",
    "--fp8_format",
    "e4m3",
    SEED_SAME_2,
    "--tensor_model_parallel_size",
    "2",
    SEED_SAME_3,
    "--micro_batch_size",
    "4",
    SEED_SAME_4,
    "--save",
    "megatron_output/Qwen3-Coder-480B-A35B-Instruct-FP8-result",
    SEED_SAME_5,
    "--model_name",
    "swift-robot",
    "--merge_lora",
    "false"};

// Count and words, as spec_load takes them.
#define SEED_WORDS(job) (int)(sizeof(job) / sizeof *(job)), (char *const *)(job)

#endif
