#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The same loss and gradients with the experts on 1, 2 and 4 processes.
program=${FL_BUILD_DIR:-.}/tests/net/test_ranks
if ! command -v mpirun >/dev/null; then
    echo "1..0 # SKIP no mpirun"
    exit 0
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
tests=0

for n in 2 4; do
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1 \
        ASAN_OPTIONS=detect_leaks=0 \
        timeout 240 mpirun --oversubscribe --bind-to none -np "$n" "$program" "$n" \
        >"$work/out" 2>"$work/err"
    status=$?
    sed 's/^/# /' "$work/out" "$work/err"
    tests=$((tests + 1))
    if [ $status = 0 ] && grep -q '^1\.\.' "$work/out"; then
        echo "ok $tests - $n ranks agree with one alone"
    else
        echo "not ok $tests - $n ranks: status $status"
    fi
done
echo "1..$tests"
