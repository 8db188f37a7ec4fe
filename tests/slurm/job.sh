# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Training jobs for tests/slurm/*.t: a checkpoint and samples the ordinary user can read, job files, trajectories.

# The tiny checkpoint, as $WORK/model.
copy_checkpoint() {
    cp -r "$FL_SOURCE_DIR/tests/data/tiny-qwen3-moe-fp8" "$WORK/model"
    chmod -R a+rX "$WORK/model"
}

# make_samples N: $WORK/train.jsonl, an Alpaca file of N samples of unequal lengths from the licence's text.
make_samples() {
    python3 - "$FL_SOURCE_DIR/LICENSE" "$1" >"$WORK/train.jsonl" <<'END'
import json
import sys

words = open(sys.argv[1]).read().split()
at = 0
for sample in range(int(sys.argv[2])):
    length = 5 + 7 * sample % 60
    text = words[at : at + length]
    at = (at + length) % (len(words) - 80)
    print(json.dumps({"instruction": "Continue: " + " ".join(text[:4]), "input": "", "output": " ".join(text[4:])}))
END
}

# write_job NAME: $WORK/NAME.yaml from standard input and what every job here has; output goes to $WORK/NAME.
write_job() {
    {
        say "model: $WORK/model"
        say "dataset: $WORK/train.jsonl"
        say "save: $WORK/$1"
        say "backend: cpu"
        cat
    } >"$WORK/$1.yaml"
}

# trajectory OUTPUT-FOLDER: a line for each logged iteration: its number, loss, load-balancing loss, gradient norm.
trajectory() {
    python3 - "$1/metrics.jsonl" <<'END'
import json
import sys

for e in map(json.loads, open(sys.argv[1])):
    if e["event"] == "train":
        print(e["iteration"], e["lm_loss"], e["load_balancing_loss"], e["grad_norm"])
END
}

# agree A B TOLERANCE: as many lines, and every number within the relative tolerance.
agree() {
    paste -d ' ' "$1" "$2" | awk -v tolerance="$3" '
        NF != 8 { bad = 1 }
        { for (i = 1; i <= 4; i++) { d = $i - $(i + 4); if (d < 0) d = -d; if (!(d <= tolerance * $i)) bad = 1 } }
        END { exit bad || NR == 0 }'
}
differ() { ! agree "$@"; }
