# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the scripts in contrib/ share: messages, waiting with a limit, the questions asked of a machine.

program=${program:-${0##*/}}

say() { printf '%s\n' "$*"; }
warn() { printf '%s: %s\n' "$program" "$*" >&2; }
die() {
    warn "$*"
    exit 1
}

# wait_until SECONDS COMMAND...: runs COMMAND until it succeeds; 1 when the time is up.
wait_until() {
    local limit=$1 end
    shift
    end=$((SECONDS + limit))
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || return 1
        sleep 0.05
    done
}

# environment_of PID NAME: the value of NAME in the environment that a process was started with, if readable.
environment_of() {
    local word
    while IFS= read -r -d '' word; do
        if [ "${word%%=*}" = "$2" ]; then
            printf '%s\n' "${word#*=}"
            return
        fi
    done 2>/dev/null <"/proc/$1/environ"
}

process_name() {
    local name
    # shellcheck disable=SC2015 # a process that ends meanwhile has no name
    read -r name 2>/dev/null <"/proc/$1/comm" && printf '%s\n' "$name" || true
}

# Pids of every process called NAME.
processes_named() {
    local path
    for path in /proc/[0-9]*; do
        [ "$(process_name "${path#/proc/}")" != "$1" ] || printf '%s\n' "${path#/proc/}"
    done
}

# The first slurmd that serves this machine itself: one whose environment names no configuration of its own
# outside /etc and /usr, as private clusters' daemons do. A process that is just ending has no environment.
system_slurmd() {
    local pid conf
    for pid in $(processes_named slurmd); do
        conf=$(environment_of "$pid" SLURM_CONF) || true
        case $conf in
        '' | /etc/* | /usr/*)
            if IFS= read -r -d '' _ 2>/dev/null <"/proc/$pid/environ"; then
                say "$pid"
                return
            fi
            ;;
        esac
    done
}

# What a private cluster cannot do without; one line and out where it is missing.
machine_check() {
    local pid probe
    pid=$(system_slurmd)
    [ -z "$pid" ] || die "slurmd runs here already (pid $pid): this machine belongs to a Slurm cluster, use another one"
    probe=$(mktemp -u /tmp/fp8-lora-mknod.XXXXXX)
    mknod -m 600 "$probe" c 195 0 2>/dev/null ||
        die "cannot make device files (mknod needs CAP_MKNOD): in a container, start it with --cap-add=MKNOD"
    rm -f "$probe"
}

# as_job_user USER HOME COMMAND...: as an ordinary user, without root's groups and home.
as_job_user() {
    local user=$1 home=$2
    shift 2
    env HOME="$home" USER="$user" LOGNAME="$user" SHELL=/bin/bash \
        setpriv --reuid="$user" --regid="$(id -g "$user")" --init-groups -- "$@"
}

# others_folder PATH: the first folder above PATH, or PATH, that others than root can change.
others_folder() {
    local path=$1
    while :; do
        if [ -n "$(find -L "$path" -maxdepth 0 '(' ! -uid 0 -o -perm /022 ! -perm -1000 ')' 2>/dev/null)" ]; then
            say "$path"
            return
        fi
        [ "$path" != / ] || return 0
        path=$(dirname "$path")
    done
}

# folder_claim DIR MARK USER: makes DIR, or takes one that an earlier run has marked; USER must be able to reach it.
# Root writes there, so nobody else may own it, and a symbolic link is no folder.
folder_claim() {
    local others
    if [ -e "$1" ] || [ -L "$1" ]; then
        if [ -L "$1" ] || ! [ -d "$1" ] || ! [ -O "$1" ]; then
            die "$1: not a folder of root's: choose another"
        elif ! [ -e "$1/$2" ] && [ -n "$(ls -A "$1")" ]; then
            die "$1: not empty and not made by $program: choose another"
        fi
    fi
    others=$(others_folder "$(dirname "$1")")
    [ -z "$others" ] ||
        die "$1: others than root can change $others, so slurmd runs nothing from there: choose another, such as one below /var/lib"
    mkdir -p "$1" 2>/dev/null || die "$1: cannot be made: choose another"
    chmod 755 "$1"
    : >"$1/$2"
    as_job_user "$3" / test -x "$1" ||
        die "$1: $3 cannot reach it, a folder above is closed: choose another, such as one below /var/lib"
}

# folder_name DIR LENGTH: its absolute path, if Slurm's configuration and a Unix socket's 107 characters can take it.
folder_name() {
    local path
    path=$(realpath -m -- "$1")
    [[ $path =~ ^[A-Za-z0-9/._+-]+$ ]] || die "$path: Slurm takes letters, digits and ./_+- in a path: choose another folder"
    ((${#path} <= $2)) || die "$path: longer than the $2 characters that leave room for sockets: choose another folder"
    say "$path"
}
