#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# quickstart and check: bad arguments and places, Ctrl-C in the build and in the job, a whole run in a chosen folder.
# shellcheck source=../tap.sh
. "${0%/*}/../tap.sh"

[ "$(id -u)" -eq 0 ] || skip_all "needs root"
command -v slurmd >/dev/null || skip_all "slurmd is not installed: contrib/check installs it"
WORK=$(mktemp -d /var/tmp/quickstart.XXXXXX)
chmod 755 "$WORK"
contrib=$FL_SOURCE_DIR/contrib
dir=$WORK/q
trap '"$contrib/devcluster" down --dir "$dir/cluster" >/dev/null; diag "ended early; files in $WORK"' EXIT

processes() { grep -lsxzF "FP8_LORA_DEVCLUSTER=$dir/cluster" /proc/[0-9]*/environ | wc -l; }
policy_state() { cat /usr/sbin/policy-rc.d 2>/dev/null || echo none; }
policy_before=$(policy_state)

# refused WANTED COMMAND...: status 1 and one line that matches.
refused() {
    local wanted=$1
    shift
    run timeout 60 "$@"
    like "$status $err" "^1 $wanted" "refused: ${*##*/}"
    is "$(wc -l <"$WORK/err")" 1 "in one line"
}

refused 'quickstart: unknown option --nodes' "$contrib/quickstart" --nodes
refused 'quickstart: one folder at most' "$contrib/quickstart" /a /b
refused 'check: unknown option --some' "$contrib/check" --some
mkdir "$WORK/full" "$WORK/closed" "$WORK/bin"
touch "$WORK/full/file"
chmod 700 "$WORK/closed"
refused "quickstart: $WORK/full: not empty and not made by quickstart" "$contrib/quickstart" "$WORK/full"
refused "quickstart: $WORK/closed/q: nobody cannot reach it" "$contrib/quickstart" "$WORK/closed/q"
refused 'quickstart: cannot make device files \(mknod needs CAP_MKNOD\)' \
    setpriv --bounding-set=-mknod "$contrib/quickstart" "$dir"
cp "$(command -v sleep)" "$WORK/bin/slurmd"
env --ignore-environment LANG=C "$WORK/bin/slurmd" 5 &
refused "quickstart: slurmd runs here already \\(pid $!\\)" "$contrib/quickstart" "$dir"
kill $!
wait $! || true
cp -r "$contrib" "$WORK/contrib"
chmod -R a+rX "$WORK/contrib"
for name in bash dirname id; do
    ln -s "$(command -v "$name")" "$WORK/bin/$name"
done
for name in quickstart check; do
    refused "$name: needs root, and sudo is not installed" \
        setpriv --reuid=nobody --clear-groups env PATH="$WORK/bin" "$WORK/contrib/$name"
done

# Who starts the tests may ignore SIGINT, as CI does: a shell keeps what it inherits ignored.
run timeout --signal=INT --preserve-status 4 env --default-signal=INT "$contrib/quickstart" "$dir"
is "$status" 130 "Ctrl-C in the build ends it"
is "$(processes)" 0 "and leaves nothing running"

metrics=$dir/cluster/home/output/metrics.jsonl
timeout --preserve-status 900 env --default-signal=INT "$contrib/quickstart" "$dir" >"$WORK/run.out" 2>"$WORK/run.err" </dev/null &
trains_or_ended() { grep -qs '"event":"train"' "$metrics" || ! [ -d "/proc/$!" ]; }
ok "the job begins" wait_until 900 trains_or_ended
kill -INT $!
status=0
wait $! || status=$?
out=$(tail -n 20 "$WORK/run.out") err=$(cat "$WORK/run.err")
is "$status" 130 "Ctrl-C in the job ends it"
like "$err" 'quickstart: interrupted: the cluster is stopped' "says so"
is "$(processes)" 0 "and leaves nothing running"

begin=$SECONDS
run timeout 600 "$contrib/quickstart" "$dir"
is "$status" 0 "a second run in the same folder succeeds"
ok "in less than 5 minutes" [ $((SECONDS - begin)) -lt 300 ]
like "$out" 'iteration +[0-9]+/ +[0-9]+ \|' "it shows the iterations"
like "$out" '([1-9][0-9])\.[0-9] % lower' "and the validation loss at least 10 % lower"
like "$out" $'\n *0 [^\n]*\n *1 [^\n]*\n *2 [^\n]*\n *3 ' "and a report of four ranks"
is "$(processes)" 0 "and leaves nothing running"
is "$(policy_state)" "$policy_before" "policy-rc.d is as it was"
trap - EXIT
done_testing
