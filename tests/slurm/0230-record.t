#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The ranks' record reaches sacct through admin_comment, for one step and several, whole and failed.
# shellcheck source=lib.sh
. "${0%/*}/lib.sh"
# shellcheck source=job.sh
. "${0%/*}/job.sh"
needs_plugin
needs_nodes 2
# shellcheck source=plugin.sh
. "${0%/*}/plugin.sh"
copy_checkpoint
make_samples 4
probe_job job
plugstack "$PROBE_LINE"
report() { run as_user fp8-lora report "$@"; }
# json PYTHON: of the report's JSON as j.
json() { python3 -c "import json,sys; j=json.load(sys.stdin); print($1)" <<<"$out"; }

job_run --nodes=2 --ntasks=4 --fp8-lora job.yaml
is "$status" 0 "four ranks on two nodes run"
ok "accounting has the job" job_recorded "$job"
comment=$(job_field "$job" AdminComment)
like "$comment" '^fp8-lora v1 step 0: 4 ranks, peak 0.10 GiB \(rank 3\), done \{' "admin_comment starts for people"
report --json "$job"
is "$(json "[r['rank'] for s in j['steps'].values() for r in s['ranks']]")" '[0, 1, 2, 3]' "every rank is there"
is "$(json "sorted({r['node'] for s in j['steps'].values() for r in s['ranks']})")" "['n0', 'n1']" "with its node"
is "$(json "{(r['state'], r['exit'], r['planned'] >> 20, r['tps']) for s in j['steps'].values() for r in s['ranks']}")" \
    "{('done', 0, 100, 1250.5)}" "state, plan and speed"
report "$job.0"
is "$status" 0 "the table is printed"
like "$out" 'all .* 400.00 MiB  410.00 MiB' "with totals"
report "$job.7"
is "$status" 1 "a step without a record is told"
like "$err" "job $job: no record of step 7" "by its number"

# Steps of one allocation add up, beside text of others.
# shellcheck disable=SC2016 # expanded by that shell
as_user salloc --quiet --nodes=2 --ntasks=4 bash -c 'echo "$SLURM_JOB_ID" >allocation
    until [ -e go ]; do sleep 0.1; done
    for i in 1 2; do srun --ntasks=2 --fp8-lora job.yaml; done' >"$WORK/salloc.out" 2>&1 &
salloc=$!
wait_until 30 test -s "$WORK/allocation"
job=$(cat "$WORK/allocation")
as_admin scontrol update JobId="$job" AdminComment='site text'
touch "$WORK/go"
ok "steps of an allocation run" wait "$salloc"
ok "accounting has the allocation" job_recorded "$job"
like "$(job_field "$job" AdminComment)" '^site text fp8-lora v1 step 0: 2 ranks.*; step 1: 2 ranks' "both steps stand behind the site's text"

job_run --nodes=2 --ntasks=4 true
ok "accounting has a plain job" job_recorded "$job"
report "$job"
is "$status" 1 "a job without a record is told"
like "$err" "job $job \(COMPLETED\) has no record of fp8-lora" "with its state"
report 4000000
like "$err" 'job 4000000: sacct shows no such job of yours' "an unknown job is told"

# failing HOW RANK CAUSE LIMIT: the step fails within LIMIT seconds on both nodes, and names that rank.
failing() {
    local begin=$SECONDS
    PROBE="$1 $2" job_run --nodes=2 --ntasks=4 --fp8-lora job.yaml
    ok "$1: the step fails" [ "$status" -ne 0 ]
    ok "$1: within $4 s" [ $((SECONDS - begin)) -le "$4" ]
    ok "$1: accounting has it" job_recorded "$job"
    like "$(job_field "$job" State)" '^FAILED' "$1: as failed"
    report "$job"
    like "$out" "first failure: rank $2, $3" "$1: the report says which rank and why"
    is "$(grep -c ' failed ' <<<"$out")" 4 "$1: no rank is shown as done"
}
failing die 1 'killed by signal 9 \(Killed\)' 15
failing exit 3 'exited with code 7' 15
failing hang 0 'killed by signal 9 \(Killed\)' 30
unlike "$(sinfo --noheader --format=%T)" drain "no node is drained"

# Of a job that was cancelled slurmctld takes no more text.
name=$(basename "$WORK")-cancelled
PROBE=hang as_user srun --job-name="$name" --nodes=2 --ntasks=4 --fp8-lora job.yaml >"$WORK/srun.out" 2>&1 &
srun=$!
probes_run() { [ "$(processes_named probe | wc -l)" -ge 4 ]; }
ok "a job runs" wait_until 30 probes_run
job=$(as_admin squeue --noheader --name="$name" --format=%A)
as_admin scancel "$job"
wait "$srun" || true
ok "accounting has it cancelled" job_recorded_as "$job" State '^CANCELLED'
ok "with a record" job_recorded_as "$job" AdminComment 'step 0: 4 ranks, .*failed at rank'
rank_count() { [ "$(as_user fp8-lora report "$job" | grep -c ' failed ')" = "$1" ]; }
ok "of the ranks of both nodes" wait_until 30 rank_count 4
unlike "$(sinfo --noheader --format=%T)" drain "no node is drained"

# A task that scribbles over the record harms nobody but its own report.
cat >"$TRUSTED/scribble" <<'END'
#!/usr/bin/python3
import mmap
import os

fd = int(os.environ["FP8_LORA_RECORD_FD"])
m = mmap.mmap(fd, os.fstat(fd).st_size)
m[:] = os.urandom(len(m))
END
chmod 755 "$TRUSTED/scribble"
plugstack "optional $plugin core=$TRUSTED/scribble $account"
job_run --nodes=2 --ntasks=4 --fp8-lora job.yaml
is "$status" 0 "a step that overwrites its record ends as it would"
ok "and is recorded" job_recorded "$job"
is "$(job_field "$job" State)" COMPLETED "as completed"
unlike "$(sinfo --noheader --format=%T)" drain "no node is drained"
restore
done_testing
