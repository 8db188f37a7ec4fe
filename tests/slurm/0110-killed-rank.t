#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A rank killed in mid-run: the others stop soon, the step fails, the report says which rank and why.
# shellcheck source=lib.sh
. "${0%/*}/lib.sh"
# shellcheck source=job.sh
. "${0%/*}/job.sh"
needs_plugin
LIMIT=120

copy_checkpoint
make_samples 40
write_job long <<END
expert_model_parallel_size: 4
global_batch_size: 4
train_iters: 100000
log_interval: 1
END

as_user srun --job-name="$(basename "$WORK")" --ntasks=4 --mpi=pmix --fp8-lora long.yaml \
    >"$WORK/srun.out" 2>"$WORK/srun.err" </dev/null &
srun=$!

has_trained() { grep -q '"event":"train"' "$WORK/long/metrics.jsonl"; }
ok "the job trains" wait_until 60 has_trained
job=$(as_admin squeue --noheader --name="$(basename "$WORK")" --format=%A)

# The process of rank 2.
rank_pid() {
    local pid
    for pid in $(processes_named fp8-lora-core); do
        if [ "$(environment_of "$pid" SLURM_JOB_ID)" = "$job" ] && [ "$(environment_of "$pid" SLURM_PROCID)" = 2 ]; then
            say "$pid"
        fi
    done
}
victim=$(rank_pid)
like "$victim" '^[0-9]+$' "rank 2 is found"
is "$(stat -c %U "/proc/$victim")" "$DEVCLUSTER_USER" "it runs as the ordinary user"
begin=$SECONDS
kill -KILL "$victim"
status=0
wait "$srun" || status=$?
out=$(cat "$WORK/srun.out") err=$(cat "$WORK/srun.err")
ok "the others stop within 30 s" [ $((SECONDS - begin)) -le 30 ]
ok "srun fails" [ "$status" -ne 0 ]
is "$(for pid in $(processes_named fp8-lora-core); do environment_of "$pid" SLURM_JOB_ID; done | grep -cx "$job")" 0 \
    "no rank is left"
ok "accounting has the failure" job_recorded "$job"
like "$(job_field "$job" State)" '^FAILED' "as a failed job"
ok "and the record" job_recorded_as "$job" AdminComment .

run as_user fp8-lora report "$job"
is "$status" 0 "the report reads it"
like "$out" 'first failure: rank 2, killed by signal 9' "it says which rank and why"
done_testing
