#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The watch over device memory, with injected values: over the cap, warned, blind, killed.
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
watch=$(sed -nE 's/.*(watch=[^ ]+).*/\1/p' "$TRUSTED/plugstack.conf")
cp "${FL_BUILD_DIR:?}/tests/slurm/.libs/nvml.so" "$TRUSTED/libnvidia-ml.so.1"
CAP=1073741824 GPU=GPU-11111111-2222-3333-4444-555555555555

# A program that knows nothing of fp8-lora, as core: two tasks that wait, or as PROGRAM tells.
cat >"$TRUSTED/foreign" <<'END'
#!/bin/bash
echo "pid $SLURM_PROCID $$"
[ "$SLURM_PROCID" = 0 ] || trap 'exit 0' TERM
for ((i = 0; i < ${SECONDS_TO_RUN:-60} * 10; i++)); do sleep 0.1; done
echo "finished $SLURM_PROCID"
END
chmod 755 "$TRUSTED/foreign"

# values LINE...: what the library says from now on, as a whole.
values() {
    printf '%s\n' "gpu $GPU" "$@" >"$TRUSTED/nvml.values.new"
    mv "$TRUSTED/nvml.values.new" "$TRUSTED/nvml.values"
}

# watched PROGRAM ARGUMENT...: the plugin's line.
watched() {
    local program=$1
    shift
    plugstack "optional $plugin core=$TRUSTED/$program $account $watch nvml=$TRUSTED/libnvidia-ml.so.1 max_device_memory=$CAP $*"
}

# processes_of FILE NAME: of that program file, so that another cluster's do not count.
processes_of() {
    local pid
    for pid in $(processes_named "$2"); do
        [ "$(readlink "/proc/$pid/exe")" != "$(realpath "$1")" ] || say "$pid"
    done
}
# The sampler and its guardian of each step.
watchers() { processes_of "${watch#watch=}" fp8-lora-watch; }
leaves() { processes_of "$TRUSTED/probe" probe-leaf; }

# step_begin NAME COUNT: starts a step in the background and waits for that many processes of that name;
# step_begin job: for its job alone.
step_begin() {
    name=$(basename "$WORK")-$((job_count++))
    as_user env PROBE="${PROBE:-}" SECONDS_TO_RUN="${SECONDS_TO_RUN:-60}" srun --job-name="$name" --nodes="${NODES:-1}" --ntasks=2 \
        --fp8-lora job.yaml >"$WORK/step.out" 2>"$WORK/step.err" </dev/null &
    srun=$!
    started() { [ "$(processes_named "$1" | wc -l)" -ge "$2" ]; }
    has_job() { [ -n "$(as_admin squeue --noheader --states=all --name="$name" --format=%A)" ]; }
    if [ "$1" = job ]; then
        ok "a step begins" wait_until 30 has_job
    else
        ok "$2 processes called $1 run" wait_until 30 started "$1" "$2"
    fi
    job=$(as_admin squeue --noheader --states=all --name="$name" --format=%A)
}
# rank_pid RANK: of a foreign program.
rank_pid() { sed -n "s/^pid $1 //p" "$WORK/step.out"; }

# step_end SECONDS TEXT: the step ends by itself within that time.
step_end() {
    local begin=$SECONDS
    status=0
    is_over() { ! kill -0 "$srun"; }
    wait_until 60 is_over || kill "$srun"
    wait "$srun" || status=$?
    ok "$2 within $1 s" [ $((SECONDS - begin)) -le "$1" ]
    out=$(cat "$WORK/step.out") err=$(cat "$WORK/step.err")
    ok "accounting has it" job_recorded "$job"
    ok "and the record" job_recorded_as "$job" AdminComment .
    run_report=$(as_user fp8-lora report "$job")
    none_left() { [ -z "$(watchers)" ]; }
    ok "the watch is gone" wait_until 5 none_left
    none_busy() { ! sinfo_states | grep -qv '^idle$'; }
    ok "the nodes are idle" wait_until 15 none_busy
}
sinfo_states() { as_admin sinfo --noheader --Node --format=%T; }
over="over the cap of 1.00 GiB \(plugstack.conf\): process"

# ---- a foreign program over the cap
watched foreign action=kill grace=1
values
step_begin foreign 2
rank_known() { [ -n "$(rank_pid 1)" ] && [ -n "$(rank_pid 0)" ]; }
wait_until 10 rank_known
values "use 0 $(rank_pid 0) 900000000" "use 0 $(rank_pid 1) 900000000" "use 0 1 9000000000"
sleep 1.5
ok "a step under its cap goes on, whatever others hold" kill -0 "$srun"
victim=$(rank_pid 1)
values "use 0 $(rank_pid 0) 900000000" "use 0 $victim 2147483648"
step_end 15 "over the cap it ends"
ok "srun fails" [ "$status" -ne 0 ]
like "$err" "fp8-lora: rank 1 is $over $victim holds 2.00 GiB on $GPU; the step ends unless that falls within 1.0 s" \
    "its standard error names the cap, who holds how much, and the grace"
like "$err" "fp8-lora: the step is ended: rank 1: $over $victim held 2.00 GiB on $GPU" "and then the end"
like "$(job_field "$job" State)" '^(FAILED|CANCELLED)' "sacct has it as failed"
like "$(job_field "$job" AdminComment)" 'failed at rank 1' "and the rank"
like "$run_report" "first failure: rank 1, $over $victim held 2.00 GiB on $GPU" "the report says which rank and why"
like "$run_report" "device memory of node 0: cap in force: sampled" "and that the cap was in force"
like "$run_report" " 2.00 GiB +1.00 GiB " "and what was measured beside the cap"

# ---- the same on one of two nodes, and in a batch job
if ((DEVCLUSTER_NODES >= 2)); then
    watched foreign action=kill grace=0
    values
    NODES=2 step_begin foreign 2
    wait_until 10 rank_known
    values "use 0 $(rank_pid 1) 2147483648"
    step_end 30 "a step of two nodes ends on both"
    ok "srun fails" [ "$status" -ne 0 ]
    like "$err" "the step is ended: rank 1: $over [0-9]+ held 2.00 GiB" "its standard error says why"
    like "$run_report" "first failure: rank 1, $over [0-9]+ held 2.00 GiB" "the report too"
    is "$(grep -c 'device memory of node [01]: cap in force' <<<"$run_report")" 2 "which has the watch of both nodes"
else
    skip "a step of two nodes" "one node"
fi

watched foreign action=kill grace=0
values
cat >"$WORK/script" <<END
#!/bin/bash
#SBATCH --ntasks=2 --nodes=1
srun --fp8-lora job.yaml
END
rm "$WORK/step.out"
job=$(as_user sbatch --parsable --output="$WORK/step.out" script)
ok "a batch job's step runs" wait_until 30 rank_known
values "use 0 $(rank_pid 1) 2147483648"
ok "and ends over its cap" job_recorded "$job"
like "$(cat "$WORK/step.out")" "the step is ended: rank 1: $over [0-9]+ held 2.00 GiB" "the job's output says why"
like "$(job_field "$job" State)" '^FAILED' "sacct has it as failed"
ok "with the record" job_recorded_as "$job" AdminComment 'failed at rank 1'
ok "the nodes are idle" wait_until 15 none_busy

# ---- back under the cap within the grace
watched foreign action=kill grace=30
values
SECONDS_TO_RUN=4 step_begin foreign 2
wait_until 10 rank_known
values "use 0 $(rank_pid 1) 2147483648"
told() { grep -q 'is over the cap' "$WORK/step.err"; }
ok "it is told" wait_until 10 told
values "use 0 $(rank_pid 1) 1000"
step_end 15 "a step that gives way in time runs to its end"
is "$status" 0 "and succeeds"
like "$run_report" " 2.00 GiB +1.00 GiB " "its peak stays in the report"

# ---- warn
watched foreign action=warn grace=0
values
SECONDS_TO_RUN=4 step_begin foreign 2
wait_until 10 rank_known
values "use 0 $(rank_pid 0) 3221225472"
step_end 15 "under warn it runs to its end"
is "$status" 0 "and succeeds"
like "$out" 'finished 0' "as a whole"
like "$err" "fp8-lora: warning: rank 0 is $over [0-9]+ holds 3.00 GiB on $GPU" "with a warning"
is "$(grep -c 'over the cap' <<<"$err")" 1 "a single one"
is "$(job_field "$job" State)" COMPLETED "sacct has it as completed"
like "$run_report" "$over [0-9]+ held 3.00 GiB" "the report has the warning"

# ---- a grandchild in a session of its own, with no environment and no parent
watched probe action=kill grace=0
values
PROBE='leave 1' step_begin job
has_left() { [ -n "$(leaves)" ]; }
ok "a grandchild runs" wait_until 30 has_left
victim=$(leaves)
is "$(awk '/^PPid:/ { print $2 }' "/proc/$victim/status")" 1 "the grandchild has left its parents"
values "use 0 $victim 4294967296"
step_end 20 "a step whose grandchild is over the cap ends"
ok "srun fails" [ "$status" -ne 0 ]
# In a cgroup of version 1 nothing tells whose it is.
like "$err" "the step is ended: (rank 1|a process of the step): $over $victim held 4.00 GiB on $GPU" \
    "its standard error names the grandchild"
like "$(job_field "$job" State)" '^(FAILED|CANCELLED)' "sacct has it as failed"
like "$run_report" "first failure: rank [01], $over $victim held 4.00 GiB" "the report names it"
is "$(leaves)" '' "the grandchild has ended"

# ---- it cannot measure
watched foreign action=kill on_failure=continue
values 'fail compute 999'
SECONDS_TO_RUN=4 step_begin foreign 2
step_end 20 "a blind watch lets the step go on"
is "$status" 0 "and succeed"
like "$err" "fp8-lora: warning: the cap is not in force: NVML: $GPU: error 999" "with a warning"
like "$run_report" "device memory of node 0: cap not in force: it could not be measured" "the report says so"

watched foreign action=kill on_failure=end
step_begin job
step_end 20 "a blind watch ends the step where the policy says so"
ok "srun fails" [ "$status" -ne 0 ]
like "$err" "the step is ended: device memory cannot be measured, and the policy ends such steps: NVML: $GPU: error 999" \
    "its standard error says why"
like "$(job_field "$job" State)" '^(FAILED|CANCELLED)' "sacct has it as failed"
like "$run_report" "first failure: rank [01], device memory cannot be measured" "the report too"

# ---- no library
rm "$TRUSTED/nvml.values"
plugstack "optional $plugin core=$TRUSTED/foreign $account $watch max_device_memory=$CAP on_failure=continue"
SECONDS_TO_RUN=2 step_begin foreign 2
step_end 20 "without NVML the step goes on"
is "$status" 0 "and succeeds"
like "$err" "warning: the cap is not in force: NVML: libnvidia-ml.so.1: cannot open" "with a warning"
plugstack "optional $plugin core=$TRUSTED/foreign $account $watch max_device_memory=$CAP on_failure=end"
step_begin job
step_end 20 "without NVML the step ends where the policy says so"
ok "srun fails" [ "$status" -ne 0 ]

# ---- a library that others could replace
chmod 666 "$TRUSTED/libnvidia-ml.so.1"
watched foreign on_failure=end
job_run --nodes=1 --ntasks=2 --fp8-lora job.yaml
ok "a library that others may write is not loaded" [ "$status" -ne 0 ]
like "$err" "device memory cannot be watched, and the policy ends such steps: .*others than root may replace it" "and said"
chmod 755 "$TRUSTED/libnvidia-ml.so.1"

# ---- the watch is killed
watched foreign action=kill on_failure=continue
values
SECONDS_TO_RUN=5 step_begin foreign 2
both() { [ "$(watchers | wc -l)" -eq 2 ]; }
ok "the watch and its guardian run" wait_until 10 both
is "$(for pid in $(watchers); do tr '\0' '\n' <"/proc/$pid/environ"; done)" '' "without an environment"
is "$(for pid in $(watchers); do stat -c %U "/proc/$pid"; done | sort -u)" root "as root"
sampler=$(watchers | sort -n | head -n 1)
wait_until 10 rank_known
sleep 1
kill -KILL "$sampler"
step_end 20 "a step whose watch was killed goes on"
is "$status" 0 "and succeeds"
like "$err" "fp8-lora: the watch over the device memory was killed; its cap is not in force" "with a warning"
like "$run_report" "device memory of node 0: cap not in force: the watch died" "the report says so"

watched foreign action=kill on_failure=end
step_begin foreign 2
wait_until 10 both
wait_until 10 rank_known
sleep 1
kill -KILL "$(watchers | sort -n | head -n 1)"
step_end 20 "a step whose watch was killed ends where the policy says so"
ok "srun fails" [ "$status" -ne 0 ]
like "$err" "the watch over the device memory was killed, and the policy ends such steps" "its standard error says why"
like "$(job_field "$job" State)" '^(FAILED|CANCELLED)' "sacct has it as failed"
like "$run_report" "first failure: rank [01], the watch over the device memory was killed" "the report too"

watched foreign action=kill on_failure=end
step_begin foreign 2
wait_until 10 both
wait_until 10 rank_known
sleep 1
kill -STOP "$(watchers | sort -n | head -n 1)"
step_end 40 "a step whose watch hangs ends as well"
ok "srun fails" [ "$status" -ne 0 ]
like "$err" "the watch over the device memory hangs, and the policy ends such steps" "its standard error says why"

watched foreign action=kill on_failure=end
SECONDS_TO_RUN=5 step_begin foreign 2
wait_until 10 both
guardian=$(watchers | sort -n | tail -n 1)
kill -KILL "$guardian"
again() { both && ! watchers | grep -qx "$guardian"; }
ok "a killed guardian is replaced" wait_until 10 again
step_end 20 "and the step goes on"
is "$status" 0 "and succeeds"
like "$run_report" "device memory of node 0: cap in force: sampled" "with its cap in force"
restore
done_testing
