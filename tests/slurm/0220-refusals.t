#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What cannot run is refused in one line before the queue, by srun, sbatch and salloc: no job is made.
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
probe_job typo 'lora_rnak: 4'
{ say "model: $WORK/nowhere"; say "dataset: $WORK/train.jsonl"; } >"$WORK/nowhere.yaml"
plugstack "$PROBE_LINE"

# refused REGEX CLIENT ARGUMENT...
refused() {
    local regex=$1 client=$2 name
    name=$(basename "$WORK")-refused-$tests
    shift 2
    run as_user "$client" --job-name="$name" "$@"
    is "$status" 1 "$client $* is refused"
    like "$err" "^$client: error: fp8-lora: [^
]*${regex}[^
]*\$" "in one line that says why"
    is "$(as_admin squeue --noheader --states=all --name="$name" --format=%A)$(as_admin sacct --allusers --noheader --name="$name" --format=JobID)" \
        '' "no job was made"
}

refused 'typo.yaml:5: .*lora_rnak' srun --fp8-lora typo.yaml
refused "$WORK/nowhere" srun --fp8-lora nowhere.yaml
refused 'missing.yaml' srun --fp8-lora missing.yaml
refused 'no-such-flag' srun --fp8-lora -- sft --model "$WORK/model" --no-such-flag 1
refused 'expert' srun --ntasks=3 --fp8-lora job.yaml
refused 'srun takes the job as its command: srun --fp8-lora job.yaml' srun --fp8-lora=job.yaml true
refused '--multi-prog: every rank runs the same trainer' srun --multi-prog --fp8-lora job.yaml
refused '--bcast: the trainer is installed on the nodes' srun --bcast=/tmp/x --fp8-lora job.yaml
refused '--bcast: the trainer is installed on the nodes' srun --fp8-lora --bcast=/tmp/x job.yaml
refused 'a step of several components' srun --fp8-lora job.yaml : --ntasks=1 true
refused 'sbatch and salloc take --fp8-lora=job.yaml' sbatch --fp8-lora --wrap=true
refused 'typo.yaml:5: .*lora_rnak' sbatch --fp8-lora=typo.yaml --wrap=true
refused 'typo.yaml:5: .*lora_rnak' salloc --fp8-lora=typo.yaml true

run as_user env SLURM_TEST_EXEC=1 srun --fp8-lora job.yaml
is "$status" 1 "SLURM_TEST_EXEC is refused"
like "$err" 'SLURM_TEST_EXEC: srun would look for a program' "and says why"

cp "$FL_CLUSTER/etc/slurm.conf" "$TRUSTED/slurm.conf"
conf_restore() {
    cp "$TRUSTED/slurm.conf" "$FL_CLUSTER/etc/slurm.conf"
    as_admin scontrol reconfigure
}
trap 'conf_restore; restore; diag "ended early, status $?; files in $WORK"' EXIT
say 'LaunchParameters=test_exec' >>"$FL_CLUSTER/etc/slurm.conf"
as_admin scontrol reconfigure
refused 'LaunchParameters=test_exec: srun looks for a program' srun --fp8-lora job.yaml
run as_user srun echo plain
is "$status:$out" 0:plain "a plain step runs under test_exec"
conf_restore
job_run --ntasks=2 --fp8-lora job.yaml
is "$status" 0 "and a good job runs again"
restore
done_testing
