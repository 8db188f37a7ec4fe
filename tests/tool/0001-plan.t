#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# fp8-lora plan: what it prints, what it refuses, and its exit status.
tool=$FL_BUILD_DIR/fp8-lora
folder=$(mktemp -d "${TMPDIR:-/tmp}/fl-plan-XXXXXX") || exit 99
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 99
mkdir m30
cp "$FL_SOURCE_DIR/tests/data/configs/qwen3-30b-a3b.json" m30/config.json
printf '%s\n' 'model: m30' 'dataset: d.jsonl' 'lora_rank: 16' 'expert_model_parallel_size: 8' \
    'micro_batch_size: 1' 'moe_expert_capacity_factor: 2' > job.yaml
number=0

# expect STATUS TEXT COMMAND...: the command's status, and a line of its output holding TEXT.
expect() {
    status=$1 text=$2
    shift 2
    number=$((number + 1))
    "$@" > out 2>&1
    got=$?
    if [ "$got" = "$status" ] && grep -qF -e "$text" out; then
        echo "ok $number - $text"
    else
        echo "not ok $number - $text"
        echo "# $*: status $got, expected $status"
        sed 's/^/# /' out
    fi
}

echo 1..51
expect 0 '5253.8388M Params (88.8668M Trainable [1.6915%])' "$tool" plan job.yaml
expect 0 'base 5164972032, LoRA 88866816' "$tool" plan job.yaml
expect 0 'Total number of parameters in billions: 30.52' "$tool" plan job.yaml
expect 0 'transformer block 29.90, embedding 0.62' "$tool" plan job.yaml
expect 0 '8 ranks: TP 1, DP 8, EP 8, 1 x every expert; 16 of 128 experts a rank' \
    "$tool" plan job.yaml
expect 0 '16 ranks: TP 1, DP 16, EP 8, 2 x every expert' "$tool" plan job.yaml --ranks 16 \
    --cap=80GiB
expect 0 '16 ranks' "$tool" plan -- NPROC_PER_NODE=16 sft --model m30 --dataset d \
    --expert_model_parallel_size 8
expect 0 '8 ranks' "$tool" plan --ranks 8 -- NPROC_PER_NODE=16 sft --model m30 --dataset d
expect 0 'experts                            3.38 GiB  48 layers x 16 experts' \
    "$tool" plan job.yaml
expect 0 '"base": 5164972032' "$tool" plan --json job.yaml
expect 1 'is above the cap of 6.00 GiB: weights 5.43 GiB' "$tool" plan --cap 6GiB job.yaml
expect 1 'MiB  88866816 fp32' "$tool" plan --cap 6GiB job.yaml
expect 0 'layer 47 backward: fc1_backward' "$tool" plan job.yaml
expect 0 'activations, at head_forward' "$tool" plan job.yaml
expect 0 '"peak_where": "layer 47 backward: fc1_backward"' "$tool" plan --json job.yaml
expect 0 '"dry_run": null' "$tool" plan --json -- NPROC_PER_NODE=8 sft --model m30 --dataset d \
    --shard_frozen true
expect 1 'does not divide the 6 ranks' "$tool" plan --ranks 6 job.yaml
expect 1 'none.yaml: cannot open' "$tool" plan none.yaml
echo 'lora_rnak: 3' >> job.yaml
expect 1 "job.yaml:7: unknown key 'lora_rnak', did you mean 'lora_rank'?" "$tool" plan job.yaml
expect 1 "nowhere/config.json" "$tool" plan -- sft --model nowhere --dataset d
expect 2 "unknown option '--cup'" "$tool" plan --cup 3 job.yaml
expect 2 "--ranks: '0' is not in [1, 65536]" "$tool" plan --ranks 0 job.yaml
expect 2 "--gpu-memory: 'much' is not an amount of memory: write it as 80GiB" \
    "$tool" plan --cap much job.yaml
expect 2 'give a job file' "$tool" plan
expect 0 '--lora_rank N' "$tool" plan --help-flags
expect 0 'usage: fp8-lora plan' "$tool" plan --help
expect 2 "unknown command 'paln', did you mean 'plan'?" "$tool" paln
expect 0 'fp8-lora 0.' "$tool" --version
cp -r "$FL_SOURCE_DIR/tests/data/tiny-qwen3-moe-fp8" tiny
chmod -R u+w tiny
printf '%s\n' 'model: tiny' 'dataset: d.jsonl' > tiny.yaml
expect 0 'checkpoint, of all ranks            11.5' "$tool" plan tiny.yaml
echo '{"weight_map": {}}' > tiny/model.safetensors.index.json
expect 1 'tiny/model.safetensors.index.json: weight_map names no tensors' "$tool" plan tiny.yaml
echo '{' > tiny/model.safetensors.index.json
expect 1 'tiny/model.safetensors.index.json:2: not JSON' "$tool" plan tiny.yaml

# index TEXT REFUSAL: an index that says what no checkpoint has.
index() {
    printf '%s\n' "$1" > tiny/model.safetensors.index.json
    expect 1 "tiny/model.safetensors.index.json: $2" "$tool" plan tiny.yaml
}
index '{"metadata": {"total_size": -5}, "weight_map": {"a": "b"}}' 'metadata.total_size is no number'
index '{"metadata": {"total_size": 1e30}, "weight_map": {"a": "b"}}' 'metadata.total_size is no number'
index '{"weight_map": {"a": 3}}' 'weight_map gives a tensor no file'
index '{"weight_map": [1]}' 'weight_map names no tensors'
echo '{"weight_map": {"a": "b"}}' > tiny/model.safetensors.index.json
expect 0 'checkpoint, of all ranks             not told  1 tensors in 1 file' "$tool" plan tiny.yaml

# What this version runs, and on what.
set -- sft --model m30 --dataset d --backend cuda
expect 0 'not run by this version yet: backend cuda on more than one rank: start one task' \
    "$tool" plan --ranks 2 -- "$@"
expect 0 '"not_run": "backend cuda on this GPU"' "$tool" plan --json --gpu A100 -- "$@"
expect 0 '"runs": true' "$tool" plan --json --ranks 1 -- "$@"
expect 0 'there is                            79.10 GiB  H100 has 81559 MiB, its driver keeps 561' \
    "$tool" plan -- "$@"
expect 0 'What fits 139.72 GiB' "$tool" plan --fit --gpu H200 -- "$@"
expect 0 'A100 has no FP8 products' "$tool" plan --gpu A100 -- "$@"
expect 0 'Ethernet-25 to other nodes at 3.125 GB/s' "$tool" plan --network ethernet-25 -- "$@"
expect 2 "--network: network 'nan' is not known: use one of InfiniBand-HDR" \
    "$tool" plan --network nan -- "$@"
expect 0 'on CPUs, 1 thread a rank: a rank takes as many as it has cores' \
    "$tool" plan -- sft --model m30 --dataset d --backend cpu
expect 0 'on CPUs, 3 threads a rank' "$tool" plan --threads 3 -- sft --model m30 --dataset d \
    --backend cpu
expect 2 "--threads: '0' is not in [1, 4096]" "$tool" plan --threads 0 -- "$@"
expect 2 "--gpu-memory: 'nan' is not an amount of memory" "$tool" plan --gpu-memory nan -- "$@"

# Dimensions that no product can count.
sed 's/"num_attention_heads": 32/"num_attention_heads": 16777216/' m30/config.json > tiny/config.json
rm tiny/model.safetensors.index.json
expect 1 'tiny/config.json: head_dim: with these heads, q, k and v have more than 16777216 columns' \
    "$tool" plan tiny.yaml
expect 1 "lr: '.nan' is not a number" "$tool" plan -- sft --model m30 --dataset d --lr .nan
expect 1 "lora_alpha: 'inf' is not a number" "$tool" plan -- sft --model m30 --dataset d \
    --lora_alpha inf
