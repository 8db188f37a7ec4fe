#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every shell script is clean under shellcheck; test scripts may differ in matters of style.
# shellcheck source=../tap.sh
. "${0%/*}/../tap.sh"

command -v shellcheck >/dev/null || skip_all "shellcheck is not installed"
WORK=$(mktemp -d)
cd "$FL_SOURCE_DIR"
# Scripts are known by their first line: #!/bin/bash, or shellcheck's own for those that are sourced.
mapfile -t scripts < <(grep -rlE -m 1 '^(#!/bin/(ba)?sh|# shellcheck shell=)' .ci contrib tests slurm 2>/dev/null | sort)
ok "scripts are found" [ "${#scripts[@]}" -ge 8 ]
for script in "${scripts[@]}"; do
    severity=style
    [[ $script != tests/* ]] || severity=warning
    run shellcheck --severity="$severity" "$script"
    is "$status" 0 "$script"
done
done_testing
