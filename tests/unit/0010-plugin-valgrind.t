#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The plugin's unit tests under valgrind: no invalid access, no leak, in clients,
# in slurmstepd's place, in the children it forks and in the watch.
set -u
cd "${FL_BUILD_DIR:?}" || exit 1
if ! command -v valgrind >/dev/null; then
    echo "1..0 # SKIP valgrind is not installed"
    exit 0
elif ldd tests/unit/test_plugin | grep -q libasan || nm tests/unit/test_plugin | grep -q __asan_init; then
    echo "1..0 # SKIP built with sanitizers, which valgrind cannot run"
    exit 0
fi
echo 1..6
number=0
for test in spank spank_place plugin rules family watch; do
    log=$(valgrind --quiet --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite,indirect \
        --child-silent-after-fork=no --trace-children=yes --trace-children-skip='/usr/bin/*,/bin/*' \
        "tests/unit/test_$test" 2>&1)
    status=$?
    number=$((number + 1))
    if [ "$status" -eq 0 ] && ! grep -q '^==[0-9]*== ' <<<"$log"; then
        echo "ok $number - test_$test"
    else
        echo "not ok $number - test_$test"
        printf '%s\n' "$log" | sed 's/^/# /'
    fi
done
