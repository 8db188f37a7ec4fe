#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What a task of --fp8-lora gets from Slurm and from the plugin, and which hook runs as whom.
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
cp "$FL_BUILD_DIR/tests/slurm/.libs/hooks.so" "$TRUSTED/hooks.so"
: >"$TRUSTED/hooks.log"
chmod 666 "$TRUSTED/hooks.log"
plugstack "$PROBE_LINE" "optional $TRUSTED/hooks.so $TRUSTED/hooks.log"
cat >"$WORK/prolog" <<'END'
#!/bin/sh
echo export FROM_PROLOG=yes
END
chmod 755 "$WORK/prolog"
user=$(id -u "$DEVCLUSTER_USER")

# lines PREFIX: the rests of the probe's lines of that kind.
lines() { sed -n "s/^$1 //p" <<<"$out"; }
# value NAME: of one rank's environment.
value() { lines env | sed -n "s/^$1=//p" | sort -u | paste -sd ' '; }

# ---- the environment of tasks
# shellcheck disable=SC2016 # expanded by that shell
job_run --ntasks=2 --nodes=1 --task-prolog="$WORK/prolog" --fp8-lora job.yaml
is "$status" 0 "a step of two ranks runs"
like "$err" 'fp8-lora: 2 ranks, expert parallel 2, .* GiB a rank planned' "and the plan is told"
is "$(lines uid | sort -u)" "$user euid $user" "as the ordinary user"
is "$(lines argv0 | sort -u)" job.yaml "the command word is handed on"
is "$(lines word | sort -u)" "0 $TRUSTED/probe" "and the core is what runs"
is "$(value FP8_LORA_RANK)" '0 1' 'ranks'
is "$(value FP8_LORA_LOCAL_RANK)" '0 1' 'local ranks'
is "$(value FP8_LORA_WORLD) $(value FP8_LORA_EP) $(value FP8_LORA_DP)" '2 2 2' 'sizes'
is "$(value CUDA_DEVICE_ORDER)" PCI_BUS_ID 'GPU order'
is "$(value PYTORCH_ALLOC_CONF) $(value PYTORCH_CUDA_ALLOC_CONF)" \
    'expandable_segments:True expandable_segments:True' 'allocator settings'
like "$(value NCCL_COMM_ID)" "^$(value SLURM_STEP_NODELIST):2[0-9]{4}\$" "the rendezvous is on the step's first node"
is "$(value OMP_NUM_THREADS)" 1 'one thread for a task of one core'
is "$(value SLURM_FP8_LORA_STEP)" '' "the step's stamp is not left for programs inside"
is "$(value FROM_PROLOG)" yes "TaskProlog's exports are kept"
is "$(value LATER_PLUGIN)" task_init "a later plugin's task_init is kept"
is "$(lines ftruncate | sort -u)" -1 "a task cannot resize the record"
is "$(lines fd | grep -cv -e '^[012] ')" 2 "the record is the only descriptor more"

# ---- hooks
hooks=$(grep '^stepd ' "$TRUSTED/hooks.log")
identity() { sed -n "s/^stepd $1 task -*[0-9]* \(uid [0-9]* euid [0-9]*\).*/\1/p" <<<"$hooks" | sort -u; }
for hook in init init_post_opt task_init_privileged task_post_fork task_exit exit; do
    is "$(identity "$hook")" 'uid 0 euid 0' "$hook runs as root"
done
is "$(identity user_init)" "uid 0 euid $user" "user_init runs with the user's effective identity"
is "$(identity task_init)" "uid $user euid $user" "task_init runs as the user"
order() { awk '{ print $2 }' <<<"$hooks" | grep -n "^$1\$" | sed -n "$2s/:.*//p"; }
is "$(awk '{ print $2 }' <<<"$hooks" | head -n 3 | paste -sd ' ')" 'init init_post_opt user_init' 'first hooks'
is "$(awk '{ print $2 }' <<<"$hooks" | tail -n 1)" exit 'last hook'
for task in 1 2; do
    ok "task_init_privileged comes before task_init ($task)" [ "$(order task_init_privileged "$task")" -lt "$(order task_init "$task")" ]
    ok "task_exit comes behind ($task)" [ "$(order task_init "$task")" -lt "$(order task_exit 1)" ]
done
stepd=$(sed -n 's/^stepd init task.* pid \([0-9]*\) .*/\1/p' <<<"$hooks")
is "$(sed -n 's/^stepd task_init task.* parent \([0-9]*\)$/\1/p' <<<"$hooks" | sort -u)" "$stepd" \
    "task_init runs in slurmstepd's forked children"
like "$(awk '$1 == "local" { print $2 }' "$TRUSTED/hooks.log" | paste -sd ' ')" \
    '^init init_post_opt local_user_init exit' "srun's hooks"

# ---- what users set is kept
# shellcheck disable=SC2016 # expanded by that shell
run as_user env TMPDIR="$WORK/scratch" OMP_NUM_THREADS=7 PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64 \
    bash -c 'ulimit -S -n 555 && ulimit -S -c 3 && ulimit -S -s 4096 && exec srun --ntasks=2 --fp8-lora job.yaml'
is "$status" 0 "a step with limits of its own runs"
is "$(lines limit | sort -u | paste -sd ' ')" "core $((3 * 1024)) nofile 555 stack $((4096 * 1024))" "limits are the user's"
is "$(value TMPDIR)" "$WORK/scratch" "TMPDIR is the user's"
is "$(value OMP_NUM_THREADS)" 7 "OMP_NUM_THREADS is the user's"
is "$(value PYTORCH_ALLOC_CONF) $(value PYTORCH_CUDA_ALLOC_CONF)" \
    'max_split_size_mb:64,expandable_segments:True max_split_size_mb:64,expandable_segments:True' 'allocator settings are merged'

job_run --ntasks=2 --export=NONE --fp8-lora job.yaml
is "$(value FP8_LORA_WORLD)" 2 "--export=NONE does not undo the option"
job_run --ntasks=1 --fp8-lora -- sft --model "$WORK/model" --dataset "$WORK/train.jsonl"
is "$status" 0 "flags behind -- are taken"
is "$(lines argv0)" sft "the first word is handed on"
is "$(lines word | sed -n 2p)" "1 --model" "and the others follow"

if ((DEVCLUSTER_GPUS >= 2)); then
    job_run --ntasks=2 --nodes=1 --gres=gpu:2 --fp8-lora job.yaml
    is "$(value CUDA_VISIBLE_DEVICES) $(value FP8_LORA_DEVICE)" '0,1 0 1' "each rank has a GPU and sees its peer's"
    job_run --ntasks=2 --nodes=1 --gpus-per-task=1 --fp8-lora job.yaml
    is "$(grep -c 'hides their peers' <<<"$err")" 1 "per-task binding is warned of once"
else
    skip "GPU choice" "needs two GPUs a node"
fi

plugstack "optional $plugin core=/nonexistent/core"
job_run --ntasks=2 --fp8-lora job.yaml
is "$status" 1 "a node without the core fails the step"
like "$err" 'fp8-lora: /nonexistent/core: No such file or directory; install fp8-lora on this node' "and says so"
unlike "$(sinfo --noheader --format=%T)" drain "no node is drained"
restore
done_testing
