// SPDX-License-Identifier: Apache-2.0
// Random jobs and models of any shape, the same in every run.
#ifndef FL_TESTS_UNIT_RANDOM_JOBS_H
#define FL_TESTS_UNIT_RANDOM_JOBS_H

#include "base/memory.h"
#include "base/philox.h"
#include "job/model.h"

static uint32_t draws;

// A number in [low, high], the same in every run.
static inline int drawn(int low, int high)
{
    const uint32_t counter[4] = {draws++, 0, 0, 0}, key[2] = {2026, 4};
    uint32_t random[4];

    philox4x32(counter, key, random);
    return low + (int)(random[0] % (uint32_t)(high - low + 1));
}

static inline const char *chosen(const char *const *list, int count)
{
    return list[drawn(0, count - 1)];
}
#define CHOSEN(list) chosen(list, (int)(sizeof list / sizeof *list))

static inline const char *backend_draw(void)
{
    static const char *const backends[] = {"backend: cpu\nnumerics: exact", "backend: cpu",
                                           "backend: cuda"};

    return CHOSEN(backends);
}

// Of experts that ep divides.
static inline struct model model_draw(int ep)
{
    int kv_heads = drawn(1, 4), experts = ep * drawn(1, 12);

    return (struct model){
        .layers = drawn(1, 5),
        .hidden = drawn(16, drawn(0, 1) ? 300 : 7000),
        .heads = kv_heads * drawn(1, 4),
        .kv_heads = kv_heads,
        .head_dim = 2 * drawn(4, 70),
        .experts = experts,
        .top_k = drawn(1, experts < 10 ? experts : 10),
        .expert_width = drawn(1, drawn(0, 1) ? 100 : 3000),
        .vocab = drawn(2, drawn(0, 3) ? 3000 : 200000),
        .rms_eps = 1e-6,
        .rope_theta = 1e4,
        .norm_topk_prob = true,
        .tied_embeddings = drawn(0, 1),
        .fp8 = true,
    };
}

// job.yaml's text of a job with EP ep; free().
static inline char *job_draw(int ep, const char *backend)
{
    static const char *const targets[] = {"all-linear",
                                          "[linear_qkv]",
                                          "[linear_proj]",
                                          "[linear_fc1]",
                                          "[linear_fc2]",
                                          "[linear_qkv, linear_fc2]",
                                          "[q_proj]",
                                          "[k_proj]",
                                          "[v_proj, linear_fc1]",
                                          "[q_proj, k_proj, v_proj, o_proj]",
                                          "[q_proj, v_proj, linear_fc1, linear_fc2]"};
    static const char *const capacities[] = {"", "", "moe_expert_capacity_factor: 0.3\n",
                                             "moe_expert_capacity_factor: 1\n",
                                             "moe_expert_capacity_factor: 2.5\n"};
    static const char *const data[] = {"", "val_dataset: v\n", "split_dataset_ratio: 0.1\n"};
    static const char *const dropouts[] = {"0", "0.05"};
    static const char *const recomputed[] = {"full", "none", "selective"};
    static const char *const types[] = {"fp32", "fp16", "bf16", "fp8"};

    return memory_format("model: m\ndataset: d\nglobal_batch_size: 2882880\n%s\n"
                         "target_modules: %s\nlora_rank: %d\nlora_dropout: %s\n"
                         "micro_batch_size: %d\nmax_length: %d\n"
                         "expert_model_parallel_size: %d\n%s%s"
                         "exp_avg_dtype: %s\nexp_avg_sq_dtype: %s\nrecompute_granularity: %s\n",
                         backend, CHOSEN(targets), drawn(1, drawn(0, 2) ? 40 : 600),
                         CHOSEN(dropouts), drawn(1, 4), drawn(2, drawn(0, 2) ? 700 : 20000), ep,
                         CHOSEN(capacities), CHOSEN(data), CHOSEN(types), CHOSEN(types),
                         CHOSEN(recomputed));
}

#endif
