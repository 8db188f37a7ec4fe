# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# TAP for the test scripts, a folder for their files, and commands whose results are kept.
set -euo pipefail
FL_SOURCE_DIR=${FL_SOURCE_DIR:-$(cd "${BASH_SOURCE[0]%/*}/.." && pwd)}
# shellcheck source=../contrib/lib.sh
. "$FL_SOURCE_DIR/contrib/lib.sh"

# The test's own folder; kept when a test fails.
WORK=''
# shellcheck disable=SC2034 # for the tests
status='' out='' err=''

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
    trap - EXIT
    say "1..0 # SKIP $1"
    exit 0
}

done_testing() {
    say "1..$tests"
    trap - EXIT
    ((failures > 0)) || rm -rf -- "${WORK:-/nonexistent}"
    exit $((failures > 0))
}

# A script that ends early prints no plan, which TAP counts as an error; say where.
trap 'diag "ended early, status $?; files in $WORK"' EXIT

# run COMMAND...: keeps status, out and err for the tests that follow.
run() {
    status=0
    "$@" >"$WORK/out" 2>"$WORK/err" </dev/null || status=$?
    out=$(cat "$WORK/out")
    err=$(cat "$WORK/err")
}
