#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Collectives between four processes, and what the others do when one is killed.
program=${FL_BUILD_DIR:-.}/tests/comm/test_comm
if ! command -v mpirun >/dev/null; then
    echo "1..0 # SKIP no mpirun"
    exit 0
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
tests=0

ok() { # ok STATUS TEXT
    tests=$((tests + 1))
    if [ "$1" = 0 ]; then echo "ok $tests - $2"; else echo "not ok $tests - $2"; fi
}

# Open MPI's own leaks hide ours: those are looked for with one rank.
ranks() { # ranks N ARGUMENT...
    local n=$1
    shift
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ASAN_OPTIONS=detect_leaks=0 \
        timeout 120 mpirun --oversubscribe --bind-to none -np "$n" "$@"
}

# Rank 0 counts its own tests: ours go on from there.
for n in 4 3; do
    ranks $n "$program" $n >"$work/out" 2>"$work/err"
    status=$?
    grep -v '^1\.\.' "$work/out" | while read -r line; do
        case $line in
        "ok "* | "not ok "*) echo "# $line" ;;
        *) echo "$line" ;;
        esac
    done
    sed 's/^/# /' "$work/err"
    ok $status "$(grep -c '^ok' "$work/out") checks on $n ranks, $(grep -c '^not ok' "$work/out") failed"
    grep -q '^1\.\.' "$work/out"
    ok $? "all checks on $n ranks ran"
done

start=$SECONDS
ranks 4 --mca orte_enable_recovery 1 "$program" 4 killed "$work/died" >"$work/out" 2>&1
status=$?
sed 's/^/# /' "$work/out"
[ $status != 124 ] && [ $((SECONDS - start)) -lt 30 ]
ok $? "a killed rank ends all in $((SECONDS - start)) s"
[ "$(grep -c '^rank [012]: -103 after less than 5 s: the watch saw a rank die' "$work/out")" = 3 ]
ok $? "the other three leave the call through their watch"
[ "$(grep -c '^rank [012]: then -103: the group of ranks has failed before' "$work/out")" = 3 ]
ok $? "the whole world is dead to them afterwards"

out=$(ranks 2 "$program" 3 2>&1)
grep -q 'MPI sees 2 ranks where 3 were started: start them with `srun --mpi=pmix`' <<<"$out"
ok $? "another number of ranks than promised is refused"
out=$("$program" 2 2>&1)
status=$?
[ $status = 1 ] && [ "$out" = '2 ranks were started without MPI: start them with `srun --mpi=pmix`' ]
ok $? "ranks started without MPI are refused in one line"
echo "1..$tests"
