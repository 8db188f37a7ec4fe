# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Packages from the distribution, with its services kept from starting.
#
# The caller's EXIT trap calls services_release.

# shellcheck disable=SC2034 # for the callers, as the next two
build_packages=(
    autoconf automake libtool make gcc libc6-dev pkgconf
    libslurm-dev libhwloc-dev libyaml-dev libjansson-dev libpcre2-dev libutf8proc-dev
    libopenblas-openmp-dev libopenmpi-dev openmpi-bin
)
# shellcheck disable=SC2034
cluster_packages=(
    slurm-client slurmctld slurmd slurmdbd munge mariadb-server-core mariadb-client-core libpmix2 python3
)
# shellcheck disable=SC2034
test_packages=(libcmocka-dev clang libomp-dev valgrind shellcheck)

policy=/usr/sbin/policy-rc.d
policy_kept=$policy.before-fp8-lora
policy_text='#!/bin/sh
# Written by fp8-lora while it installs packages and removed afterwards: no service starts.
exit 101'

# Debian asks policy-rc.d before a package starts its service; 101 means no.
services_hold() {
    exec 8>/run/lock/fp8-lora-packages
    flock --timeout 600 8 || die "/run/lock/fp8-lora-packages: another run has been installing packages for 10 min"
    # What a killed run left behind is not the machine's own.
    if [ -e "$policy" ] && [ "$(cat "$policy")" != "$policy_text" ]; then
        mv "$policy" "$policy_kept"
    fi
    services_held=yes
    printf '%s\n' "$policy_text" >"$policy"
    chmod 755 "$policy"
}

services_held=no
services_release() {
    [ "$services_held" = yes ] || return 0
    services_held=no
    rm -f "$policy"
    [ ! -e "$policy_kept" ] || mv "$policy_kept" "$policy"
    exec 8>&-
}

package_missing() { [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null)" != installed ]; }

# packages_install LOG PACKAGE...: only those missing.
packages_install() {
    local log=$1 name service
    local -a missing=()
    shift
    command -v apt-get >/dev/null || die "no apt-get: packages are installed on Debian 12 or later alone; see README.md"
    for name in "$@"; do
        ! package_missing "$name" || missing+=("$name")
    done
    ((${#missing[@]} > 0)) || return 0
    say "installing ${missing[*]}"
    services_hold
    export DEBIAN_FRONTEND=noninteractive
    apt-get update --quiet </dev/null >"$log" 2>&1 8>&- || die "apt-get update failed: see $log"
    apt-get install --quiet --yes --no-install-recommends "${missing[@]}" </dev/null >>"$log" 2>&1 8>&- ||
        die "apt-get install failed: see $log"
    # Held now, they would start at the next boot all the same.
    for service in munge slurmctld slurmd slurmdbd; do
        if [[ " ${missing[*]} " == *" $service "* ]] && command -v systemctl >/dev/null; then
            systemctl disable "$service" >>"$log" 2>&1 || true
        fi
    done
    services_release
}
