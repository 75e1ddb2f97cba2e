#!/bin/sh
# How much of the communication --overlap hides. Two data-parallel ranks on two hosts (network
# namespaces) train a small GPT; the link between them is shaped so that the reduce-scatter of a step
# takes as long as its backward, measured just before: the link is the limit, not the processors.
# Steps with overlap on, off and without communication are then timed in turns.
# Prints the table and the hidden share, and leaves trace.json, the time line of a few steps with
# overlap, for ui.perfetto.dev or `holmes-train report`. `bench/overlap.sh --help`; docs/overlap.md.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
PATH=$PATH:/usr/sbin:/sbin # for users whose PATH lacks ip and tc
. "$top/demo/net.sh"
train=$top/build/trainer/holmes-train
plugin=$top/build/plugin/libnccl-net-holmes.so

# 6.4 million parameters, 26 MB of gradients; one microbatch for each replica, so that backward is
# one piece as long as the sums.
model="--layers 8 --channels 256 --heads 4 --seq-len 64 --batch 16 --microbatch 8"

usage() {
    cat <<'EOT'
Usage: bench/overlap.sh [OPTION...]

Two data-parallel ranks over a link on which the sums of a step take as long as its backward: how much
of that --overlap hides. A minute or two; needs two idle cores, and root or user namespaces.

  --rounds N   rounds of steps with overlap, without, and without communication (5)
  --out DIR    where logs and trace.json go (overlap-out)
EOT
}

say() { printf '%s\n' "$*"; }
fail() {
    printf 'overlap: %s\n' "$*" >&2
    exit 1
}

rounds=5 out=overlap-out
while [ $# -gt 0 ]; do
    case $1 in
    --rounds | --out)
        [ $# -gt 1 ] || fail "$1 needs a value"
        case $1 in
        --rounds) rounds=$2 ;;
        --out) out=$2 ;;
        esac
        shift
        ;;
    -h | --help)
        usage
        exit
        ;;
    *) fail "no option '$1': --rounds N and --out DIR are right" ;;
    esac
    shift
done
case $rounds in
'' | *[!0-9]* | 0*) fail "--rounds '$rounds': a whole number from 1 is right" ;;
esac

# --- a place of our own -----------------------------------------------------------------------

if [ -z "${overlap_inside-}" ]; then
    if [ ! -x "$train" ] || [ ! -e "$plugin" ]; then
        fail "no build in $top/build: run ninja -C build first"
    fi
    isolation=$(net_isolation) || fail "network namespaces are not allowed here"
    # Not with exec: unshare ignores SIGTERM, this shell does not, and unshare follows it.
    # shellcheck disable=SC2086 # a list of words
    overlap_inside=1 $isolation "$0" --rounds "$rounds" --out "$out" && exit
    exit $?
fi

ranks=''
stop_ranks() {
    trap - EXIT INT TERM HUP
    for pid in $ranks; do kill "$pid" 2>/dev/null || true; done
    wait
}
trap stop_ranks EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

mkdir -p "$out" || fail "cannot make the folder $out"
net_up || fail "could not make the hosts' network (see above)"

# Any text will do: what is trained is not what is measured.
cat "$top"/docs/*.md >"$out/text"

# run OPTION...: rank 0 on a0, rank 1 on a1; what rank 1 says is in $out/rank1.txt.
run() {
    HOLMES_JOB_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    export HOLMES_JOB_SECRET
    # shellcheck disable=SC2086 # a list of options
    set -- "$train" --data "$out/text" --plugin "$plugin" $model --data-parallel 2 --threads 1 \
        --eval-sequences 0 --quiet --world 2 --rendezvous "$(net_address a0):29500" "$@"
    net_on a1 "$@" --rank 1 --host-label a1 >"$out/rank1.txt" 2>&1 &
    ranks=$!
    net_on a0 "$@" --rank 0 --serve --host-label a0 --log "$out/run.jsonl" >"$out/rank0.txt" ||
        fail "the run failed: $(tail -n 3 "$out/rank1.txt")"
    wait $ranks || fail "the run failed: $(tail -n 3 "$out/rank1.txt")"
    ranks=''
}

# span NAME: the median over ranks and steps, without the first, of the sum of the events of that
# name in a step, in microseconds. Events are one to a line of the trace.
span() {
    awk -v name="\"name\":\"$1" '
    function field(key) {
        if (!match($0, "\"" key "\":[-0-9.]+")) return ""
        return substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3)
    }
    index($0, name) && field("step") > 1 { sum[field("pid") " " field("step")] += field("dur") }
    END { for (key in sum) print sum[key] }' "$out/trace.json" | sort -n |
        awk '{ v[NR] = $1 } END { print NR ? v[int((NR + 1) / 2)] : 0 }'
}

# --- how fast the link is to be ---------------------------------------------------------------

run --steps 8 --overlap off --trace "$out/trace.json"
backward=$(span backward)
parameters=$(sed -n 's/.*"parameters": *\([0-9]*\).*/\1/p' "$out/run.jsonl" | head -n 1)
# Of two replicas each sends half of the gradients, four bytes each.
mbit=$(awk -v n="$parameters" -v us="$backward" 'BEGIN { printf "%.0f", n * 2 * 8 / us }')
[ "$mbit" -gt 0 ] || fail "backward took no time that could be measured"
for host in a0 a1; do
    tc -n "$host" qdisc add dev eth0 root tbf rate "${mbit}mbit" burst 256kb latency 20ms ||
        fail "the link cannot be shaped"
done
say "$parameters parameters; backward takes $(awk -v us="$backward" 'BEGIN { printf "%.0f", us / 1e3 }') ms:" \
    "the link gets $mbit Mbit/s each way."

# --- the measurement --------------------------------------------------------------------------

run --steps 8 --measure-overlap "$rounds" --trace "$out/trace.json"
sed -n '/^step time/,/^Overlap\|^Communication/p' "$out/rank0.txt"
awk -v b="$(span backward)" -v r="$(span reduce-scatter)" -v f="$(span forward)" \
    -v g="$(span all-gather)" 'BEGIN {
    printf "A step with overlap: forward %.0f ms (with its waits), backward %.0f, ", f / 1e3, b / 1e3
    printf "reduce-scatter %.0f, all-gather %.0f.\n", r / 1e3, g / 1e3 }'
say "Trace: $out/trace.json"
