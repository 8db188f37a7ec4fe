#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The trainer by hand: one rank and several, what it leaves, and every input it refuses.
core=${FL_BUILD_DIR:-.}/fp8-lora-core
source=${FL_SOURCE_DIR:-.}
tiny=$source/tests/data/tiny-qwen3-moe-fp8
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
tests=0

ok() { # ok STATUS TEXT
    tests=$((tests + 1))
    if [ "$1" = 0 ]; then echo "ok $tests - $2"; else echo "not ok $tests - $2"; fi
}

# Sums in words, of unequal lengths.
dataset() { # dataset FIRST LAST
    local i j text
    for ((i = $1; i <= $2; i++)); do
        text="$i"
        for ((j = 0; j < i % 5; j++)); do text+=" + $((i * 7 % 10 + j))"; done
        printf '{"instruction": "Write a Python function that returns %s.", ' "$text"
        printf '"output": "def total_%d():\\n    return %s\\n"}\n' "$i" "$text"
    done
}
dataset 1 40 >train.jsonl
dataset 41 48 >val.jsonl

job() { # job NAME [KEY VALUE]...: a job.yaml with keys replaced or added
    local name=$1
    shift
    declare -A keys=([model]=$tiny [dataset]=train.jsonl [output_dir]=$name.out [numerics]=exact
        [max_length]=128 [lora_rank]=8 [lora_alpha]=16 [lora_dropout]=0.05
        [moe_aux_loss_coeff]=0.001 [micro_batch_size]=2 [global_batch_size]=8 [lr]=0.002
        [train_iters]=3 [log_interval]=1)
    while [ $# -gt 1 ]; do
        keys[$1]=$2
        shift 2
    done
    for key in "${!keys[@]}"; do echo "$key: ${keys[$key]}"; done >"$name.yaml"
}

# Open MPI's own leaks hide ours: those are looked for with one rank.
ranks() { # ranks N ARGUMENT...
    local n=$1
    shift
    ASAN_OPTIONS=detect_leaks=0 timeout 300 mpirun --oversubscribe --bind-to none -np "$n" "$@"
}

values() { # values KEY FILE: of the train lines
    sed -n "s/^{\"event\":\"train\".*\"$1\":\([^,}]*\).*/\1/p" "$2/metrics.jsonl"
}

close() { # close A B: losses and gradient norms agree to 1e-4
    paste <(values lm_loss "$1") <(values lm_loss "$2") \
        <(values grad_norm "$1") <(values grad_norm "$2") |
        awk 'function apart(x, y) {return !((x - y) / x <= 1e-4 && (y - x) / x <= 1e-4)}
            apart($1, $2) || apart($3, $4) {bad = 1} END {exit bad || NR != 3}'
}

# One rank: trains, validates, reports, saves.
job one val_dataset val.jsonl train_iters 6 log_interval 2 eval_interval 3
"$core" one.yaml >one.log 2>one.err
ok $? "one rank trains"
sed 's/^/# /' one.err
grep -q '^fp8-lora: loaded [0-9.]* MiB in [0-9.]* s ([0-9.]* GB/s)$' one.err
ok $? "says what it loaded"
[ "$(sed -n 's/^\[.*\] iteration \([0-9]*\)\/ 6 | consumed samples: \([0-9]*\) .*/\1:\2/p' one.log |
    tr '\n' ' ')" = "1:8 2:16 4:32 6:48 " ]
ok $? "logs the first iteration, every second and the last"
[ "$(sed -n 's/.*"event":"\([a-z]*\)".*/\1/p' one.out/metrics.jsonl | tr '\n' ' ')" = \
    "start validation train train validation train train validation memory end " ]
ok $? "metrics.jsonl has a line for each event"
sed -n 's/^{"event":"validation".*"lm_loss":\([^,]*\).*/\1/p' one.out/metrics.jsonl |
    awk 'NR == 1 {first = $1} {last = $1} END {print "# " first " to " last; exit !(last < first * 0.9)}'
ok $? "the validation loss falls by a tenth"
[ -s one.out/adapter_model.safetensors ] && grep -q '"r": 8' one.out/adapter_config.json
ok $? "the adapters are there"
"$core" -- --model "$tiny" --dataset train.jsonl --save flags.out --train_type lora --numerics exact \
    --max_length 128 --train_iters 1 --global_batch_size 4 >flags.log 2>flags.err
ok $? "flags behind -- do as well as a file"
FP8_LORA_ARGV0=--model "$core" "$tiny" --dataset train.jsonl --save argv0.out --numerics exact \
    --max_length 128 --train_iters 1 --global_batch_size 4 >argv0.log 2>argv0.err
ok $? "the word the plugin put the trainer in place of comes back"
cmp -s <(values lm_loss flags.out) <(values lm_loss argv0.out)
ok $? "two equal jobs have equal losses"

# What is computed again is the same bits: adapters after some iterations, on one rank and two.
for numerics in exact fp8; do
    for ranks in 1 $(command -v mpirun >/dev/null && echo 2); do
        name=again-$numerics-$ranks
        for recompute in full none selective; do
            job "$name-$recompute" numerics $numerics recompute_granularity $recompute lora_dropout 0.1 \
                moe_aux_loss_coeff 0.01 moe_expert_capacity_factor 1 expert_model_parallel_size $ranks \
                val_dataset val.jsonl eval_interval 2
            if [ "$ranks" = 1 ]; then
                "$core" "$name-$recompute.yaml" >"$name-$recompute.log" 2>"$name-$recompute.err"
            else
                ranks 2 "$core" "$name-$recompute.yaml" >"$name-$recompute.log" 2>"$name-$recompute.err"
            fi || sed 's/^/# /' "$name-$recompute.err"
        done
        for recompute in none selective; do
            cmp "$name-full.out/adapter_model.safetensors" "$name-$recompute.out/adapter_model.safetensors" &&
                cmp -s <(values grad_norm "$name-full.out") <(values grad_norm "$name-$recompute.out")
            ok $? "recompute $recompute as full, $numerics, $ranks ranks"
        done
    done
done

# As little as the cap allows: all kept, half kept, nothing kept.
peak() { sed -n 's/.*"planned_bytes":\([0-9]*\).*/\1/p' "$1.out/metrics.jsonl" | head -n 1; }
for cap in "" 100000000000 "$(($(peak again-fp8-1-selective) + (8 << 20)))" "$(($(peak again-fp8-1-full) + (8 << 20)))"; do
    job "auto$cap" numerics fp8 recompute_granularity auto lora_dropout 0.1 moe_aux_loss_coeff 0.01 \
        moe_expert_capacity_factor 1 val_dataset val.jsonl eval_interval 2
    env ${cap:+"FP8_LORA_CAP=$cap"} "$core" "auto$cap.yaml" >"auto$cap.log" 2>"auto$cap.err"
    case $cap in
    '') wanted=full ;;
    100000000000) wanted=none ;;
    "$(($(peak again-fp8-1-selective) + (8 << 20)))") wanted=selective ;;
    *) wanted=full ;;
    esac
    [ -n "$(peak "auto$cap")" ] && [ "$(peak "auto$cap")" = "$(peak "again-fp8-1-$wanted")" ]
    ok $? "recompute auto under ${cap:-no} cap is $wanted"
done

# Moments in the narrow types of the seed job and in the narrowest follow those in fp32.
job wide train_iters 8
"$core" wide.yaml >wide.log 2>wide.err
for types in bf16:bf16 fp8:fp8 fp16:fp8; do
    name=moments-$types
    job "$name" train_iters 8 exp_avg_dtype "${types%:*}" exp_avg_sq_dtype "${types#*:}"
    "$core" "$name.yaml" >"$name.log" 2>"$name.err"
    paste <(values lm_loss wide.out) <(values lm_loss "$name.out") |
        awk '{d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > worst) worst = d}
            END {print "# apart by " worst; exit !(NR == 8 && worst < 0.01 && worst > 0)}'
    ok $? "moments in $types follow the loss of fp32 within a hundredth"
done

# Weights and samples made from a config.json alone; the same weights read from a disk.
"$FL_BUILD_DIR/fp8-lora" synth --seed 4 --shard 2MiB "$tiny" written >synth.log 2>&1 &&
    grep -q '^written: 11.5[0-9]* MiB in [0-9]* files$' synth.log
ok $? "fp8-lora synth writes a checkpoint"
mkdir bare
cp "$tiny/config.json" bare/
job made model "synth://bare/config.json?seed=4" dataset "synth://?samples=32"
job read model written dataset "synth://?samples=32"
"$core" made.yaml >made.log 2>made.err && "$core" read.yaml >read.log 2>read.err
ok $? "made weights train without tokenizer and data, and as a checkpoint"
grep -q '^fp8-lora: made [0-9.]* MiB' made.err && cmp -s <(values lm_loss made.out) <(values lm_loss read.out)
ok $? "the losses are the same bits"
values lm_loss made.out | awk 'NR == 1 {exit !($1 > 8 && $1 < 9.3178)}'
ok $? "the first loss is near that of a guess"
mkdir occupied && touch occupied/file
"$FL_BUILD_DIR/fp8-lora" synth "$tiny" occupied >occupied.log 2>&1
[ $? = 1 ] && grep -q 'occupied: not empty: give a new folder' occupied.log && [ -e occupied/file ]
ok $? "refused: a folder that holds something"
job nodata model "synth://bare?seed=4"
"$core" nodata.yaml >nodata.log 2>nodata.err
[ $? = 1 ] && grep -q 'bare/tokenizer.json: ' nodata.err
ok $? "refused: real data without a tokenizer"

# A signal ends the step, saves and is told by the exit code.
job stop train_iters 1000
"$core" stop.yaml >stop.log 2>stop.err &
pid=$!
for ((i = 0; i < 600; i++)); do
    grep -q 'iteration 1/' stop.log && break
    sleep 0.1
done
job second output_dir stop.out
"$core" second.yaml >second.log 2>second.err
[ $? = 1 ] && [ "$(grep -c error: second.err)" = 1 ] &&
    grep -qF 'stop.out/metrics.jsonl: another job writes into this folder: choose another' second.err &&
    grep -q '"event":"start"' stop.out/metrics.jsonl
ok $? "refused: a folder that another job writes into"
kill -TERM $pid
wait $pid
[ $? = 143 ] && grep -q 'signal 15: stopped after iteration [0-9]*; the adapters are in stop.out' \
    stop.err && [ -s stop.out/adapter_model.safetensors ] &&
    grep -q '"event":"end".*"reason":"signal 15"' stop.out/metrics.jsonl
ok $? "SIGTERM: finishes the iteration, saves, exit code 143"

# Numbers that are not finite are left out, counted, and end the job when they stay.
job blown lr 1e30 lr_warmup_fraction 0 train_iters 10
"$core" blown.yaml >blown.log 2>blown.err
[ $? = 1 ] && grep -qF 'iterations 2 to 4: the loss or its gradient was not finite 3 times in a row' \
    blown.err && grep -q 'lm loss: -*NAN .* skipped iterations: 2 | number of nan iterations: 2 |' blown.log
ok $? "three losses in a row that are no numbers end the job"
grep -q '"iteration":3.*"lm_loss":null' blown.out/metrics.jsonl
ok $? "and are null in metrics.jsonl"

# A checkpoint that is whole, but whose head does not belong to it.
cp -r "$tiny" head.model
chmod -R u+w head.model
"$source/tests/train/damage" head head.model
job head model head.model
"$core" head.yaml >head.log 2>head.err
[ $? = 1 ] && grep -q 'iteration 1: lm loss [0-9.]* is above ln(vocabulary) + 1 = 9.3178' head.err &&
    [ ! -e head.out/adapter_model.safetensors ]
ok $? "the first-step gate stops a model that guesses worse than chance"

# Refusals: exit code 1, one line, nothing left.
refused() { # refused NAME WORDS TEXT [COMMAND...]
    local name=$1 words=$2 text=$3 status
    shift 3
    if [ $# -eq 0 ]; then set -- "$core" "$name.yaml"; fi
    "$@" >"$name.log" 2>"$name.err"
    status=$?
    if [ $status = 1 ] && [ "$(grep -c error: "$name.err")" = 1 ] &&
        grep -qF -- "$words" "$name.err" && [ ! -e "$name.out" ]; then
        ok 0 "refused: $text"
    else
        echo "# status $status, expected '$words'"
        sed 's/^/# /' "$name.err"
        ok 1 "refused: $text"
    fi
}

damaged() { # damaged KIND WORDS TEXT
    cp -r "$tiny" "$1.model"
    chmod -R u+w "$1.model"
    "$source/tests/train/damage" "$1" "$1.model" || echo "# damage failed"
    job "$1" model "$1.model"
    refused "$1" "$2" "$3"
}

expert="tensor 'model.layers.1.mlp.experts.3.up_proj.weight"
damaged truncated "1000 bytes behind the end of the file" "a truncated shard"
damaged header "header length 1099511627776 reaches beyond the file" "a header beyond its file"
damaged index "index.json: $expert' is missing" "a tensor missing from the index"
damaged shape "$expert': shape [64, 512], config.json asks for [128, 256]" "a wrong shape"
damaged dtype "$expert': dtype I8, expected F8_E4M3" "a wrong type"
damaged nan "${expert}_scale_inv': scale nan" "a scale that is no number"
job missing model nowhere
refused missing "nowhere/config.json: no such file" "a missing model"
cp -r "$tiny" llama
chmod -R u+w llama
sed -i 's/"qwen3_moe"/"llama"/' llama/config.json
job arch model llama
refused arch "llama/config.json: model_type 'llama': this trainer runs qwen3_moe models only" \
    "another architecture"
job key lora_rnak 8
refused key "unknown key 'lora_rnak', did you mean 'lora_rank'?" "a misspelt key"
grep -q "key.yaml:$(grep -n rnak key.yaml | cut -d: -f1): " key.err
ok $? "with the line it is in"
: >empty.jsonl
job empty dataset empty.jsonl
refused empty "empty.jsonl: no samples" "an empty dataset"
job long max_length 8
refused long "train.jsonl: every sample is too long: 40 of 40 have more than max_length 8 tokens" \
    "only samples that are too long"
job under output_dir train.jsonl/under
refused under "train.jsonl/under: cannot create the folder: Not a directory; choose another output_dir" \
    "an output folder that cannot be made"
job cuda backend cuda numerics fp8
refused cuda "backend cuda: no GPU is visible to this build" "a backend that is not there" \
    env CUDA_VISIBLE_DEVICES= "$core" cuda.yaml
job cap
refused cap "cap" "a plan above the cap" env FP8_LORA_CAP=10000000 "$core" cap.yaml
job fits
cap=$("${FL_BUILD_DIR:-.}/fp8-lora" plan --ranks 1 --json fits.yaml |
    sed -n 's/.*"total_bytes": *\([0-9]*\).*/\1/p' | head -n 1)
FP8_LORA_CAP=$((cap + (4 << 20))) "$core" fits.yaml >fits.log 2>fits.err
ok $? "a cap of the planned bytes and the arena's rounding is enough"
refused word "usage: fp8-lora-core job.yaml" "no word at all" "$core"
refused alone "4 ranks were started without MPI: start them with \`srun --mpi=pmix\`" \
    "ranks that cannot find each other" env FP8_LORA_WORLD=4 "$core" one.yaml

as=()
[ "$(id -u)" = 0 ] && as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
mkdir locked unreadable
cp "$tiny"/* unreadable
chmod 755 "$work"
chmod 000 unreadable/config.json
chmod 555 locked
job locked output_dir locked
job unreadable model unreadable
if [ ${#as[@]} = 0 ] || "${as[@]}" test -x "$core" 2>/dev/null; then
    refused locked "locked: not writable: Permission denied; choose another output_dir" \
        "an output folder of someone else" "${as[@]}" "$core" locked.yaml
    [ -z "$(ls -A locked)" ]
    ok $? "and nothing is in it"
    refused unreadable "unreadable/config.json: " "an unreadable model" \
        "${as[@]}" "$core" unreadable.yaml
else
    for text in locked nothing unreadable; do
        tests=$((tests + 1))
        echo "ok $tests - $text # SKIP an unprivileged user cannot reach the trainer"
    done
fi

if ! command -v mpirun >/dev/null; then
    tests=$((tests + 1))
    echo "ok $tests - several ranks # SKIP no mpirun"
    echo "1..$tests"
    exit 0
fi

# The same numbers however many ranks share the work.
job invariance
"$core" invariance.yaml >/dev/null 2>invariance.err
ok $? "one rank"
for shape in 2:1 2:2 4:1 4:2 4:4; do
    n=${shape%:*} ep=${shape#*:}
    name=n$n.ep$ep
    job "$name" expert_model_parallel_size "$ep"
    ranks "$n" "$core" "$name.yaml" >"$name.log" 2>"$name.err" || sed 's/^/# /' "$name.err"
    echo "# $(values lm_loss "$name.out" | tr '\n' ' ') / $(values grad_norm "$name.out" | tr '\n' ' ')"
    close invariance.out "$name.out"
    ok $? "$n ranks with EP $ep follow the loss and gradient norm of one"
    [ "$(stat -c %s "$name.out"/adapter_model.safetensors)" = \
        "$(stat -c %s invariance.out/adapter_model.safetensors)" ]
    ok $? "and leave all adapters"
done

job ep3 expert_model_parallel_size 3
refused ep3 "expert_model_parallel_size 3 does not divide the model's 16 experts" \
    "EP that does not divide the experts" ranks 3 "$core" ep3.yaml
job ep8 expert_model_parallel_size 8
refused ep8 "expert_model_parallel_size 8 does not divide the 4 ranks" \
    "EP that does not divide the ranks" ranks 4 "$core" ep8.yaml
job shard model nan.model expert_model_parallel_size 4
refused shard "${expert}_scale_inv': scale nan" "a tensor that only one of four ranks reads" \
    ranks 4 "$core" shard.yaml
echo "1..$tests"
