#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A user who tampers with all that is the user's gains nothing beyond the watch's grace.
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
cp "${FL_BUILD_DIR:?}/tests/slurm/.libs/nvml.so" "$TRUSTED/libnvidia-ml.so.1"
cp "$FL_BUILD_DIR/tests/slurm/.libs/preload.so" "$WORK/preload.so"
cp "${core#core=}" "$WORK/own-core"
GPU="GPU-11111111-2222-3333-4444-555555555555"
job_file() { # NAME [LINE...]
    local name=$1
    shift
    printf '%s\n' 'expert_model_parallel_size: 1' 'global_batch_size: 8' 'max_length: 128' "$@" | write_job "$name"
}
job_file job 'train_iters: 1'
job_file long 'train_iters: 100000' 'log_interval: 100000'
one=(--nodes=1 --ntasks=1)

values() {
    printf '%s\n' "gpu $GPU" "$@" >"$TRUSTED/nvml.values.new"
    mv "$TRUSTED/nvml.values.new" "$TRUSTED/nvml.values"
}
values

# policy LINE...: the site's, in force for the next step, its watch quick.
policy() {
    printf '%s\n' "$@" 'watch_grace: 0.5' 'watch_interval: 0.1' >"$TRUSTED/policy.yaml"
    plugstack "optional $plugin $core $account $watch nvml=$TRUSTED/libnvidia-ml.so.1 policy=$TRUSTED/policy.yaml"
}

# A client that knows no policy, and that would start the user's own core.
mkdir "$TRUSTED/own"
sed "s#^PlugStackConfig=.*#PlugStackConfig=$TRUSTED/own/plugstack.conf#" "$FL_CLUSTER/etc/slurm.conf" >"$TRUSTED/own/slurm.conf"
grep -q '^PlugStackConfig=' "$TRUSTED/own/slurm.conf" || say "PlugStackConfig=$TRUSTED/own/plugstack.conf" >>"$TRUSTED/own/slurm.conf"
say "optional $plugin core=$WORK/own-core $account $watch" >"$TRUSTED/own/plugstack.conf"
chmod -R a+rX "$TRUSTED/own"
own=(env "SLURM_CONF=$TRUSTED/own/slurm.conf")

none_busy() { ! as_admin sinfo --noheader --Node --format=%T | grep -qv '^idle$'; }
all_idle() { ok "the nodes are idle" wait_until 30 none_busy; }

# held REGEX TEXT: the last run was refused by the node, in words of the site's.
held() {
    ok "$2: it fails" [ "$status" -ne 0 ]
    like "$err" "$1" "and the site's limit is named"
    ok "no adapters were made" [ ! -e "$WORK/job/adapter_model.safetensors" ]
    all_idle
}

# begins NAME COMMAND...: in the background, until a process whose program file is called NAME runs; its pid in pid.
begins() {
    local name=$1
    shift
    found() {
        local candidate
        for candidate in $(processes_named "$name"); do
            case $(readlink "/proc/$candidate/exe") in
            "${core#core=}" | "$(realpath "${core#core=}")" | "$WORK/own-core") pid=$candidate ;;
            esac
        done
        [ -n "$pid" ]
    }
    pid=''
    LIMIT=120 as_user "$@" >"$WORK/step.out" 2>"$WORK/step.err" </dev/null &
    client=$!
    ok "the step begins" wait_until 60 found "$name"
}
# ends SECONDS REGEX TEXT
ends() {
    local begin=$SECONDS
    status=0
    wait "$client" || status=$?
    out=$(cat "$WORK/step.out") err=$(cat "$WORK/step.err")
    ok "$3: it ends within $1 s" [ $((SECONDS - begin)) -le "$1" ]
    ok "and fails" [ "$status" -ne 0 ]
    like "$err$out" "$2" "and the site's cap is named"
    all_idle
}

# ---- a TaskProlog, which comes after the plugin and may change the environment
cat >"$WORK/prolog" <<'END'
#!/bin/bash
{ : >&200; echo x >/proc/self/fd/200; : >/proc/$PPID/fd/200; } 2>/dev/null && touch "${0%/*}/written"
exec 200>&-
for name in FP8_LORA_CAP FP8_LORA_HOST_CAP; do echo "export $name=99999999999"; done
for name in FP8_LORA_MODEL_ROOTS FP8_LORA_OUTPUT_ROOTS; do echo "export $name=/"; done
echo "export FP8_LORA_CAP_SOURCE=mine"
echo "export SLURM_JOB_PARTITION=other"
echo "export FP8_LORA_LIMITS_FD=199"
END
chmod 755 "$WORK/prolog"
policy 'max_device_memory: 20MiB'
run as_user "${own[@]}" srun "${one[@]}" --task-prolog="$WORK/prolog" --fp8-lora job.yaml
held 'policy.yaml:1: job.yaml: the plan of .* is above the cap of 20.00 MiB' "a cap changed by the TaskProlog"
sed -i 's/^echo "export FP8_LORA_CAP_SOURCE.*/echo "unset FP8_LORA_CAP"/' "$WORK/prolog"
run as_user "${own[@]}" srun "${one[@]}" --task-prolog="$WORK/prolog" --fp8-lora job.yaml
held 'policy.yaml:1: job.yaml: the plan of .* is above the cap of 20.00 MiB' "a cap unset by the TaskProlog"
policy 'max_device_memory: 2GiB' 'model_roots: [/nowhere]'
run as_user "${own[@]}" srun "${one[@]}" --task-prolog="$WORK/prolog" --fp8-lora job.yaml
held 'model: this site.s policy allows models only below /nowhere \(policy.yaml:2\)' "roots changed by the TaskProlog"
policy 'action: warn' 'partitions:' "  $partition:" '    output_roots: [/nowhere]'
run as_user "${own[@]}" srun "${one[@]}" --task-prolog="$WORK/prolog" --fp8-lora job.yaml
held "job: this site.s policy allows output only below /nowhere \\(policy.yaml:4, partition $partition\\)" \
    "roots refuse under warn as well"
ok "what was handed over cannot be written" [ ! -e "$WORK/written" ]

# ---- a forged environment; a configuration and a core of the user's own
policy 'partitions:' "  $partition: {max_device_memory: 20MiB}" '  other: {max_device_memory: 20GiB}'
run as_user "${own[@]}" SLURM_JOB_PARTITION=other SLURM_JOB_ACCOUNT=root SLURM_JOB_QOS=high FP8_LORA_CAP=99999999999 \
    FP8_LORA_RECORD_FD=200 FP8_LORA_ARGV0=other.yaml srun "${one[@]}" --fp8-lora job.yaml
held "policy.yaml:2, partition $partition: job.yaml: the plan of .* is above the cap of 20.00 MiB" "a forged environment"

# ---- warn: all caps warn, and the job runs
policy 'action: warn' 'max_device_memory: 20MiB' 'max_host_memory: 1KiB' 'max_ranks: 1'
run as_user srun --nodes=1 --ntasks=2 --mpi=pmix --fp8-lora job.yaml
is "$status" 0 "under warn a job above its caps runs"
like "$err" 'warning: policy.yaml:2: job.yaml: the plan of .* is above the cap of 20.00 MiB' "with a warning of device memory"
like "$err" '2 ranks are more than the 1 of max_ranks \(policy.yaml:4\)' "and of ranks"
is "$(grep -c 'is above the cap of 20' <<<"$err")" 1 "once"
rm -rf "$WORK/job"
all_idle

# ---- the client says what only the node applies
policy 'gpus: {H100: {max_ranks: 5}}' 'accounts: {students: {max_ranks: 6}, staff: {max_ranks: 7}}' 'qos: {low: {max_ranks: 4}}'
run as_user env SLURM_JOB_QOS=high srun "${one[@]}" --fp8-lora job.yaml
is "$status" 0 "sections about what the client does not know"
like "$err" "the policy's sections that only the node applies: GPU H100; account students, staff
" "are named"
rm -rf "$WORK/job"
all_idle

# ---- LD_PRELOAD: the core runs as the user, so that its own limits are gone; the watch is not
policy 'max_device_memory: 20MiB' 'action: kill'
begins fp8-lora-core "${own[@]}" "LD_PRELOAD=$WORK/preload.so" srun "${one[@]}" --fp8-lora long.yaml
hidden() { grep -q 'preload: the limits are hidden' "$WORK/step.err"; }
ok "the library hides the limits from the core" wait_until 30 hidden
ok "which goes on" kill -0 "$client"
values "use 0 $pid 2147483648"
ends 15 "the step is ended: rank 0: over the cap of 20.00 MiB \(policy.yaml:1\): process $pid held 2.00 GiB on $GPU" \
    "a core that knows no limits"
values

# ---- a core of the user's own, in a step without the option
policy 'max_device_memory: 20MiB' 'action: kill' 'enforce: all-gpu-steps'
begins own-core srun "${one[@]}" "$WORK/own-core" long.yaml
values "use 0 $pid 2147483648"
ends 15 "the step is ended: rank 0: over the cap of 20.00 MiB \(policy.yaml:1\): process $pid held 2.00 GiB" "an own core"
values
policy 'max_device_memory: 20MiB' 'action: kill' 'enforce: whole-job'
begins own-core sbatch --wait --nodes=1 --output="$WORK/batch.out" --wrap "$WORK/own-core long.yaml"
values "use 0 $pid 2147483648"
ends 30 '' "an own core in a batch script"
values

# ---- steps without the option: no policy, or no watch, no step
printf 'max_device_memry: 1GiB\n' >"$TRUSTED/policy.yaml"
run as_user srun "${one[@]}" true
held "fp8-lora: without its policy this site runs no step: .*policy.yaml:1: unknown key 'max_device_memry'" \
    "a step where the policy cannot be read"
run as_user sbatch --wait --nodes=1 --output="$WORK/batch.out" --wrap 'echo whole'
ok "and a batch script" [ "$status" -ne 0 ]
like "$(cat "$WORK/batch.out")" 'without its policy this site runs no step' "which says so"
all_idle
plugstack "optional $plugin $core $account $watch policy=$TRUSTED/policy.yaml on_failure=continue"
run as_user srun "${one[@]}" true
is "$status" 0 "on_failure=continue lets them run"
policy 'max_device_memory: 1GiB' 'enforce: whole-job' 'watch_failure: end'
plugstack "optional $plugin $core $account watch=/nonexistent policy=$TRUSTED/policy.yaml"
run as_user srun "${one[@]}" true
held 'device memory cannot be watched, and the policy ends such steps' "a step that cannot be watched"
policy 'max_device_memory: 1GiB' 'enforce: whole-job' 'watch_failure: continue'
plugstack "optional $plugin $core $account watch=/nonexistent policy=$TRUSTED/policy.yaml"
run as_user srun "${one[@]}" true
is "$status" 0 "watch_failure: continue lets it run"
like "$err" 'the cap on device memory is not in force: /nonexistent' "and says that it is not watched"
all_idle

# ---- a step without the option whose watch is killed as a whole, guardian included, ends with its first task
policy 'max_device_memory: 1GiB' 'enforce: whole-job' 'watch_failure: end'
watchers() {
    local candidate
    for candidate in $(processes_named fp8-lora-watch); do
        [ "$(readlink "/proc/$candidate/exe")" != "$(realpath "${watch#watch=}")" ] || say "$candidate"
    done
}
printf '#!/bin/bash\nfor ((i = 0; i < 600; i++)); do\n[ "$SLURM_PROCID" = 1 ] || [ ! -e %q ] || exit 0\nsleep 0.1\ndone\n' \
    "$WORK/over" >"$WORK/uneven"
chmod 755 "$WORK/uneven"
as_user srun --nodes=1 --ntasks=2 "$WORK/uneven" >"$WORK/step.out" 2>"$WORK/step.err" </dev/null &
client=$!
both() { [ "$(watchers | wc -l)" -eq 2 ]; }
ok "the watch and its guardian run" wait_until 30 both
sleep 1
# shellcheck disable=SC2046 # a list of pids
kill -KILL $(watchers)
touch "$WORK/over"
ends 40 'the watch over the device memory died: its cap is not in force' "a step whose watch was killed as a whole"

# ---- what slurmstepd holds open is not the step's: neither of one that is governed, nor of its programs
policy 'max_device_memory: 1GiB' 'enforce: whole-job'
# find holds the folder open that it was started in, whose name may be anything.
run as_user srun "${one[@]}" --chdir=/ find /proc/self/fd -lname '*fp8-lora*'
is "$out" '' "a governed step inherits no file of the plugin's"

# ---- slurmctld stops after the step was made: the strictest of the policy, said
slurmctld=$(cat "$FL_CLUSTER/run/slurmctld.pid")
trap 'kill -CONT "$slurmctld"; restore; diag "ended early, status $?; files in $WORK"' EXIT
printf '#!/bin/bash\ntouch %q\nwhile [ ! -e %q ]; do sleep 0.1; done\n' "$WORK/ready" "$WORK/go" >"$WORK/halt"
chmod 755 "$WORK/halt"
policy 'partitions:' "  $partition: {max_device_memory: 2GiB}" '  other: {max_device_memory: 10MiB}'
unknown='policy.yaml:3, partition other \(the job is not known\): job.yaml: the plan of .* is above the cap of 10.00 MiB'
# unanswered FILE CLIENT ARGUMENT...: until FILE has the refusal.
unanswered() {
    local file=$1
    shift
    rm -f "$WORK/ready" "$WORK/go" "$file"
    LIMIT=120 as_user "$@" >"$WORK/step.out" 2>"$WORK/step.err" </dev/null &
    client=$!
    ok "the step is made" wait_until 30 test -e "$WORK/ready"
    kill -STOP "$slurmctld"
    touch "$WORK/go"
    said() { grep -Eq "$unknown" "$file"; }
    ok "while slurmctld does not answer the strictest cap applies, and is said" wait_until 30 said
    kill -CONT "$slurmctld"
    status=0
    wait "$client" || status=$?
    out=$(cat "$WORK/step.out") err=$(cat "$WORK/step.err")
    ok "and the step fails" [ "$status" -ne 0 ]
    all_idle
}
unanswered "$WORK/step.err" srun "${one[@]}" --prolog="$WORK/halt" --fp8-lora job.yaml
unanswered "$WORK/batch.out" sbatch --wait --nodes=1 --output="$WORK/batch.out" \
    --wrap "srun --ntasks=1 --prolog=$WORK/halt --fp8-lora job.yaml"

restore
done_testing
