# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What tests/slurm/*.t share: TAP, commands as the ordinary user with a time limit, jobs and their records.
#
# The cluster is contrib/devcluster's, its folder in FL_CLUSTER; contrib/check starts one for all tests.
# By hand: contrib/devcluster up --nodes 2 --plugin BUILD && FL_CLUSTER=/var/lib/fp8-lora-devcluster tests/slurm/0001-cluster.t
set -euo pipefail
FL_SOURCE_DIR=${FL_SOURCE_DIR:-$(cd "${BASH_SOURCE[0]%/*}/../.." && pwd)}
# shellcheck source=../../contrib/lib.sh
. "$FL_SOURCE_DIR/contrib/lib.sh"

# ---- TAP

tests=0 failures=0

# Every failed test shows what the last `run` printed.
verdict() {
    local right=$1 text=$2
    tests=$((tests + 1))
    if [ "$right" = yes ]; then
        say "ok $tests - $text"
    else
        failures=$((failures + 1))
        say "not ok $tests - $text"
        shift 2
        (($# == 0)) || diag "$@"
        diag "status ${status:-none}; standard output and error of the last command:"
        diag "${out:-}"
        diag "${err:-}"
    fi
}

diag() { printf '%s\n' "$*" | sed 's/^/# /'; }

# ok TEXT COMMAND...: passes when the command succeeds.
ok() {
    local text=$1
    shift
    if "$@"; then verdict yes "$text"; else verdict no "$text" "failed: $*"; fi
}

# is GOT WANTED TEXT
is() {
    if [ "$1" = "$2" ]; then verdict yes "$3"; else verdict no "$3" "got: $1" "wanted: $2"; fi
}

# like GOT EXTENDED-REGEX TEXT, and its opposite
like() {
    if [[ $1 =~ $2 ]]; then verdict yes "$3"; else verdict no "$3" "got: $1" "wanted a match of: $2"; fi
}
unlike() {
    if ! [[ $1 =~ $2 ]]; then verdict yes "$3"; else verdict no "$3" "got: $1" "wanted no match of: $2"; fi
}

# skip TEXT WHY: one test that cannot run here.
skip() {
    tests=$((tests + 1))
    say "ok $tests - $1 # SKIP $2"
}

skip_all() {
    say "1..0 # SKIP $1"
    exit 0
}

done_testing() {
    say "1..$tests"
    trap - EXIT
    ((failures > 0)) || rm -rf -- "$WORK"
    exit $((failures > 0))
}

# A script that ends early prints no plan, which TAP counts as an error; say where.
trap 'say "# ended early in line $LINENO, status $?; files in $WORK"' EXIT

# ---- commands

# shellcheck disable=SC2034 # for the tests
status='' out='' err=''
LIMIT=60 # seconds for one command; LIMIT=200 run … for a longer one

# run COMMAND...: keeps status, out and err for the tests that follow.
run() {
    status=0
    "$@" >"$WORK/out" 2>"$WORK/err" </dev/null || status=$?
    out=$(cat "$WORK/out")
    err=$(cat "$WORK/err")
}

# as_user COMMAND...: as the ordinary user who runs jobs, in the test's folder; 97 if that user were root,
# 124 when LIMIT is over.
as_user() {
    # shellcheck disable=SC2016 # expanded by the inner shell
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

WORK=/nonexistent
if [ -z "${FL_CLUSTER:-}" ]; then
    trap - EXIT
    skip_all "no cluster: contrib/check starts one, or set FL_CLUSTER to the folder of a running contrib/devcluster"
fi
for name in $(compgen -e | grep -E '^(SLURM|SRUN|SBATCH|SALLOC|FP8_LORA|_SLURM)_' || true); do
    unset "$name"
done
# shellcheck disable=SC1091
. "$FL_CLUSTER/env"
WORK=$(mktemp -d "$DEVCLUSTER_HOME/$(basename "$0" .t).XXXXXX")
chown "$DEVCLUSTER_USER:" "$WORK"
