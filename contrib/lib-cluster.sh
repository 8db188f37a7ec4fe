# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# The daemons of a private cluster: how each one starts, is known again and stops.

# The cluster's settings, for contrib/devcluster's options to change.
dir=/var/lib/fp8-lora-devcluster
# shellcheck disable=SC2034
nodes=1 gpus=8 user=nobody plugin='' plugstack='' slurm_log=no

# Every daemon carries this in its environment, so that it is known again as one of this folder's.
mark() { say "FP8_LORA_DEVCLUSTER=$dir"; }
is_ours() { [ "$(environment_of "$1" FP8_LORA_DEVCLUSTER)" = "$dir" ]; }

client() { SLURM_CONF=$dir/etc/slurm.conf timeout 10 "$@"; }
sql() { timeout 10 mariadb --no-defaults --user=root --socket="$dir/mysql/sock" --execute="$1"; }
node_names() { seq -f 'n%g' 0 $((nodes - 1)); }

# ---- processes

# The pid in a pid file, when that process lives and is what the file says it is.
daemon_pid() {
    local name=$1 pid
    pid=$(cat "$2" 2>/dev/null) || return 1
    if [[ $pid =~ ^[1-9][0-9]*$ ]] && [ "$(process_name "$pid")" = "$name" ] && is_ours "$pid"; then
        say "$pid"
    else
        return 1
    fi
}

is_running() { daemon_pid "$@" >/dev/null; }
is_gone() { ! [ -d "/proc/$1" ]; }

# daemons_stop NAME...: signals all their processes first, then waits: each takes its seconds to leave.
daemons_stop() {
    local name file pid
    local -A pids=()
    for name in "$@"; do
        for file in "$dir/run/$name".pid "$dir/run/$name"-*.pid; do
            if pid=$(daemon_pid "$name" "$file"); then
                kill "$pid" 2>/dev/null || true
                pids[$pid]=$name
            fi
        done
    done
    for pid in "${!pids[@]}"; do
        if ! wait_until 15 is_gone "$pid"; then
            warn "${pids[$pid]} (pid $pid) did not stop within 15 s: killed"
            kill -KILL "$pid" 2>/dev/null || true
        fi
    done
    for name in "$@"; do
        rm -f "$dir/run/$name".pid "$dir/run/$name"-*.pid
    done
}

# Processes of this folder's cluster that no pid file names: steps whose slurmd is gone.
strays() {
    local path
    for path in /proc/[0-9]*; do
        ! is_ours "${path#/proc/}" || say "${path#/proc/}"
    done
}

jobs_gone() { [ -z "$(client squeue --noheader)" ]; }

cluster_stop() {
    local name pid
    if is_running slurmctld "$dir/run/slurmctld.pid" && ! jobs_gone; then
        client scancel --state=PENDING 2>/dev/null || true
        client scancel --state=RUNNING --full --signal=KILL 2>/dev/null || true
        wait_until 10 jobs_gone || warn "jobs did not end within 10 s: their processes are killed"
    fi
    daemons_stop slurmd slurmctld
    for name in slurmdbd mariadbd munged; do
        daemons_stop "$name"
    done
    for pid in $(strays); do
        kill -KILL "$pid" 2>/dev/null || true
    done
}

# ---- start, one daemon a function, each verified

# started SECONDS NAME LOG COMMAND...: the daemon answers, or one line says where to look.
started() {
    local limit=$1 name=$2 log=$3
    shift 3
    wait_until "$limit" "$@" || die "$name did not answer within $limit s: see $log"
}

# daemon_run LOG COMMAND...: a daemon that goes to the background by itself.
daemon_run() {
    local log=$1 name
    shift
    name=${1##*/}
    timeout 30 env "$(mark)" SLURM_CONF="$dir/etc/slurm.conf" MYSQL_UNIX_PORT="$dir/mysql/sock" "$@" \
        </dev/null >>"$log" 2>&1 9>&- || die "$name did not start: see $log"
}

start_munged() {
    local key=$dir/munge/key
    if [ ! -s "$key" ]; then
        head -c 1024 /dev/urandom >"$key.new"
        chmod 400 "$key.new"
        mv "$key.new" "$key"
    fi
    # --force: the folder may lie below one that others can write to, such as /tmp.
    daemon_run "$dir/log/munged.log" munged --force --num-threads=2 --key-file="$key" \
        --socket="$dir/munge/sock" --seed-file="$dir/munge/seed" \
        --pid-file="$dir/run/munged.pid" --log-file="$dir/log/munged.log"
    started 5 munged "$dir/log/munged.log" munge --no-input --socket="$dir/munge/sock"
}

start_mariadbd() {
    local data=$dir/mysql/data log=$dir/log/mariadbd.log
    if [ ! -e "$data/complete" ]; then
        rm -rf "$data"
        # --force: a machine that cannot look up its own name will do.
        timeout 60 mariadb-install-db --no-defaults --user=root --datadir="$data" --skip-test-db --force \
            --auth-root-authentication-method=socket </dev/null >"$log" 2>&1 9>&- ||
            die "mariadb-install-db failed: see $log"
        : >"$data/complete"
    fi
    # Only the private socket, no TCP; durability is no matter for a cluster that can be made anew.
    env "$(mark)" setsid mariadbd --no-defaults --user=root --datadir="$data" --socket="$dir/mysql/sock" \
        --skip-networking --pid-file="$dir/run/mariadbd.pid" --log-error="$log" \
        --innodb-buffer-pool-size=128M --innodb-flush-log-at-trx-commit=0 --innodb-doublewrite=0 \
        --innodb-lock-wait-timeout=900 --max-allowed-packet=64M </dev/null >/dev/null 2>&1 9>&- &
    started 30 mariadbd "$log" sql 'create database if not exists slurm'
}

# One account for root and the job user; limits are enforced as a site would.
create_accounts() {
    local name
    client sacctmgr -i add cluster devcluster >/dev/null 2>&1 || true
    client sacctmgr -i add account users Description=users Organization=users >/dev/null 2>&1 || true
    for name in root "$user"; do
        client sacctmgr -i add user "$name" Account=users >/dev/null 2>&1 || true
    done
    [ "$(client sacctmgr --noheader --parsable2 show assoc user="$user" format=User)" = "$user" ] ||
        die "slurmdbd did not take the user $user: see $dir/log/slurmdbd.log"
}

all_idle() { [ "$(client sinfo --noheader --Node --format=%T | grep -c '^idle$')" = "$nodes" ]; }

start_slurm() {
    local node
    daemon_run "$dir/log/slurmdbd.log" slurmdbd
    started 20 slurmdbd "$dir/log/slurmdbd.log" client sacctmgr --noheader show cluster
    create_accounts
    daemon_run "$dir/log/slurmctld.log" slurmctld -i
    started 20 slurmctld "$dir/log/slurmctld.log" client scontrol show partition main
    for node in $(node_names); do
        daemon_run "$dir/log/slurmd-$node.log" slurmd -N "$node"
    done
    started 30 slurmd "$dir/log/slurmd-n0.log" all_idle
}
