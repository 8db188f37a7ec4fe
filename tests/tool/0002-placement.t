#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# fp8-lora placement: the tables of stored topologies, what it refuses, and its exit status.
tool=$FL_BUILD_DIR/fp8-lora
topologies=$FL_SOURCE_DIR/tests/data/topologies
folder=$(mktemp -d "${TMPDIR:-/tmp}/fl-placement-XXXXXX") || exit 99
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 99
number=0

# verdict NAME: of the last command.
verdict() {
    good=$?
    number=$((number + 1))
    if [ "$good" = 0 ]; then
        echo "ok $number - $1"
    else
        echo "not ok $number - $1"
        sed 's/^/# /' out
    fi
}

# table NAME ARGUMENT...: the whole output is topologies/NAME.txt.
table() {
    name=$1
    shift
    "$tool" placement "$@" > out 2>&1 && cmp -s out "$topologies/$name.txt"
    verdict "$name"
}

# expect STATUS TEXT ARGUMENT...: the status, and a line of the output holding TEXT.
expect() {
    status=$1 text=$2
    shift 2
    "$tool" placement "$@" > out 2>&1
    [ $? = "$status" ] && grep -qF -e "$text" out
    verdict "$text"
}

echo 1..18
mkdir made && python3 "$topologies/make_topologies.py" made > out 2>&1 &&
    for xml in made/*.xml; do cmp "$xml" "$topologies/${xml#made/}" >> out 2>&1 || break; done && [ ! -s out ]
verdict "the stored topologies are what their program makes"
table nvswitch-8gpu --xml "$topologies/nvswitch-8gpu.xml" --ep 8
table nvswitch-8gpu-cpuset --xml "$topologies/nvswitch-8gpu.xml" --gpus 2,3,4,5 --cpus 4-11,20-27 --ep 2
table vm-1gpu-crowded --xml "$topologies/vm-1gpu.xml" --ranks 6 --ep 6
expect 0 '0     0000:52:00.0  GPU-00000004' --xml "$topologies/nvswitch-8gpu.xml" --gpus GPU-00000004
expect 0 '0     0000:82:00.0' --xml "$topologies/nvswitch-8gpu.xml" --gpus 0000:82:00.0
expect 0 'rank  PCI' --ranks 1
expect 0 'usage: fp8-lora placement' --help
expect 1 '/nonexistent.xml: No such file' --xml /nonexistent.xml
expect 1 'hwloc cannot read it as a topology' --xml "$FL_SOURCE_DIR/LICENSE"
expect 1 "--gpus: 8: rank 0's is not one of the 8 GPUs here" --xml "$topologies/nvswitch-8gpu.xml" --gpus 8
expect 1 'MIG-a: MIG instances cannot reach each other' --xml "$topologies/vm-1gpu.xml" --gpus MIG-a --ep 2
expect 1 "--cpus: '9' names no CPU of this topology" --xml "$topologies/vm-1gpu.xml" --cpus 9
expect 2 "--ranks: '0' is not in [1, 1024]" --ranks 0
expect 2 "--ep: 'x' is not in" --ep x
expect 2 "unknown option '--color'" --color
expect 2 '--xml has no value' --xml
expect 2 "unexpected word 'x'" x
