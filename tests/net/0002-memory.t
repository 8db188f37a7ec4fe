#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The plan's bytes beside the arena's, on 1, 2 and 4 processes.
program=${FL_BUILD_DIR:-.}/tests/net/test_memory
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
tests=0

for n in 1 2 4; do
    tests=$((tests + 1))
    launch=()
    if [ "$n" -gt 1 ]; then
        launch=(mpirun --oversubscribe --bind-to none -np "$n")
        if ! command -v mpirun >/dev/null; then
            echo "ok $tests - $n ranks # SKIP no mpirun"
            continue
        fi
    fi
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OPENBLAS_NUM_THREADS=1 \
        OMP_WAIT_POLICY=passive ASAN_OPTIONS=detect_leaks=0 \
        timeout 240 "${launch[@]}" "$program" "$n" >"$work/out" 2>"$work/err"
    status=$?
    sed 's/^/# /' "$work/out" "$work/err"
    if [ $status = 0 ] && grep -q '^1\.\.' "$work/out"; then
        echo "ok $tests - $n ranks take what was planned"
    else
        echo "not ok $tests - $n ranks: status $status"
    fi
done
echo "1..$tests"
