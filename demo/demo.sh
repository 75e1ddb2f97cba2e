#!/bin/sh
# Trains the same GPT twice on two clusters with a slow link between them, with the ranks placed
# naively and as holmes-topo plans, and compares. ./holmes demo builds first and then runs this.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
PATH=$PATH:/usr/sbin:/sbin # for users whose PATH lacks ip and tc
. "$top/demo/net.sh"
train=$top/build/trainer/holmes-train
topo=$top/build/topology/holmes-topo
plugin=$top/build/plugin/libnccl-net-holmes.so

# The hosts as a scheduler lists them that knows nothing of clusters, one rank on each.
hosts="a0 b0 a1 b1"

# Gradients large against activations: 7.3 million parameters have 29 MB of gradients, the 16
# sequences of 32 bytes of a step 0.8 MB of activations between the stages. Where they go is the
# plan's affair; the sizes are given, for both runs are to have the same.
model="--layers 4 --hidden 384 --heads 6 --sequence 32 --vocabulary 256 --untied --holmes-train"
split="--global-batch 16 --micro-batch 2 --tensor 1 --pipeline 2 --data 2"
learning="--lr 1.5e-3 --warmup 20 --seed 1"
tflops=0.03 # of a rank: its share of a few cores; it decides no placement, only expected times

usage() {
    cat <<'EOF'
Usage: ./holmes demo [OPTION...]

  --steps N     optimizer steps of each run (100)
  --text FILE   train on this text (default: the fortunes of Debian's package)
  --out DIR     where plan, logs and pictures go (demo-out)
  --loopback    all ranks on this machine's loopback, without the slow link
  --quick       few steps, to see that it works
EOF
}

say() { printf '%s\n' "$*"; }
fail() {
    printf 'demo: %s\n' "$*" >&2
    exit 1
}
refuse() {
    printf 'demo: %s\n' "$*" >&2
    exit 2
}

# --- options ----------------------------------------------------------------------------------

steps=100 text='' out=demo-out loopback=''
while [ $# -gt 0 ]; do
    case $1 in
    --steps | --text | --out)
        [ $# -gt 1 ] || refuse "$1 needs a value"
        case $1 in
        --steps) steps=$2 ;;
        --text) text=$2 ;;
        --out) out=$2 ;;
        esac
        shift
        ;;
    --loopback) loopback=1 ;;
    --quick) steps=4 ;;
    -h | --help) usage && exit ;;
    *) refuse "no option '$1' (see ./holmes demo --help)" ;;
    esac
    shift
done
case $steps in
'' | *[!0-9]* | 0*) refuse "--steps '$steps': a whole number from 1 is right" ;;
esac
[ -z "$text" ] || [ -f "$text" ] || refuse "--text $text: no such file"

# --- a place of our own -----------------------------------------------------------------------

if [ -z "$loopback" ] && [ -z "${demo_inside-}" ]; then
    if isolation=$(net_isolation); then
        # Not with exec: unshare ignores SIGTERM, this shell does not, and unshare follows it.
        # shellcheck disable=SC2086 # a list of words
        demo_inside=1 $isolation "$0" --steps "$steps" --out "$out" \
            ${text:+--text "$text"} && exit
        exit $?
    fi
    loopback=1
    say "No network namespaces here (not root, and user namespaces are off), so this runs on"
    say "loopback. Left out: the four hosts, the slow link between the clusters, and with it the"
    say "speed-up; bytes are counted all the same."
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

# --- text -------------------------------------------------------------------------------------

if [ -z "$text" ]; then
    for folder in /usr/share/games/fortunes /usr/share/games/fortune; do
        [ ! -d $folder ] || break
    done
    text=$out/fortunes.txt
    for file in $(cd "$folder" && LC_ALL=C ls); do
        case $file in *.dat | *.u8) ;; *) cat "$folder/$file" ;; esac
    done >"$text"
fi
say "Text: $text, $(wc -c <"$text") bytes"

# --- network ----------------------------------------------------------------------------------

launcher='env DEMO_HOST={host}' # loopback: every host is this machine
if [ -z "$loopback" ]; then
    net_up || fail "could not make the hosts' network (see above); ./holmes demo --loopback"
    launcher='ip netns exec {host}'
fi
# shellcheck disable=SC2086 # a list of hosts
printf '%s slots=1\n' $hosts >"$out/hosts"

# --- what is there, and the plan --------------------------------------------------------------

# Who belongs together is measured: which hosts a slow link parts, and how slow it is. Loopback has
# no such link, and is told.
if [ -z "$loopback" ]; then
    say ""
    say "== holmes-topo check"
    # Where the hosts' processes wait for a core all links look alike: then it measures again.
    for attempt in 1 2 3; do
        "$topo" check --hostfile "$out/hosts" --launcher "$launcher" --json >"$out/check.json" ||
            fail "holmes-topo check failed (see $out/check.json)"
        python3 "$top/demo/clusters.py" "$out/check.json" >"$out/clusters.sh" && break
        [ $attempt -lt 3 ] || fail "no two clusters after $attempt measurements: is this machine" \
            "busy? ./holmes demo --loopback measures none"
        say "Measuring once more."
    done
else
    echo "cluster_a=a0,a1 cluster_b=b0,b1 link_gbps=10 link_rtt_ms=0.05" >"$out/clusters.sh"
fi
# shellcheck disable=SC1090 # made here
. "$(realpath "$out/clusters.sh")"
# shellcheck disable=SC2154 # all four are in that file
say "Cluster A is $cluster_a, B is $cluster_b; between them $link_gbps Gb/s and $link_rtt_ms ms."

"$topo" gather --hostfile "$out/hosts" --launcher "$launcher" --quiet --name demo \
    --fabric "A=$cluster_a" --fabric "B=$cluster_b" -o "$out/gathered.yaml" ||
    fail "holmes-topo gather failed"
# What a machine without a GPU cannot say of itself, and what lies between the clusters.
sed "s/^  gpus: 0\$/  gpus: 1\n  gpu: CPU\n  tflops: $tflops/" "$out/gathered.yaml" >"$out/cluster.yaml"
cat >>"$out/cluster.yaml" <<EOF
links:
- between: [A, B]
  gbps: $link_gbps
  rtt-ms: $link_rtt_ms
EOF

say ""
say "== holmes-topo plan"
# shellcheck disable=SC2086 # lists of options
"$topo" plan "$out/cluster.yaml" $model $split -o "$out/plan.json" || fail "there is no plan"
"$topo" draw "$out/plan.json" -o "$out/plan.svg" || fail "the plan cannot be drawn"
"$topo" emit "$out/plan.json" --for holmes --part ranks >"$out/ranks" || fail "no ranks"

# --- the two runs -----------------------------------------------------------------------------

# run NAME [--naive]: the ranks on their hosts, placed as the plan says, or in the order of the
# hosts. Rank 0 shows the progress; what the others say is in $out/NAME.rankN.txt.
run() {
    name=$1
    say ""
    say "== $name placement"
    placement=$("$topo" emit "$out/plan.json" --for holmes --part args ${2:+"$2"}) ||
        fail "the plan cannot be handed to the trainer"
    # shellcheck disable=SC2086 # lists of options
    set -- "$train" --data "$text" --plugin "$plugin" $placement $learning --steps "$steps" \
        --threads 1
    if [ -n "$loopback" ]; then
        # shellcheck disable=SC2046 # a list of options
        "$@" --local 4 $("$topo" emit "$out/plan.json" --for holmes --part labels) \
            --log "$out/$name.jsonl" &
        ranks=$!
        wait $ranks || fail "the run failed"
        ranks=''
        return
    fi
    before=$(net_uplink_bytes)
    HOLMES_JOB_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    export HOLMES_JOB_SECRET
    meet='' # the address of rank 0's host, which is the first
    while read -r rank host cluster; do
        meet=${meet:-$(net_address "$host"):29500}
        if [ "$rank" = 0 ]; then
            net_on "$host" "$@" --rank 0 --world 4 --serve --rendezvous "$meet" \
                --host-label "$host" --cluster "$cluster" --log "$out/$name.jsonl" &
        else
            net_on "$host" "$@" --rank "$rank" --world 4 --rendezvous "$meet" \
                --host-label "$host" --cluster "$cluster" --quiet \
                >"$out/$name.rank$rank.txt" 2>&1 &
        fi
        ranks="$ranks $!"
    done <"$out/ranks"
    failed=''
    for pid in $ranks; do wait "$pid" || failed=1; done
    ranks=''
    if [ -n "$failed" ]; then
        tail -n 3 "$out/$name".rank?.txt >&2
        fail "the run failed"
    fi
    # shellcheck disable=SC2046,SC2086 # two numbers each
    report_uplink $before $(net_uplink_bytes) $(python3 "$top/demo/crossing.py" "$out/$name.jsonl")
}

# report_uplink BEFORE... AFTER... COUNTED...: each A to B and B to A, bytes of the whole run.
report_uplink() {
    say "Slow link, whole run: A to B $((($3 - $1) / 1000)) kB by the kernel's counter," \
        "$(($5 / 1000)) kB payload by the ranks' count;"
    say "                      B to A $((($4 - $2) / 1000)) kB and $(($6 / 1000)) kB." \
        "The difference is headers, acknowledgements, handshakes."
}

run naive --naive
run planned
say ""
slow=$net_mbit
[ -z "$loopback" ] || slow=''
"$train" compare "$out/naive.jsonl" "$out/planned.jsonl" --svg "$out/demo.svg" \
    ${slow:+--slow-mbit "$slow"}
say "Pictures: $out/plan.svg, what was planned; $out/demo.svg, what was measured."
