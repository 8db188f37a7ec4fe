#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Without the option the plugin changes nothing; an allocation's option is no option of the steps inside.
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

# environments NAME: $WORK/NAME, both tasks' environments of a plain step, without what differs from step to step.
environments() {
    as_user srun --job-name=plain --ntasks=2 --nodes=1 --output="$1.%t" env --null
    tr '\0\n' '\n\r' <"$WORK/$1.0" | cat - <(tr '\0\n' '\n\r' <"$WORK/$1.1") |
        sed -E 's/^(SLURM_(JOB_?ID|TASK_PID|STEP_LAUNCHER_PORT|SRUN_COMM_PORT|JOB_(START|END)_TIME))=.*/\1/' >"$WORK/$1"
}
environments with
plugstack ''
environments without
ok "there is an environment to compare" grep -q '^SLURM_PROCID=1' "$WORK/with"
ok "a plain step's environment is the same with and without the plugin" cmp "$WORK/with" "$WORK/without"
plugstack "$PROBE_LINE"

# is_plain TEXT COMMAND...: COMMAND starts `echo plain` through srun.
is_plain() {
    local text=$1
    shift
    run as_user "$@"
    is "$status:$out" 0:plain "$text"
}
is_plain "a plain step runs" srun echo plain
is_plain "the option's words behind the command are the command's" srun --ntasks=1 bash -c 'echo plain' --fp8-lora job.yaml
is_plain "salloc's option is not a step's" salloc --quiet --ntasks=2 --fp8-lora=job.yaml srun --ntasks=1 echo plain
is_plain "nor is a variable of the allocation's kind" \
    env SLURM_SPANK__SLURM_SPANK_OPTION_fp8_lora_fp8_lora=job.yaml srun echo plain
is_plain "nor one of the node's kind" env _SLURM_SPANK_OPTION_fp8_lora_fp8_lora=job.yaml srun echo plain
is_plain "nor one with another step's stamp" \
    env _SLURM_SPANK_OPTION_fp8_lora_fp8_lora= SLURM_FP8_LORA_STEP=1.0.2.2.0 srun echo plain

run as_user salloc --quiet --ntasks=2 --fp8-lora=job.yaml srun --ntasks=2 --fp8-lora job.yaml
is "$status" 0 "a step inside may carry its own"
is "$(grep -c "^word 0 $TRUSTED/probe" <<<"$out")" 2 "and is the core"

cat >"$WORK/script" <<END
#!/bin/bash
#SBATCH --ntasks=2
echo script
srun --ntasks=1 echo inner
srun --ntasks=2 --fp8-lora job.yaml 2>srun.err | grep -c '^word 0 $TRUSTED/probe'
END
run as_user sbatch --quiet --wait --parsable --output=script.out --fp8-lora=job.yaml script
is "$status" 0 "a batch job with the option runs"
is "$(paste -sd ' ' "$WORK/script.out")" 'script inner 2' "its script and plain steps are themselves, its own step is the core"
sed -i 's/^#SBATCH.*/&\n#SBATCH --fp8-lora=missing.yaml/' "$WORK/script"
run as_user sbatch --quiet --parsable --output=script.out script
is "$status" 1 "an option line of the script is checked"
like "$err" 'missing.yaml' "and the file is named"

job=$(as_user salloc --quiet --ntasks=1 printenv SLURM_JOB_ID)
ok "a plain job is recorded" job_recorded "$job"
is "$(job_field "$job" AdminComment)" '' "without an admin_comment"
unlike "$(sinfo --noheader --format=%T)" drain "no node is drained"
restore
done_testing
