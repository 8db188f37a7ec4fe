#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ranks are bound where Slurm left that open, the user's own binding wins, and --fp8-lora-show-placement tells.
# shellcheck source=lib.sh
. "${0%/*}/lib.sh"
# shellcheck source=job.sh
. "${0%/*}/job.sh"
needs_plugin
# shellcheck source=plugin.sh
. "${0%/*}/plugin.sh"
copy_checkpoint
make_samples 4
probe_job job
plugstack "$PROBE_LINE"

# The probe's CPUs, a rank a line; what the plugin said of placement.
cpus() { sed -n 's/^cpus //p' <<<"$out" | sort -n; }
shown() { sed -n 's/.*fp8-lora: \(placement on .*\|rank  .*\|[0-9]*   .*\|warning: .*\)$/\1/p' <<<"$err"; }

# ---- shown
# shellcheck disable=SC2153 # of the cluster's environment
whole=(--ntasks=2 --nodes=1 --cpus-per-task=8)
job_run "${whole[@]}" --fp8-lora-show-placement --fp8-lora job.yaml
is "$status" 0 "a step that shows its placement runs"
is "$(shown | grep -c '^placement on n[01]$')" 1 "one table for its node"
like "$(shown | sed -n 2p)" '^rank +PCI +GPU +CPUs +NUMA +NIC +EP group +why$' "with titles"
is "$(shown | sed -n '3,4s/ .*//p' | paste -sd ' ')" '0 1' "and a line for each rank"
is "$(cpus | wc -l)" 2 "and the ranks run"
job_run "${whole[@]}" --fp8-lora job.yaml
is "$(shown)" '' "nothing is shown unasked"
if ((DEVCLUSTER_NODES >= 2)); then
    job_run --ntasks=2 --nodes=2 --fp8-lora-show-placement --fp8-lora job.yaml
    is "$(shown | grep '^placement' | sort | paste -sd ' ')" 'placement on n0 placement on n1' "a table for each node"
else
    skip "a table for each node" "one node"
fi

# ---- bound
# numbers LISTS: every CPU of lists such as 0-3,8, as often as it is there.
numbers() { tr ',' '\n' <<<"$1" | while IFS=- read -r from to; do seq "$from" "${to:-$from}"; done | sort -n; }
all=$(grep Cpus_allowed_list /proc/self/status | cut -f 2)
cores=$(lscpu --parse=core,socket | grep -v '^#' | sort -u | wc -l)
if ((cores >= 2 && cores % 2 == 0 && $(nproc) <= 16)); then
    job_run "${whole[@]}" --fp8-lora job.yaml
    sets=$(cpus)
    is "$(sort -u <<<"$sets" | wc -l)" 2 "two ranks of a whole node run on CPUs of their own"
    ok "which together are the machine's" [ "$(numbers "$sets")" = "$(numbers "$all")" ]
    is "$(sed -n 's/^env OMP_NUM_THREADS=//p' <<<"$out" | sort -u)" $((cores / 2)) "with a thread for each core"
else
    skip "ranks run on CPUs of their own" "needs an even number of cores, and no more than sixteen CPUs"
fi
for bind in cores none map_cpu:0,1; do
    job_run "${whole[@]}" --cpu-bind="$bind" --fp8-lora-show-placement --fp8-lora job.yaml
    is "$(shown | grep -c "left as it is: the user's --cpu-bind\$")" 2 "--cpu-bind=$bind wins, and that is said"
    is "$(cpus | sort -u)" "$all" "nothing was bound, as this cluster's task/none does not"
done
run as_user env SLURM_CPU_BIND=none srun "${whole[@]}" --fp8-lora-show-placement --fp8-lora job.yaml
is "$(shown | grep -c "left as it is: the user's --cpu-bind\$")" 2 "SLURM_CPU_BIND too"
job_run --ntasks=2 --nodes=1 --cpu-bind=verbose --fp8-lora-show-placement --fp8-lora job.yaml
unlike "$(shown)" "the user's --cpu-bind" "but --cpu-bind=verbose binds nothing"
if (($(nproc) > 1)); then
    job_run --ntasks=1 --nodes=1 --fp8-lora-show-placement --fp8-lora -- --model "$WORK/model" --dataset "$WORK/train.jsonl"
    like "$(shown)" 'left as it is: the job shares the node, and no cpuset tells its cores' "a job of one core is not spread over its node"
else
    skip "a job of one core is not spread over its node" "needs two CPUs"
fi

# ---- GPUs
if ((DEVCLUSTER_GPUS >= 2)); then
    job_run "${whole[@]}" --gpus-per-task=1 --fp8-lora-show-placement --fp8-lora job.yaml
    is "$(shown | grep -c '^warning: tasks are bound to GPUs of their own, which hides their peers')" 1 "hidden peers are told in the table"
    is "$(sed -n 's/^env FP8_LORA_DEVICE=//p' <<<"$out" | sort -u)" 0 "each rank has the one it sees"
    job_run "${whole[@]}" --gres=gpu:2 --gpu-bind=map_gpu:1,0 --fp8-lora job.yaml
    is "$(grep -c 'hides their peers' <<<"$err")" 1 "those of a map are told of once"
    is "$(sed -n 's/^env CUDA_VISIBLE_DEVICES=//p' <<<"$out" | sort | paste -sd ' ')" '0 1' "and the map is kept"
else
    skip "GPUs of their own" "needs two GPUs a node"
fi

# ---- for steps with --fp8-lora alone
job_run --fp8-lora-show-placement true
is "$status:$job" '1:' "the option by itself is refused before the queue"
like "$err" "fp8-lora-show-placement shows a step's ranks: use srun --fp8-lora --fp8-lora-show-placement job.yaml" "with its use"
run as_user sbatch --fp8-lora-show-placement --fp8-lora=job.yaml --wrap true
is "$status" 1 "sbatch refuses it"
leak=SLURM_SPANK__SLURM_SPANK_OPTION_fp8_lora_fp8_lora_show_placement
run as_user env $leak= srun echo plain
is "$status:$out" 0:plain "an inherited one is no option of a plain step"
run as_user env $leak= _SLURM_SPANK_OPTION_fp8_lora_fp8_lora_show_placement= srun "${whole[@]}" --fp8-lora job.yaml
is "$status:$(shown)" 0: "nor of a step of ours"
unlike "$(sinfo --noheader --format=%T)" drain "no node is drained"
restore
done_testing
