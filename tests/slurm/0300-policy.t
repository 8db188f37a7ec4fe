#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The administrator's policy: refused before the queue, and on the node whatever the user does about the client.
# shellcheck source=lib.sh
. "${0%/*}/lib.sh"
# shellcheck source=job.sh
. "${0%/*}/job.sh"
needs_plugin
# shellcheck source=plugin.sh
. "${0%/*}/plugin.sh"
copy_checkpoint
make_samples 16
core=$(sed -nE 's/.*(core=[^ ]+).*/\1/p' "$TRUSTED/plugstack.conf")
watch=$(sed -nE 's/.*(watch=[^ ]+).*/\1/p' "$TRUSTED/plugstack.conf")
partition=$(as_admin sinfo --noheader --format=%R | head -n 1)
write_job job <<'END'
expert_model_parallel_size: 2
global_batch_size: 8
max_length: 128
train_iters: 1
END
two=(--nodes=1 --ntasks=2 --mpi=pmix)

# policy LINE...: the site's, in force for the next step.
policy() {
    printf '%s\n' "$@" >"$TRUSTED/policy.yaml"
    plugstack "optional $plugin $core $account $watch policy=$TRUSTED/policy.yaml"
}

# A configuration of the user's own, whose plugin knows no policy: what a client can be made to do.
mkdir "$TRUSTED/own"
sed "s#^PlugStackConfig=.*#PlugStackConfig=$TRUSTED/own/plugstack.conf#" "$FL_CLUSTER/etc/slurm.conf" >"$TRUSTED/own/slurm.conf"
grep -q '^PlugStackConfig=' "$TRUSTED/own/slurm.conf" || say "PlugStackConfig=$TRUSTED/own/plugstack.conf" >>"$TRUSTED/own/slurm.conf"
say "optional $plugin $core $account $watch" >"$TRUSTED/own/plugstack.conf"
chmod -R a+rX "$TRUSTED/own"

# refused REGEX CLIENT ARGUMENT...: before the queue, in one line.
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

none_busy() { ! as_admin sinfo --noheader --Node --format=%T | grep -qv '^idle$'; }

# held REGEX TEXT: the last job_run was refused on the node; nothing is left behind.
held() {
    ok "$2: srun fails" [ "$status" -ne 0 ]
    like "$err" "$1" "and names the cap and where it is from"
    ok "accounting has the end" job_recorded "$job"
    like "$(job_field "$job" State)" '^(FAILED|CANCELLED)' "as a failure"
    ok "no adapters were made" [ ! -e "$WORK/job/adapter_model.safetensors" ]
    ok "the nodes are idle" wait_until 20 none_busy
}

# ---- before the queue
policy 'max_device_memory: 20MiB'
refused 'policy.yaml:1: job.yaml: the plan of [0-9.]* MiB a rank, rounding and context included, is above the cap of 20.00 MiB: ' \
    srun "${two[@]}" --fp8-lora job.yaml
refused 'policy.yaml:1: job.yaml: the plan of .* is above the cap of 20.00 MiB' sbatch --fp8-lora=job.yaml --wrap=true
policy 'max_ranks: 1'
refused '2 ranks are more than the 1 of max_ranks \(policy.yaml:1\): start fewer' srun "${two[@]}" --fp8-lora job.yaml
policy 'partitions:' "  $partition:" '    max_device_memory: 20MiB' '  other:' '    max_device_memory: 10MiB'
refused "policy.yaml:3, partition $partition: job.yaml: the plan of " srun --partition="$partition" "${two[@]}" --fp8-lora job.yaml

# ---- allowed
policy 'max_device_memory: 2GiB' "model_roots: [$WORK]" 'partitions:' '  other: {max_device_memory: 10MiB, max_ranks: 1}' \
    'accounts:' '  nobody: {max_ranks: 1}'
LIMIT=120 job_run "${two[@]}" --fp8-lora job.yaml
is "$status" 0 "a job within the limits runs"
ok "accounting has its record" job_recorded_as "$job" AdminComment .
like "$(as_user fp8-lora report "$job")" ' 2.00 GiB ' "the report shows the cap"
rm -rf "$WORK/job"

# ---- on the node, whatever the client was made to do
policy 'partitions:' "  $partition:" '    max_device_memory: 20MiB' '  other:' '    max_device_memory: 10MiB'
job_run "${two[@]}" --fp8-lora job.yaml
held "fp8-lora: policy.yaml:3, partition $partition: job.yaml: the plan of [0-9.]* MiB .* is above the cap of 20.00 MiB" \
    "a partition the client does not know of"
as_own() { job_run "${two[@]}" --fp8-lora job.yaml; }
policy 'max_device_memory: 20MiB'
SLURM_CONF=$TRUSTED/own/slurm.conf as_own
held 'policy.yaml:1: job.yaml: the plan of .* is above the cap of 20.00 MiB' "an own SLURM_CONF without the policy"
SLURM_CONF=$TRUSTED/own/slurm.conf FP8_LORA_CAP=99999999999 FP8_LORA_CAP_SOURCE=mine FP8_LORA_MODEL_ROOTS=/ SLURM_JOB_PARTITION=other \
    SLURM_JOB_ACCOUNT=root SLURM_JOB_QOS=high LD_PRELOAD=libm.so.6 as_own
held 'policy.yaml:1: job.yaml: the plan of .* is above the cap of 20.00 MiB' "and a forged environment"
policy 'max_ranks: 1'
SLURM_CONF=$TRUSTED/own/slurm.conf as_own
held '2 ranks are more than the 1 of max_ranks \(policy.yaml:1\): start fewer' "too many ranks"
policy "model_roots: [/nowhere, $TRUSTED]"
job_run "${two[@]}" --fp8-lora job.yaml
held "$WORK/model: this site's policy allows models only below /nowhere:$TRUSTED \\(policy.yaml:1\\)" "a model from elsewhere"
policy 'output_roots: [/nowhere]'
job_run "${two[@]}" --fp8-lora job.yaml
held "$WORK/job: this site's policy allows output only below /nowhere \\(policy.yaml:1\\)" "output to elsewhere"

# A job file that grows after the client has looked at it.
sed 's/max_length: 128/max_length: 8192/' "$WORK/job.yaml" >"$WORK/large.yaml"
cp "$WORK/job.yaml" "$WORK/small.yaml"
printf '#!/bin/bash\ncp %q %q\n' "$WORK/large.yaml" "$WORK/job.yaml" >"$WORK/swap"
chmod 755 "$WORK/swap"
chown "$DEVCLUSTER_USER:" "$WORK/job.yaml"
policy 'max_device_memory: 100MiB'
job_run "${two[@]}" --task-prolog="$WORK/swap" --fp8-lora job.yaml
held 'policy.yaml:1: job.yaml: the plan of .* is above the cap of 100.00 MiB' "a job.yaml swapped after the check"
cp "$WORK/small.yaml" "$WORK/job.yaml"

# A rank that takes more than it planned: the arena maps nothing beyond the cap.
libtool_program() { # a program's own file, which libtool may keep beside a script
    if [ -e "${1%/*}/.libs/${1##*/}" ]; then say "${1%/*}/.libs/${1##*/}"; else say "$1"; fi
}
cp "$(libtool_program "${FL_BUILD_DIR:?}/tests/slurm/greedy")" "$TRUSTED/greedy"
policy 'max_device_memory: 100MiB'
plugstack "optional $plugin core=$TRUSTED/greedy $account $watch policy=$TRUSTED/policy.yaml"
job_run "${two[@]}" --fp8-lora job.yaml
greedy='policy.yaml:1: out of memory: 8.0 MiB for activations would exceed the cap of 100.0 MiB; in use: activations 96.0 MiB'
held "$greedy" "a rank that takes more than it planned"
ok "the record has it" job_recorded_as "$job" AdminComment .
like "$(as_user fp8-lora report "$job")" "$greedy" "and the report"

# A wish of the user's own, below the policy's, counts.
policy 'max_device_memory: 2GiB'
FP8_LORA_CAP=20971520 job_run "${two[@]}" --fp8-lora job.yaml
held 'job.yaml: the plan of .* is above the cap of 20.00 MiB' "a cap of the user's own, below the policy's"

# ---- slurmctld's record cannot be had: any of the policy's limits may be the job's
printf '#!/bin/bash\n[ "$1" != job ] || exec sleep 20\nexec %q "$@"\n' "${account#account=}" >"$TRUSTED/mute"
chmod 755 "$TRUSTED/mute"
policy 'partitions:' "  $partition: {max_device_memory: 2GiB}" '  other: {max_device_memory: 10MiB}'
plugstack "optional $plugin $core account=$TRUSTED/mute $watch policy=$TRUSTED/policy.yaml"
begin=$SECONDS
job_run "${two[@]}" --fp8-lora job.yaml
ok "it is waited for a short while" [ $((SECONDS - begin)) -lt 30 ]
held 'policy.yaml:3, partition other \(the job is not known\): job.yaml: the plan of .* is above the cap of 10.00 MiB' \
    "a job whose partition is not known"

# ---- a policy that is not root's alone, or not a policy, stops ranks and no node
for bad in 'chmod 666:others than root may replace it' 'chown nobody:others than root may replace it' 'rm:No such file or directory'; do
    policy 'max_ranks: 4'
    ${bad%%:*} "$TRUSTED/policy.yaml"
    job_run "${two[@]}" --fp8-lora job.yaml
    held "policy.yaml: ${bad#*:}" "policy after ${bad%%:*}"
    rm -f "$TRUSTED/policy.yaml"
done
policy 'max_device_memry: 1GiB'
job_run "${two[@]}" --fp8-lora job.yaml
held "policy.yaml:1: unknown key 'max_device_memry', did you mean 'max_device_memory'\\?" "a misspelt key"
run as_user srun --nodes=1 true
ok "other steps do not run without a policy" [ "$status" -ne 0 ]
like "$err" "fp8-lora: without its policy this site runs no step: .*policy.yaml:1: unknown key 'max_device_memry'" "and say why"
run as_user sbatch --wait --nodes=1 --output=/dev/null --wrap true
ok "nor batch scripts" [ "$status" -ne 0 ]
ok "the nodes are idle" wait_until 20 none_busy
plugstack "optional $plugin $core $account $watch policy=$TRUSTED/policy.yaml on_failure=continue"
run as_user srun --nodes=1 true
is "$status" 0 "unless plugstack.conf says on_failure=continue"
job_run "${two[@]}" --fp8-lora job.yaml
held "policy.yaml:1: unknown key 'max_device_memry'" "which is not for the ranks of fp8-lora"

# ---- steps that know nothing of fp8-lora
cp "${FL_BUILD_DIR:?}/tests/slurm/.libs/nvml.so" "$TRUSTED/libnvidia-ml.so.1"
GPU="GPU-11111111-2222-3333-4444-555555555555"
values() {
    printf '%s\n' "gpu $GPU" "$@" >"$TRUSTED/nvml.values.new"
    mv "$TRUSTED/nvml.values.new" "$TRUSTED/nvml.values"
}
# watched ENFORCE
watched() {
    printf '%s\n' 'max_device_memory: 1GiB' 'action: kill' 'watch_grace: 0.5' 'watch_interval: 0.1' "enforce: $1" >"$TRUSTED/policy.yaml"
    plugstack "optional $plugin $core $account $watch nvml=$TRUSTED/libnvidia-ml.so.1 policy=$TRUSTED/policy.yaml"
}
# Runs CLIENT ARGUMENT... whose program writes its pid to $WORK/pid, and has that pid hold 2 GiB.
holds() {
    values
    rm -f "$WORK/pid"
    as_user "$@" >"$WORK/step.out" 2>"$WORK/step.err" </dev/null &
    local client=$!
    ok "$1 begins" wait_until 30 test -s "$WORK/pid"
    values "use 0 $(cat "$WORK/pid") 2147483648"
    status=0
    wait "$client" || status=$?
    out=$(cat "$WORK/step.out") err=$(cat "$WORK/step.err")
    ok "the nodes are idle" wait_until 30 none_busy
}
printf '#!/bin/bash\necho $$ >%q.new && mv %q.new %q\nfor ((i = 0; i < 80; i++)); do sleep 0.1; done\necho whole\n' \
    "$WORK/pid" "$WORK/pid" "$WORK/pid" >"$WORK/foreign"
chmod 755 "$WORK/foreign"
watched option
holds srun --nodes=1 --ntasks=1 "$WORK/foreign"
like "$status $out" '^0 .*whole' "enforce option: a step without the option is left alone"
watched all-gpu-steps
holds srun --nodes=1 --ntasks=1 "$WORK/foreign"
ok "enforce all-gpu-steps: it ends over the cap" [ "$status" -ne 0 ]
like "$err" 'over the cap of 1.00 GiB \(policy.yaml:1\)' "and names it"
unlike "$out" whole "before its end"
holds sbatch --wait --nodes=1 --output="$WORK/batch.out" --wrap "$WORK/foreign"
is "$status" 0 "a batch script is left alone"
watched whole-job
holds sbatch --wait --nodes=1 --output="$WORK/batch.out" --wrap "$WORK/foreign"
ok "enforce whole-job: it ends too" [ "$status" -ne 0 ]

restore
done_testing
