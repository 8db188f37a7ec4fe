#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The number of ranks and how they share the experts change nothing about the training.
# shellcheck source=lib.sh
. "${0%/*}/lib.sh"
# shellcheck source=job.sh
. "${0%/*}/job.sh"
needs_plugin
LIMIT=240

copy_checkpoint
make_samples 40
# train NAME RANKS EP SRUN-ARGUMENT...: five iterations of eight samples, everything on that could depend on ranks.
train() {
    local name=$1 ranks=$2 ep=$3
    shift 3
    write_job "$name" <<END
numerics: exact
expert_model_parallel_size: $ep
micro_batch_size: 1
global_batch_size: 8
train_iters: 5
log_interval: 1
lr: 1.0e-3
lora_rank: 8
lora_dropout: 0.1
moe_aux_loss_coeff: 0.01
END
    job_run --ntasks="$ranks" --mpi=pmix "$@" --fp8-lora "$name.yaml"
    is "$status" 0 "$name: the job succeeds"
}

train one 1 1
run trajectory "$WORK/one"
is "$(wc -l <"$WORK/out")" 5 "five iterations are recorded"
cp "$WORK/out" "$WORK/reference"
ok "the loss falls" awk '{ loss[NR] = $2 } END { exit !(loss[5] < loss[1]) }' "$WORK/reference"

# same NAME: loss, aux loss and gradient norm within 1e-4 of the one-rank run's, relative.
same() {
    run trajectory "$WORK/$1"
    ok "$1: the same loss, load-balancing loss and gradient norm to 1e-4" agree "$WORK/reference" "$WORK/out" 1e-4
}

for shape in '2 2' '2 1' '4 4' '8 8' '8 4' '8 2'; do
    read -r ranks ep <<<"$shape"
    train "ranks-$ranks-ep-$ep" "$ranks" "$ep" --nodes=1
    same "ranks-$ranks-ep-$ep"
done
if ((DEVCLUSTER_NODES >= 2)); then
    train two-nodes 4 4 --nodes=2
    same two-nodes
else
    skip "two-nodes: the job succeeds" "one node"
    skip "two-nodes: the same loss" "one node"
fi

# The comparison itself can tell: another seed is another trajectory.
write_job other-seed <<END
numerics: exact
global_batch_size: 8
train_iters: 5
log_interval: 1
lr: 1.0e-3
lora_rank: 8
lora_dropout: 0.1
moe_aux_loss_coeff: 0.01
seed: 43
END
job_run --mpi=pmix --fp8-lora other-seed.yaml
run trajectory "$WORK/other-seed"
ok "another seed differs" differ "$WORK/reference" "$WORK/out" 1e-4
done_testing
