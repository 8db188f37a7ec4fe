#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# contrib/make-dataset: the same files every time, no sample in both, refusals that leave nothing.
set -u
echo 1..7
make_dataset=${FL_SOURCE_DIR:?}/contrib/make-dataset
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
number=0

ok() { # ok NAME COMMAND...
    number=$((number + 1))
    local name=$1
    shift
    if "$@"; then echo "ok $number - $name"; else echo "not ok $number - $name"; fi
}

refused() { # refused WORDS ARGUMENT...
    local words=$1
    shift
    ! "$make_dataset" "$@" >"$work/out" 2>&1 && grep -qF -- "$words" "$work/out"
}

build() {
    "$make_dataset" "$1" --max-samples 300 >/dev/null
}

ok "writes both parts" build "$work/a"
build "$work/b"
ok "is deterministic" diff -r "$work/a" "$work/b"
ok "has as many samples as asked for" \
    test "$(wc -l <"$work/a/train.jsonl"),$(wc -l <"$work/a/val.jsonl")" = 300,30
ok "has no sample twice" \
    test "$(sort "$work"/a/*.jsonl | uniq -d | wc -l)" = 0
ok "is Alpaca's format" /usr/bin/python3 -c '
import ast, json, sys
for line in open(sys.argv[1], encoding="utf-8"):
    sample = json.loads(line)
    assert list(sample) == ["instruction", "input", "output"], sample
    ast.parse(sample["input"] + "\n" + sample["output"])
' "$work/a/train.jsonl"
ok "refuses a limit below every function" refused "raise --max-chars" "$work/c" --max-chars 3
touch "$work/file"
ok "names a folder it cannot write" refused "choose another folder" "$work/file/d"
