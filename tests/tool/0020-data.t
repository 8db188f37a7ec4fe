#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fp8-lora data: counts, lengths, samples with their mask, refusals.
tool=${FL_BUILD_DIR:-.}/fp8-lora
tiny=${FL_SOURCE_DIR:-.}/tests/data/tiny-qwen3-moe-fp8
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 99
tests=0

ok() { # ok STATUS TEXT
    tests=$((tests + 1))
    if [ "$1" = 0 ]; then echo "ok $tests - $2"; else echo "not ok $tests - $2"; fi
}

for i in 1 2 3 4 5 6 7 8 9; do
    printf '{"query": "What is %s?", "response": "It is %s."}\n' $i "$i$i"
done >train.jsonl
printf '{"conversations": [{"from": "human", "value": "%s"}, {"from": "gpt", "value": "x"}]}\n' \
    "$(printf 'long %.0s' {1..60})" >>train.jsonl
printf '{"messages": [{"role": "user", "content": "no answer"}]}\n' >>train.jsonl
printf '%s\n' "model: $tiny" 'dataset: train.jsonl' 'max_length: 64' 'split_dataset_ratio: 0.3' >job.yaml
"$tool" data --show 1 job.yaml >out.txt 2>err.txt
ok $? "a job's data"
grep -q '^template qwen3_coder$' out.txt
ok $? "the template's kind"
grep -q '^training: 6 samples of 11 records, [0-9]* tokens, [0-9]* count in the loss ([0-9.]* %)$' out.txt &&
    grep -q '^  dropped: 1 longer than 64 tokens, 1 without an answer; longest kept [0-9]*$' out.txt
ok $? "samples, and what is dropped"
grep -q '^validation: 3 samples of 0 records, ' out.txt
ok $? "what the split keeps for validation"
[ "$(sed -n 's/^ *[0-9]* to *[0-9]* tokens *\([0-9]*\) #*$/\1/p' out.txt | awk '{n += $1} END {print n}')" = 9 ]
ok $? "the histogram holds every sample"
tr '\n' '~' <out.txt | grep -q '<|im_start|>user~What is [0-9]?<|im_end|>~<|im_start|>assistant~\[\[It is [0-9]*\.<|im_end|>~\]\]'
ok $? "the mask is the answer and its end"
"$tool" data --show 1 --color job.yaml | grep -q "$(printf '\033\\[32mIt is')"
ok $? "in colour"
[ "$("$tool" data --show 9 job.yaml | grep -c '^---- sample')" = 9 ]
ok $? "as many samples as asked for, of each part"
"$tool" data --show 1 -- --model "synth://$tiny" --dataset 'synth://?samples=3' --max_length 8 >made.txt 2>&1 &&
    grep -q '^training: 3 samples of 3 records, 24 tokens, 18 count' made.txt && grep -q '^[0-9]* [0-9]* \[\[[0-9]*\]\] ' made.txt
ok $? "made samples are numbers"

refused() { # refused STATUS TEXT ARGUMENT...
    local status=$1 text=$2
    shift 2
    "$tool" data "$@" >/dev/null 2>err.txt
    [ $? = "$status" ] && grep -qF -e "$text" err.txt && [ "$(wc -l <err.txt)" = 1 ]
    ok $? "refused: $text"
}
refused 2 "--show: '-1' is not in [0, 1000000]" --show -1 job.yaml
refused 2 'give a job file' --show 3
refused 2 "unknown option '--xyz'" --xyz job.yaml
refused 1 'none.yaml: ' none.yaml
printf '{"query": 1}\n' >bad.jsonl
refused 1 'bad.jsonl:1: "query" is a number: it must be a string' -- --model "$tiny" --dataset bad.jsonl
echo "1..$tests"
