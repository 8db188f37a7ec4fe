#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Adapters gathered from several ranks are the same bytes as one rank writes.
program=${FL_BUILD_DIR:-.}/tests/weights/write_adapters
if ! command -v mpirun >/dev/null; then
    echo "1..0 # SKIP no mpirun"
    exit 0
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

ok() { # ok STATUS NUMBER TEXT
    if [ "$1" = 0 ]; then echo "ok $2 - $3"; else echo "not ok $2 - $3"; fi
}

ranks() { # ranks N EP FOLDER; MPI leaks memory of its own at its end
    ASAN_OPTIONS=detect_leaks=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        timeout 60 mpirun --oversubscribe --bind-to none -np "$1" "$program" "$1" "$2" "$3" 2>&1
}

same() { # same N EP: N ranks succeed and write what one rank does
    mkdir "$work/$1-$2"
    ranks "$1" "$2" "$work/$1-$2" && diff -r "$work/1" "$work/$1-$2"
}

mkdir "$work/1"
ranks 1 1 "$work/1" && [ -s "$work/1/adapter_model.safetensors" ]
ok $? 1 "one rank writes"
out=$(same 4 4)
ok $? 2 "4 ranks, EP 4: the same two files"
[ -z "$out" ] || sed 's/^/# /' <<<"$out"
out=$(same 4 2)
ok $? 3 "4 ranks, EP 2: the same from the first group of ranks"
[ -z "$out" ] || sed 's/^/# /' <<<"$out"
out=$(ranks 4 4 "$work/missing")
status=$?
n=$(grep -c "rank [0-3]: $work/missing/adapter_model.safetensors: cannot create" <<<"$out")
[ $status != 0 ] && [ "$n" = 4 ]
ok $? 4 "every rank reports what rank 0 could not write"
echo "1..4"
