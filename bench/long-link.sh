#!/bin/sh
# Long fat links: a round trip of 20 ms, and 1 % loss on one lane, with NCCL's own windows and with a
# large one. `bench/long-link.sh --help`; docs/bench.md.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
PATH=$PATH:/usr/sbin:/sbin
build=${BUILD:-$top/build}

usage() {
    cat <<'EOT'
Usage: bench/long-link.sh [OPTION...]

Two ranks over a link of holmes-bench's own (root, or user namespaces; /dev/net/tun). Messages by window
and size: 8 of 128 KiB and 4 of 1 MiB, as NCCL has them under way, and a large window. Round by round every
side has one measurement of each, without loss and with loss on one stream, the one that has carried most.
Prints payload in Mbit/s, what the window itself allows in a round trip, and the ratio to plain streams, as
many as lanes, which have no window but the same loss.

  --rate RATE    of the link (1G)
  --rtt TIME     that it adds (20ms)
  --loss SHARE   of one stream's packets (1%)
  --lanes N      HOLMES_LANES, and plain streams (4)
  --windows LIST of WINDOWxSIZE (8x128K,4x1M,32x1M)
  --rounds N     (5)
  -p SIDE        as for holmes-bench, again for each; default: the built plugin with HOLMES_TCP=libfabric,
                 and with HOLMES_TCP=sockets
EOT
}

fail() {
    printf 'long-link: %s\n' "$*" >&2
    exit 1
}

# Called by holmes-bench in rank 0's network, once the side's streams are there: the busiest of this
# side loses.
lose() {
    [ "$BENCH_RANK" = 0 ] || return 0
    ss -tinHOp state established dst 10.78.0.2 | awk -v pid="pid=$BENCH_PID," \
        -v loss="$LONG_LINK_LOSS" '
        index($0, pid) {
            for (i = 1; i <= NF; i++)
                if ($i ~ /^bytes_sent:/ && substr($i, 12) + 0 > most) {
                    most = substr($i, 12) + 0
                    from = $3
                    to = $4
                }
        }
        END {
            if (most < 65536) exit 1
            sub(/.*:/, "", from)
            sub(/.*:/, "", to)
            print 0, from, to, loss
        }' >"$BENCH_RELAY" || fail "side $BENCH_SIDE: no stream has carried bulk"
}

if [ "${1-}" = --lose ]; then
    lose
    exit
fi

rate=1G rtt=20ms loss=1% lanes=4 windows=8x128K,4x1M,32x1M rounds=5
plugin=$build/plugin/libnccl-net-holmes.so
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
: >"$out/sides"
while [ $# -gt 0 ]; do
    case $1 in
    --rate | --rtt | --loss | --lanes | --windows | --rounds | -p)
        [ $# -gt 1 ] || fail "$1 needs a value"
        case $1 in
        --rate) rate=$2 ;;
        --rtt) rtt=$2 ;;
        --loss) loss=$2 ;;
        --lanes) lanes=$2 ;;
        --windows) windows=$2 ;;
        --rounds) rounds=$2 ;;
        -p) printf '%s\n' "$2" >>"$out/sides" ;;
        esac
        shift
        ;;
    -h | --help) usage && exit ;;
    *) fail "no option '$1' (see bench/long-link.sh --help)" ;;
    esac
    shift
done
for number in "$lanes" "$rounds"; do
    case $number in
    '' | *[!0-9]* | 0*) fail "'$number': a whole number from 1 is right" ;;
    esac
done
[ -x "$build/bench/holmes-bench" ] || fail "holmes-bench is not there: build first (ninja -C $build)"
if [ ! -s "$out/sides" ]; then
    for wire in libfabric sockets; do
        echo "$wire=$plugin,HOLMES_TCP=$wire,HOLMES_LANES=$lanes"
    done >"$out/sides"
fi
set --
while read -r side; do
    set -- "$@" -p "$side"
done <"$out/sides"
export LONG_LINK_LOSS="$loss"

run() { # run WINDOWxSIZE clean|lossy ROUND SIDE...
    window=${1%%x*} size=${1#*x} kind=$2 round=$3
    shift 3
    hook=true
    [ "$kind" = clean ] || hook="'$top/bench/long-link.sh' --lose"
    "$build/bench/holmes-bench" sendrecv --measure bandwidth -b "$size" -e "$size" \
        --window "$window" --rate "$rate" --rtt "$rtt" --relay --link-hook "$hook" --rounds 1 \
        --reference-streams "$lanes" --reference-threads streams "$@" \
        --json "$out/$window-$kind-$round.$size.json" >"$out/out" 2>"$out/err" ||
        {
            grep -v '^sendrecv \[' "$out/err" >&2 # its progress
            fail "holmes-bench failed with $window x $size, $kind"
        }
}

for round in $(seq "$rounds"); do
    for way in $(echo "$windows" | tr ',' ' '); do
        for kind in clean lossy; do
            [ ! -t 2 ] || printf '\rround %s of %s: %s, %s   ' "$round" "$rounds" "$way" "$kind" >&2
            run "$way" "$kind" "$round" "$@"
        done
    done
done
[ ! -t 2 ] || printf '\r%40s\r' '' >&2
echo "$rate each way, round trip +$rtt; lossy: $loss of one stream's packets, towards the receiver"
python3 "$top/bench/link_tables.py" long-link "$out"
