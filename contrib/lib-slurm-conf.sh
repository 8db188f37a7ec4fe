# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# The configuration of a private cluster, written anew at every start from the settings of lib-cluster.sh.
# shellcheck source=lib-cluster.sh
. "${BASH_SOURCE[0]%/*}/lib-cluster.sh"

cpus=16 # of each node, whatever the host has: ranks of small jobs may share cores

# choose_ports COUNT: a row of ports on which nobody listens, below the range the kernel gives to clients.
choose_ports() {
    local count=$1 first port try
    local -A used=()
    while read -r port; do
        used[$((16#$port))]=1
    done < <(awk '$4 == "0A" { sub(/.*:/, "", $2); print $2 }' /proc/net/tcp /proc/net/tcp6 2>/dev/null)
    for ((try = 0; try < 200; try++)); do
        first=$((20000 + RANDOM % 12000))
        for ((port = first; port < first + count; port++)); do
            [ -z "${used[$port]:-}" ] || continue 2
        done
        say "$first"
        return
    done
    die "no $count free ports in a row between 20000 and 32000"
}

# Where --plugin finds a file: a build folder keeps fp8_lora.so in .libs, an install anywhere below.
plugin_file() {
    local found others
    found=$(find -L "$plugin" -name "$1" -type f ! -path '*/src/*' 2>/dev/null | sort | head -n 1)
    [ -n "$found" ] || die "$plugin: no $1 below: build it first (make), or name another --plugin"
    as_job_user "$user" / test -r "$found" ||
        die "$found: $user cannot read it: use a folder open to everyone, such as make install DESTDIR=$dir/install"
    others=$(others_folder "$found")
    [ -z "$others" ] ||
        die "$found: others than root can change $others, so slurmd does not run it: use make install DESTDIR=$dir/install"
    say "$found"
}

write_plugstack() {
    local so core account watch
    if [ -n "$plugin" ]; then
        so=$(plugin_file fp8_lora.so)
        core=$(plugin_file fp8-lora-core)
        account=$(plugin_file fp8-lora-account)
        watch=$(plugin_file fp8-lora-watch)
        say "optional $so core=$core account=$account watch=$watch"
    elif [ -n "$plugstack" ]; then
        cat -- "$plugstack"
    fi >"$dir/etc/plugstack.conf"
}

real_gpus() { find /dev -maxdepth 1 -name 'nvidia[0-9]*' -type c | sort -V; }

# What a node has, as slurm.conf writes it.
node_gres() {
    if [ "$gpus" = real ]; then
        say "gpu:$(real_gpus | wc -l)"
    else
        say "gpu:h100:$gpus"
    fi
}

write_slurm_conf() {
    local port=$1 host debug=info node index=0
    host=$(uname -n)
    host=${host%%.*}
    [ "$slurm_log" = no ] || debug=debug2
    cat <<END
ClusterName=devcluster
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/sock
CredType=cred/munge
PlugStackConfig=$dir/etc/plugstack.conf
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
# Two slurmd on one host need a folder each for the sockets of mpi/pmix.
TmpFS=$dir/tmp/%n
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd-%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd-%n.log
SlurmctldDebug=$debug
SlurmdDebug=$debug
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
DefMemPerCPU=256
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes=gpu
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((port + 1))
AccountingStoragePass=$dir/munge/sock
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment
AccountingStorageEnforce=associations,limits
KillWait=2
MinJobAge=600
MailProg=/bin/true
END
    for node in $(node_names); do
        say "NodeName=$node NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 2 + index)) CPUs=$cpus Boards=1" \
            "SocketsPerBoard=2 CoresPerSocket=$((cpus / 2)) ThreadsPerCore=1 RealMemory=8192" \
            "Gres=$(node_gres) State=UNKNOWN"
        index=$((index + 1))
    done
    say "PartitionName=main Nodes=n[0-$((nodes - 1))] Default=YES MaxTime=INFINITE State=UP"
}

# Character devices with NVIDIA's major number and no driver behind them, which Slurm counts and assigns; or the
# host's own.
write_gpus() {
    local node gpu
    say "AutoDetect=off"
    if [ "$gpus" = real ]; then
        for gpu in $(real_gpus); do
            say "NodeName=n0 Name=gpu File=$gpu"
        done
        return
    fi
    ((gpus > 0)) || return 0
    for node in $(node_names); do
        for ((gpu = 0; gpu < gpus; gpu++)); do
            rm -f "$dir/dev/$node-nvidia$gpu"
            mknod -m 666 "$dir/dev/$node-nvidia$gpu" c 195 "$gpu"
        done
        say "NodeName=$node Name=gpu Type=h100 File=$dir/dev/$node-nvidia[0-$((gpus - 1))]"
    done
}

write_slurmdbd_conf() {
    cat <<END
AuthType=auth/munge
AuthInfo=socket=$dir/munge/sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$(($1 + 1))
SlurmUser=root
PidFile=$dir/run/slurmdbd.pid
LogFile=$dir/log/slurmdbd.log
DebugLevel=info
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
END
}

# What a shell needs to use the cluster; `devcluster shell` and the tests read it.
write_env() {
    local path=$PATH tool
    if [ -n "$plugin" ]; then
        tool=$(find -L "$plugin" -name fp8-lora -type f 2>/dev/null | sort | head -n 1)
        [ -z "$tool" ] || path=$(dirname "$tool"):$path
    fi
    cat <<END
export SLURM_CONF='$dir/etc/slurm.conf'
export PATH='$path'
DEVCLUSTER_USER='$user'
DEVCLUSTER_HOME='$dir/home'
DEVCLUSTER_NODES=$nodes
DEVCLUSTER_GPUS=$(if [ "$gpus" = real ]; then real_gpus | wc -l; else say "$gpus"; fi)
END
}

# Descriptor 9 holds a lock while ports are chosen and until they are bound, so that two clusters that start
# at once do not collide; the daemons do not inherit it.
write_configuration() {
    local lock=/run/lock/fp8-lora-devcluster port node
    exec 9>"$lock"
    flock --timeout 60 9 || die "$lock: another cluster has been starting for 60 s: stop it, then try again"
    port=$(choose_ports $((nodes + 2)))
    write_plugstack
    write_gpus >"$dir/etc/gres.conf"
    write_slurm_conf "$port" >"$dir/etc/slurm.conf"
    say 'CgroupPlugin=cgroup/v1' >"$dir/etc/cgroup.conf"
    (umask 077 && write_slurmdbd_conf "$port" >"$dir/etc/slurmdbd.conf")
    for node in $(node_names); do
        mkdir -p "$dir/tmp/$node"
        chmod 1777 "$dir/tmp/$node"
    done
    write_env >"$dir/env"
    settings >"$dir/settings"
}
