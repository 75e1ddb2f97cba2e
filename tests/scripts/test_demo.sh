#!/bin/sh
# test_demo.sh TRAIN: the demo from end to end in its short form, over the built programs, and what it does
# with bad input and when it is stopped.
. "$(dirname "$0")/tap.sh"
. "$top/demo/net.sh"
train=$1
demo=$top/demo/demo.sh
out=$scratch/out.d

refuses() { # refuses TEXT OPTION...
    text=$1
    shift
    gives 2 "$demo" "$@" && says err "$text"
}

bad_options() {
    refuses "no option '--stepz'" --stepz 3 && refuses "--steps needs a value" --steps &&
        refuses "--steps '0'" --steps 0 && refuses "--steps '3x'" --steps 3x &&
        refuses "--text /nonexistent: no such file" --text /nonexistent
}

runs_whole() { gives 0 "$demo" --quick --out "$out"; }

# compared EXPRESSION: holds for n and p, the naive and the planned run of the comparison.
compared() {
    "$train" compare --json "$out/naive.jsonl" "$out/planned.jsonl" >"$scratch/compared" &&
        python3 -c 'import json, sys
n, p = json.load(open(sys.argv[1]))["runs"]
sys.exit(not eval(sys.argv[2]))' "$scratch/compared" "$1" && return
    cat "$scratch/compared"
    return 1
}

planned_keeps_gradients_off() {
    compared 'p["slow_bytes_per_step"]["dp"] == 0 < p["slow_bytes_per_step"]["pp"]' &&
        compared 'n["slow_bytes_per_step"]["dp"] > 30 * p["slow_bytes_per_step"]["pp"]'
}

same_loss() { compared 'abs(n["final_loss"] / p["final_loss"] - 1) < 1e-5'; }

# Kernel and ranks count the same payload: never less on the wire, at most a tenth and 1 MB more.
counts_agree() {
    [ "$(grep -c '^Slow link, whole run' "$scratch/out")" = 2 ] || return 1
    sed -n 's/.*A to B \([0-9]*\) kB by the kernel.* \([0-9]*\) kB payload.*/\1 \2/p
        s/.*B to A \([0-9]*\) kB and \([0-9]*\) kB.*/\1 \2/p' "$scratch/out" | awk '
        { n++; if ($1 < $2 || $1 > 1.1 * $2 + 1000) { print; bad = 1 } }
        END { exit bad || n != 4 }'
}

# Which hosts belong together was measured, and the ranks took the places of the plan, which keeps
# the gradients inside; nothing else was told of the placement.
ranks_follow_the_plan() {
    python3 -c 'import json, sys
out = sys.argv[1]
plan = json.load(open(out + "/plan.json"))["plan"]
hosts = [n["hosts"] for n in plan["nodes"]]
ranks = json.loads(open(out + "/planned.jsonl").readline())["ranks"]
places = sorted((r["stage"], r["replica"], r["host"]) for r in ranks)
sys.exit(json.load(open(out + "/check.json"))["groups"] != [["a0", "a1"], ["b0", "b1"]]
         or sorted(hosts[:2]) not in (["a0", "a1"], ["b0", "b1"])
         or [host for _, _, host in places] != hosts)' "$out" && return
    head -c 2000 "$out/plan.json" "$out/planned.jsonl" "$out/check.json"
    return 1
}

# The plan said what a step would send over the slow link: the ranks counted just that.
plan_foretells_the_bytes() {
    compared 'abs(json.load(open(sys.argv[1][:-8] + "out.d/plan.json"))["plan"]["cost"]["cross_bytes"]
        / p["slow_bytes_per_step"]["pp"] - 1) < 0.01'
}

draws() {
    python3 -c 'import sys, xml.dom.minidom as x
for picture in sys.argv[1:]: x.parse(picture)' "$out/demo.svg" "$out/plan.svg"
}

no_rank_lives() {
    deadline=$(($(date +%s) + 10))
    # Arguments end in 0 bytes there, which no pattern matches.
    while grep -qs "$out/[a-z]*[.]jsonl" /proc/[0-9]*/cmdline; do
        [ "$(date +%s)" -lt $deadline ] || { echo "a rank lives on"; return 1; }
    done
}

# Ends the demo with SIGNAL once its first run has begun.
leaves_nothing_after() {
    rm -rf "$out"
    "$demo" --out "$out" >"$scratch/stopped" 2>&1 &
    pid=$!
    deadline=$(($(date +%s) + 60))
    until [ -s "$out/naive.jsonl" ]; do
        [ "$(date +%s)" -lt $deadline ] || break
    done
    kill "-$1" $pid
    wait $pid 2>/dev/null
    [ -s "$out/naive.jsonl" ] || { cat "$scratch/stopped"; return 1; }
    no_rank_lives
}

claim "the demo refuses bad options by name" bad_options
if ! net_isolation >/dev/null; then
    skip "the demo" "no network namespaces for this user"
    exit
fi
claim "the demo runs from end to end" runs_whole
claim "planned placement sends no gradients over the slow link" planned_keeps_gradients_off
claim "both placements end with the same loss" same_loss
claim "the kernel's counters agree with the ranks'" counts_agree
claim "the ranks are where the plan says, and the clusters were measured" ranks_follow_the_plan
claim "the plan foretells the bytes on the slow link" plan_foretells_the_bytes
claim "the pictures of plan and result are well-formed" draws
claim "no rank outlives the demo" no_rank_lives
claim "no rank outlives SIGTERM" leaves_nothing_after TERM
claim "no rank outlives SIGKILL" leaves_nothing_after KILL
