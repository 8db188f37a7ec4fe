# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What tests/slurm/*.t share: commands as the ordinary user with a time limit, jobs and their records.
#
# The cluster is contrib/devcluster's, its folder in FL_CLUSTER; contrib/check starts one for all tests.
# By hand: contrib/devcluster up --nodes 2 --plugin BUILD && FL_CLUSTER=/var/lib/fp8-lora-devcluster tests/slurm/0001-cluster.t
# shellcheck source=../tap.sh
. "${BASH_SOURCE[0]%/*}/../tap.sh"

LIMIT=60 # seconds for one command; LIMIT=200 run … for a longer one

# as_user COMMAND...: as the ordinary user who runs jobs, in the test's folder; 97 if that user were root,
# 124 when LIMIT is over.
as_user() {
    as_job_user "$DEVCLUSTER_USER" "$DEVCLUSTER_HOME" timeout --kill-after=5 "$LIMIT" bash -c '
        cd "$0" && [ "$(id -u)" -ne 0 ] || exit 97
        exec "$@"' "$WORK" "$@"
}

# As root, where a test needs the administrator.
as_admin() { timeout --kill-after=5 "$LIMIT" "$@"; }

# ---- jobs

job='' job_count=0

# job_run SRUN-ARGUMENT...: srun as the ordinary user; besides run's results, job is its id, empty if Slurm made none.
job_run() {
    local name
    name=$(basename "$WORK")-$((job_count++))
    run as_user srun --job-name="$name" "$@"
    # shellcheck disable=SC2034 # for the tests
    job=$(as_admin squeue --noheader --states=all --name="$name" --format=%A)
}

# job_field JOBID FIELD: a field of the job's own accounting record.
job_field() { as_user sacct --noheader --parsable2 --allocations --jobs="$1" --format="$2"; }

is_final() { [[ $(job_field "$1" State) =~ ^(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY) ]]; }

# job_recorded JOBID: waits up to 30 s until accounting has the job's end.
job_recorded() { wait_until 30 is_final "$1"; }

# job_recorded_as JOBID FIELD EXTENDED-REGEX: waits up to 30 s until the field matches.
job_recorded_as() { wait_until 30 field_matches "$@"; }
field_matches() { [[ $(job_field "$1" "$2") =~ $3 ]]; }

# needs_nodes N: skips the whole file on a smaller cluster.
needs_nodes() { ((DEVCLUSTER_NODES >= $1)) || skip_all "needs a cluster of $1 nodes"; }

# needs_plugin: skips the whole file where the cluster was started without the plugin.
needs_plugin() {
    grep -q fp8_lora.so "$FL_CLUSTER/etc/plugstack.conf" || skip_all "the cluster was started without --plugin"
}

# ---- the cluster and the test's folder

if [ -z "${FL_CLUSTER:-}" ]; then
    skip_all "no cluster: contrib/check starts one, or set FL_CLUSTER to the folder of a running contrib/devcluster"
fi
for name in $(compgen -e | grep -E '^(SLURM|SRUN|SBATCH|SALLOC|FP8_LORA|_SLURM)_' || true); do
    unset "$name"
done
# shellcheck disable=SC1091
. "$FL_CLUSTER/env"
WORK=$(mktemp -d "$DEVCLUSTER_HOME/$(basename "$0" .t).XXXXXX")
chown "$DEVCLUSTER_USER:" "$WORK"
