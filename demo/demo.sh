#!/bin/sh
# Trains the same GPT twice on two clusters with a slow link between them, with the ranks placed
# naively and as planned, and compares. ./holmes demo builds first and then runs this.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
PATH=$PATH:/usr/sbin:/sbin # for users whose PATH lacks ip and tc
. "$top/demo/net.sh"
train=$top/build/trainer/holmes-train
plugin=$top/build/plugin/libnccl-net-holmes.so

# Gradients large against activations: 7.3 million parameters have 29 MB of gradients, the 16
# sequences of 32 bytes of a step 0.8 MB of activations between the stages.
model="--layers 4 --channels 384 --heads 6 --seq-len 32 --batch 16 --microbatch 2"
learning="--lr 1.5e-3 --warmup 20 --seed 1"

usage() {
    cat <<'EOF'
Usage: ./holmes demo [OPTION...]

  --steps N     optimizer steps of each run (100)
  --text FILE   train on this text (default: the fortunes of Debian's package)
  --out DIR     where logs and picture go (demo-out)
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

path_speed() { # path_speed FROM TO: Mbit/s of a plain TCP stream
    net_on "$2" python3 "$top/demo/pathspeed.py" recv 5001 &
    net_on "$1" python3 "$top/demo/pathspeed.py" send "$(net_address "$2")" 5001
    wait $!
}

if [ -z "$loopback" ]; then
    net_up || fail "could not make the hosts' network (see above); ./holmes demo --loopback"
    say "Hosts a0, a1 in cluster A and b0, b1 in cluster B. A plain TCP stream carries"
    for path in "a0 a1" "b0 b1" "a0 b0" "b1 a1"; do
        # shellcheck disable=SC2086 # two words
        printf '  %s -> %s  %6d Mbit/s\n' $path "$(path_speed $path)"
    done
fi

# --- the two runs -----------------------------------------------------------------------------

# run PLACEMENT: four ranks, rank i on the i-th host. Rank 0 shows the progress; what the others
# say is in $out/PLACEMENT.rankN.txt.
run() {
    placement=$1
    say ""
    say "== $placement placement"
    # shellcheck disable=SC2086 # lists of options
    set -- "$train" --data "$text" --plugin "$plugin" $model $learning --steps "$steps" \
        --pipeline 2 --data-parallel 2 --placement "$placement" --threads 1
    if [ -n "$loopback" ]; then
        "$@" --local 4 --host-label a0,a1,b0,b1 --cluster A,A,B,B --log "$out/$placement.jsonl" &
        ranks=$!
        wait $ranks || fail "the run failed"
        ranks=''
        return
    fi
    before=$(net_uplink_bytes)
    HOLMES_JOB_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    export HOLMES_JOB_SECRET
    rank=0
    for host in $net_hosts; do
        cluster=$(echo "${host%?}" | tr ab AB)
        output=$out/$placement.rank$rank.txt
        if [ $rank = 0 ]; then
            net_on "$host" "$@" --rank 0 --world 4 --serve --rendezvous "$(net_address a0):29500" \
                --host-label "$host" --cluster "$cluster" --log "$out/$placement.jsonl" &
        else
            net_on "$host" "$@" --rank $rank --world 4 --rendezvous "$(net_address a0):29500" \
                --host-label "$host" --cluster "$cluster" --quiet >"$output" 2>&1 &
        fi
        ranks="$ranks $!"
        rank=$((rank + 1))
    done
    failed=''
    for pid in $ranks; do wait "$pid" || failed=1; done
    ranks=''
    if [ -n "$failed" ]; then
        tail -n 3 "$out/$placement".rank?.txt >&2
        fail "the run failed"
    fi
    # shellcheck disable=SC2046,SC2086 # two numbers each
    report_uplink $before $(net_uplink_bytes) $(python3 "$top/demo/crossing.py" "$out/$placement.jsonl")
}

# report_uplink BEFORE... AFTER... COUNTED...: each A to B and B to A, bytes of the whole run.
report_uplink() {
    say "Slow link, whole run: A to B $((($3 - $1) / 1000)) kB by the kernel's counter," \
        "$(($5 / 1000)) kB payload by the ranks' count;"
    say "                      B to A $((($4 - $2) / 1000)) kB and $(($6 / 1000)) kB." \
        "The difference is headers, acknowledgements, handshakes."
}

run naive
run planned
say ""
slow=$net_mbit
[ -z "$loopback" ] || slow=''
"$train" compare "$out/naive.jsonl" "$out/planned.jsonl" --svg "$out/demo.svg" \
    ${slow:+--slow-mbit "$slow"}
say "Picture: $out/demo.svg"
