# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Another plugstack.conf for a test: the real plugin with the probe in the core's place.

# A folder of root's that everyone may enter, for programs that slurmd trusts.
TRUSTED=$(mktemp -d "$FL_CLUSTER/${0##*/}.XXXXXX")
chmod 755 "$TRUSTED"
cp "$FL_CLUSTER/etc/plugstack.conf" "$TRUSTED/plugstack.conf"
plugin=$(sed -nE 's/^[a-z]+ ([^ ]*fp8_lora\.so).*/\1/p' "$TRUSTED/plugstack.conf")
account=$(sed -nE 's/.*(account=[^ ]+).*/\1/p' "$TRUSTED/plugstack.conf")

restore() {
    cp "$TRUSTED/plugstack.conf" "$FL_CLUSTER/etc/plugstack.conf"
    rm -rf -- "$TRUSTED"
}
trap 'restore; diag "ended early, status $?; files in $WORK"' EXIT

# plugstack LINE...: srun and slurmstepd read it anew for every step.
plugstack() { printf '%s\n' "$@" >"$FL_CLUSTER/etc/plugstack.conf"; }

# The line for the plugin with the probe as its core.
cp "${FL_BUILD_DIR:?}/tests/slurm/probe" "$TRUSTED/probe"
# shellcheck disable=SC2034 # for the tests
PROBE_LINE="optional $plugin core=$TRUSTED/probe $account"

# probe_job NAME [LINE...]: a job file that passes the checks before the queue.
probe_job() {
    local name=$1
    shift
    {
        say "model: $WORK/model"
        say "dataset: $WORK/train.jsonl"
        say "expert_model_parallel_size: 2"
        say "global_batch_size: 8"
        (($# == 0)) || printf '%s\n' "$@"
    } >"$WORK/$name.yaml"
}
