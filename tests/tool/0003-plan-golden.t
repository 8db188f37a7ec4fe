#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fp8-lora plan: the two seed jobs' answers, word for word. `regenerate` as argument writes them anew.
tool=${FL_BUILD_DIR:-.}/fp8-lora
source=${FL_SOURCE_DIR:-.}
golden=$source/tests/data/plans
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 99
mkdir m30 m480
cp "$source/tests/data/configs/qwen3-30b-a3b.json" m30/config.json
cp "$source/tests/data/configs/qwen3-coder-480b.json" m480/config.json
tests=0

ok() { # ok STATUS TEXT
    tests=$((tests + 1))
    if [ "$1" = 0 ]; then echo "ok $tests - $2"; else echo "not ok $tests - $2"; fi
}

# What both old command lines have.
both=(--train_type lora --target_modules all-linear --load_safetensors true --save_safetensors true
    --fp8_param_gather true --dataset CodeAlpaca-20k.jsonl --load_from_cache_file true
    --expert_model_parallel_size 8 --moe_permute_fusion true --moe_grouped_gemm true
    --moe_shared_expert_overlap true --moe_aux_loss_coeff 1e-6 --global_batch_size 16
    --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 --max_epochs 1
    --finetune true --cross_entropy_loss_fusion true --lr 1e-5 --lr_warmup_fraction 0.05 --min_lr 1e-6
    --eval_interval 200 --save_interval 200 --max_length 2048 --num_workers 8 --dataset_num_proc 8
    --no_save_optim true --no_save_rng true --sequence_parallel true --moe_expert_capacity_factor 2
    --use_precision_aware_optimizer true --exp_avg_dtype bf16 --exp_avg_sq_dtype bf16
    --attention_backend flash --model_author swift --model_name swift-robot --merge_lora false)
job1=(NPROC_PER_NODE=8 sft --model m30 --lora_rank 16 --lora_alpha 32 --fp8_recipe delayed --fp8_format hybrid
    --tensor_model_parallel_size 1 --micro_batch_size 2 --main_params_dtype fp16 "${both[@]}")
job2=(NPROC_PER_NODE=8 sft --model m480 --lora_rank 128 --lora_alpha 256 --fp8_recipe blockwise --fp8_format e4m3
    --tensor_model_parallel_size 2 --micro_batch_size 4 "${both[@]}")
job2_low=(NPROC_PER_NODE=8 sft --model m480 --lora_rank 16 --lora_alpha 32 --fp8_recipe blockwise --fp8_format e4m3
    --tensor_model_parallel_size 2 --micro_batch_size 4 "${both[@]}")

same() { # same NAME OPTION... -- FLAG...: the output and the status as kept
    local name=$1
    shift
    { "$tool" plan "$@" 2>&1; echo "exit status $?"; } >"$name.txt"
    [ "${regenerate:-}" = yes ] && cp "$name.txt" "$golden/$name.txt"
    diff -u "$golden/$name.txt" "$name.txt" >"$name.diff"
    ok $? "$name"
    sed 's/^/# /' "$name.diff"
}

[ "${1:-}" = regenerate ] && regenerate=yes
same job-1 --explain --iterations 1251 -- "${job1[@]}"
same job-1-in-5 --fit --gpu-memory 5GiB -- "${job1[@]}"
same job-2 --fit --explain --gpu-memory 80GiB --iterations 1251 -- "${job2[@]}"
same job-2-low --fit --gpu-memory 80GiB -- "${job2_low[@]}"
same job-2-refused --gpu-memory 80GiB --json -- "${job2_low[@]}"

# Lines that the old trainer printed.
grep -q '5253.8388M Params (88.8668M Trainable \[1.6915%\])' job-1.txt
ok $? "job 1's parameters"
grep -q 'learning rate at iteration 1 *1.598721E-07' job-1.txt
ok $? "job 1's first learning rate"
grep -q 'base of a rank  5164972032 = 48 x (10485760 q k v + 8388608 proj + 262144 router + 4352 norms + 16 x 4718592 experts) + 2 x 151936 x 2048 embeddings + 2048 norm$' job-1.txt &&
    grep -q 'LoRA of a rank  88866816 = 48 x (212992 attention + 16 x 102400 experts)$' job-1.txt
ok $? "and the sums behind them"

# Rank 128 needs the optimizer in host memory, rank 16 does not.
awk '/^What fits/ {on = 1; next} on && / ms / && !/optimizer_offload true/ {bad = 1} on && / ms / {n++} END {exit bad || !n}' job-2.txt
ok $? "job 2 at rank 128 fits with the optimizer offloaded alone"
awk '/^What fits/ {on = 1; next} on && / ms / && !/optimizer_offload/ {good = 1} END {exit !good}' job-2-low.txt
ok $? "at rank 16 without"

# The job that fits is written: keys changed where they stand, comments kept; and it fits.
printf '%s\n' '# of ours' 'model: m480' 'dataset: d.jsonl' 'lora_rank: 16 # low' 'expert_model_parallel_size: 8' \
    'micro_batch_size: 2 # as many as fit' 'moe_expert_capacity_factor: 2' >job.yaml
"$tool" plan --fit --gpu-memory 80GiB --output fits.yaml job.yaml >fit.txt 2>&1
ok $? "--output"
diff job.yaml fits.yaml >changes.txt
[ "$(sed -n 's/^> //p' changes.txt)" = 'micro_batch_size: 1 # as many as fit' ]
ok $? "changes what must be and keeps the rest"
sed 's/^/# /' changes.txt
"$tool" plan --gpu-memory 80GiB fits.yaml >/dev/null 2>&1
ok $? "and fits"
"$tool" plan --gpu-memory 80GiB job.yaml >/dev/null 2>refused.txt
[ $? = 1 ] && grep -q 'job.yaml: the plan of [0-9.]* GiB a rank, rounding and context included, is above the cap of 80.00 GiB: weights [0-9.]* GiB, .*; it fits with micro_batch_size 1 ([0-9.]* GiB, not run by this version yet)$' refused.txt
ok $? "a refusal says what would fit"
sed 's/^/# /' refused.txt
"$tool" plan --fit --gpu-memory 80GiB --output flags.yaml -- "${job1[@]}" >/dev/null 2>&1 &&
    "$tool" plan --gpu-memory 80GiB flags.yaml >/dev/null 2>&1 && grep -q '^recompute_granularity: none$' flags.yaml
ok $? "flags become a job.yaml"
"$tool" plan --fit --gpu-memory 1GiB --output none.yaml job.yaml >/dev/null 2>none.txt
[ $? = 1 ] && [ ! -e none.yaml ] && grep -q 'nothing fits' none.txt
ok $? "where nothing fits nothing is written"
refused() { # refused TEXT OPTION...
    local text=$1
    shift
    "$tool" plan "$@" >/dev/null 2>bad.txt
    [ $? = 2 ] && grep -qF -e "$text" bad.txt
    ok $? "refused: $*"
}
refused '--output is what --fit writes' --output x.yaml job.yaml
refused "GPU 'B300' is not known: use one of H200" --gpu B300 job.yaml
refused "--samples: '0' is not in [1," --samples 0 job.yaml
refused "--node-gpus: 'x' is not in" --node-gpus x job.yaml
refused '--network: must be above 0' --network 0 job.yaml
refused "--host-memory: 'none' is not an amount" --host-memory none job.yaml
"$tool" plan --json --fit --gpu-memory 80GiB job.yaml >plan.json 2>/dev/null && python3 - "$(grep -c ' ms ' fit.txt)" <<'END'
import json
plan = json.load(open("plan.json"))
assert plan["fit"] and plan["fit"][0]["written"] and not plan["fit"][0]["runs"] and not plan["runs"] and plan["fit"][0]["device_bytes"] <= plan["cap_bytes"]
assert plan["needed_bytes"] > plan["cap_bytes"] and plan["estimate"]["gpu"] == "H100"
assert abs(sum(plan["estimate"]["seconds"].values()) - plan["estimate"]["step_s"]) < 1e-9
END
ok $? "JSON holds the same"
echo "1..$tests"
