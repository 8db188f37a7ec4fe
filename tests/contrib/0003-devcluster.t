#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# devcluster: bad arguments, machines it refuses, two at once, Ctrl-C, what it leaves behind.
# shellcheck source=../tap.sh
. "${0%/*}/../tap.sh"

[ "$(id -u)" -eq 0 ] || skip_all "needs root"
for name in slurmd slurmctld slurmdbd munged mariadbd; do
    command -v "$name" >/dev/null || skip_all "$name is not installed: contrib/check installs it"
done
WORK=$(mktemp -d /var/tmp/devcluster.XXXXXX)
chmod 755 "$WORK"
devcluster() { timeout --kill-after=5 120 "$FL_SOURCE_DIR/contrib/devcluster" "$@"; }
trap 'devcluster down --dir "$WORK/a" --purge; devcluster down --dir "$WORK/b" --purge; diag "ended early; files in $WORK"' EXIT

# refused WANTED ARGUMENT...: status 1 and one line that matches.
refused() {
    local wanted=$1
    shift
    run devcluster "$@"
    like "$status $err" "^1 devcluster: $wanted" "refused: $*"
    is "$(wc -l <"$WORK/err")" 1 "in one line"
}

# processes DIR: of that folder's cluster.
processes() { grep -lsxzF "FP8_LORA_DEVCLUSTER=$1" /proc/[0-9]*/environ | wc -l; }

refused 'a command is needed'
refused 'unknown command start' start
refused 'unknown option --node;' up --node 2
refused '--nodes 0: a number from 1 to 64' up --nodes 0
refused '--nodes two: a number' up --nodes two
refused '--gpus 99: a number from 0 to 64' up --gpus 99
refused '--dir needs a value' up --dir
refused 'unexpected word again' up again
refused 'only shell takes a command' up -- true
refused '--plugin and --plugstack exclude each other' up --plugin /a --plugstack /b
refused "--plugin $WORK/none: no such file" up --dir "$WORK/a" --plugin "$WORK/none"
refused '--user nosuchuser: no such user' up --dir "$WORK/a" --user nosuchuser
refused '--user root: jobs run as an ordinary user' up --dir "$WORK/a" --user root
refused "$WORK/x y: Slurm takes" up --dir "$WORK/x y"
refused '/[0-9]+: longer than the 80 characters' up --dir "/$(printf '0%.0s' {1..80})"
refused 'no cluster runs in' status --dir "$WORK/a"
refused 'no cluster runs in' shell --dir "$WORK/a" -- true

mkdir "$WORK/full" "$WORK/closed" "$WORK/theirs"
touch "$WORK/full/file"
refused "$WORK/full: not empty and not made by devcluster" up --dir "$WORK/full"
chmod 700 "$WORK/closed"
refused "$WORK/closed/a: nobody cannot reach it" up --dir "$WORK/closed/a"
chown nobody "$WORK/theirs"
refused "$WORK/theirs: not a folder of root's" up --dir "$WORK/theirs"
refused "$WORK/theirs/a: others than root can change $WORK/theirs," up --dir "$WORK/theirs/a"
ok "nothing is made there" [ ! -e "$WORK/theirs/a" ]

run setpriv --bounding-set=-mknod "$FL_SOURCE_DIR/contrib/devcluster" up --dir "$WORK/a"
like "$status $err" '^1 devcluster: cannot make device files \(mknod needs CAP_MKNOD\)' "refused: no CAP_MKNOD"
mkdir "$WORK/bin"
cp "$(command -v sleep)" "$WORK/bin/slurmd"
env --ignore-environment LANG=C "$WORK/bin/slurmd" 5 &
refused "slurmd runs here already \\(pid $!\\)" up --dir "$WORK/a"
kill $!
wait $! || true
ok "nothing refused has left a folder" [ ! -e "$WORK/a" ]

for seconds in 0.3 1 2.5; do
    # Who starts the tests may ignore SIGINT, as CI does: a shell keeps what it inherits ignored.
    run timeout --signal=INT --preserve-status "$seconds" \
        env --default-signal=INT "$FL_SOURCE_DIR/contrib/devcluster" up --dir "$WORK/a"
    is "$status" 130 "Ctrl-C after $seconds s of up"
    is "$(processes "$WORK/a")" 0 "leaves nothing running"
done

devcluster up --dir "$WORK/a" --gpus 2 >"$WORK/a.out" 2>&1 &
run devcluster up --dir "$WORK/b" --nodes 2
is "$status" 0 "a cluster starts after interrupted ones"
status=0
wait $! || status=$?
is "$status" 0 "and another one at the same time"
run devcluster shell --dir "$WORK/a" -- srun bash -c 'id -un'
is "$out" nobody "jobs run in the first"
run devcluster shell --dir "$WORK/b" -- srun -N2 bash -c 'id -un'
is "$out" $'nobody\nnobody' "and in the second"
run devcluster shell --dir "$WORK/b" -- bash -c 'exit 7'
is "$status" 7 "shell returns its command's status"

run devcluster up --dir "$WORK/a" --gpus 2
is "$status $out" "0 already up: $WORK/a" "up again does nothing"
refused "$WORK/a: already up with --nodes 1 --gpus 2" up --dir "$WORK/a" --gpus 4
run devcluster status --dir "$WORK/b"
like "$out" 'n1 idle: 16 CPUs, 8192 MB, gpu:h100:8' "status shows the nodes"

pid=$(cat "$WORK/a/run/slurmdbd.pid")
kill "$pid"
ok "a daemon of the first stops" wait_until 10 [ ! -d "/proc/$pid" ]
run devcluster up --dir "$WORK/a" --gpus 2
is "$status" 0 "up repairs it"
run devcluster shell --dir "$WORK/a" -- srun true
is "$status" 0 "jobs run again"

# A pid file that names another process: that one is left alone.
sleep 60 &
other=$!
cp "$WORK/a/run/munged.pid" "$WORK/munged.pid"
echo "$other" >"$WORK/a/run/munged.pid"
devcluster shell --dir "$WORK/a" -- srun sleep 60 >/dev/null 2>&1 &
run devcluster down --dir "$WORK/a"
is "$status" 0 "down, with a job running and a pid file that lies"
ok "leaves a stranger alone" kill "$other"
is "$(processes "$WORK/a")" 0 "and nothing of its own"
run devcluster down --dir "$WORK/b" --purge
ok "down --purge removes the folder" [ ! -e "$WORK/b" ]
run devcluster down --dir "$WORK/b"
is "$status $out" "0 no cluster in $WORK/b" "down again does nothing"
devcluster down --dir "$WORK/a" --purge >/dev/null
trap - EXIT
done_testing
