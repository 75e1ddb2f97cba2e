#!/bin/sh
# One slow lane among the streams of a connection: each stream has a wire of its own (an htb class),
# and one that carries bulk gets a tenth. `bench/lanes.sh --help`; docs/bench.md.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
PATH=$PATH:/usr/sbin:/sbin # for users whose PATH lacks tc
build=${BUILD:-$top/build}

usage() {
    cat <<'EOT'
Usage: bench/lanes.sh [OPTION...]

What one slow lane costs. Two ranks in network namespaces of their own (root, or user namespaces);
every TCP stream has so many Mbit/s for itself. In turns, round by round: a plain stream (one full
lane), the plugin with N lanes, and the plugin with N lanes of which one, the one that has carried most,
is throttled in the direction of the data.

  --rate MBIT        of a lane (1000)
  --throttle PERCENT of that for the slow lane (10)
  --lanes N          HOLMES_LANES (4)
  --size SIZE        of a message (1M)
  --rounds N         (5)
  --idle-us US       as for holmes-bench (0)
  --tcp LIST         values of HOLMES_TCP (libfabric,sockets)
  --plugin PATH      (the built one)
EOT
}

fail() {
    printf 'lanes: %s\n' "$*" >&2
    exit 1
}

# --- inside: called by holmes-bench in a rank's network, once the side's streams are there -----

# This side's streams to the other rank: PORT PEER-PORT BYTES-SENT.
streams() {
    ss -tinHOp state established dst "$1" | awk -v pid="pid=$BENCH_PID," '
        index($0, pid) {
            sent = 0
            for (i = 1; i <= NF; i++)
                if ($i ~ /^bytes_sent:/)
                    sent = substr($i, 12)
            n = split($3, from, ":")
            m = split($4, to, ":")
            print from[n], to[m], sent
        }'
}

# class_add PORT PEER-PORT MBIT: a wire for this stream.
class_add() {
    class=$(printf '%x' $(($(tc class show dev link0 | wc -l) + 1)))
    tc class add dev link0 parent 1: classid "1:$class" htb rate "$3mbit" burst 70kb cburst 70kb \
        quantum 60000
    tc filter add dev link0 parent 1: protocol ip prio 1 u32 match ip sport "$1" 0xffff \
        match ip dport "$2" 0xffff flowid "1:$class"
}

shape() {
    case $BENCH_RANK in
    0) peer=10.78.0.2 ;;
    *) peer=10.78.0.1 ;;
    esac
    tc qdisc show dev link0 | grep -q htb || tc qdisc add dev link0 root handle 1: htb
    all=$(streams "$peer")
    [ -n "$all" ] || fail "side $BENCH_SIDE has no streams at rank $BENCH_RANK"
    most=''
    if [ "$BENCH_SIDE" = throttled ] && [ "$BENCH_RANK" = 0 ]; then
        most=$(echo "$all" | sort -k3,3n | tail -n 1)
        # shellcheck disable=SC2086 # three numbers
        set -- $most
        [ "$3" -ge 65536 ] || fail "no stream has carried bulk: $most"
    fi
    echo "$all" | while read -r port peer_port sent; do
        mbit=$LANES_RATE
        [ "$port $peer_port $sent" != "$most" ] || mbit=$((LANES_RATE * LANES_THROTTLE / 100))
        class_add "$port" "$peer_port" "$mbit"
    done
}

if [ "${1-}" = --shape ]; then
    shape
    exit
fi

# --- outside ----------------------------------------------------------------------------------

rate=1000 throttle=10 lanes=4 size=1M rounds=5 tcp=libfabric,sockets idle=0
plugin=$build/plugin/libnccl-net-holmes.so
while [ $# -gt 0 ]; do
    case $1 in
    --rate | --throttle | --lanes | --size | --rounds | --idle-us | --tcp | --plugin)
        [ $# -gt 1 ] || fail "$1 needs a value"
        case $1 in
        --rate) rate=$2 ;;
        --throttle) throttle=$2 ;;
        --lanes) lanes=$2 ;;
        --size) size=$2 ;;
        --rounds) rounds=$2 ;;
        --idle-us) idle=$2 ;;
        --tcp) tcp=$2 ;;
        --plugin) plugin=$2 ;;
        esac
        shift
        ;;
    -h | --help) usage && exit ;;
    *) fail "no option '$1' (see bench/lanes.sh --help)" ;;
    esac
    shift
done
for number in "$rate" "$throttle" "$lanes" "$rounds"; do
    case $number in
    '' | *[!0-9]* | 0*) fail "'$number': a whole number from 1 is right" ;;
    esac
done
[ $((rate * throttle)) -ge 100 ] || fail "--rate $rate --throttle $throttle: below 1 Mbit/s"
for built in "$build/bench/holmes-bench" "$plugin"; do
    [ -e "$built" ] || fail "$built is not there: build first (ninja -C $build)"
done

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
export LANES_RATE="$rate" LANES_THROTTLE="$throttle"
echo "$lanes lanes of $rate Mbit/s, messages of $size, one way, $rounds rounds; Mbit/s of payload"
for wire in $(echo "$tcp" | tr ',' ' '); do
    side=$plugin,HOLMES_TCP=$wire,HOLMES_LANES=$lanes
    "$build/bench/holmes-bench" sendrecv --measure bandwidth -b "$size" -e "$size" --rtt 0ms \
        --rounds "$rounds" --idle-us "$idle" --reference-streams 1 --reference-threads streams \
        -p "all=$side" -p "throttled=$side" --json "$out/$wire.json" \
        --link-hook "'$top/bench/lanes.sh' --shape" >"$out/$wire.txt" 2>"$out/$wire.err" ||
        {
            grep -v '^sendrecv \[' "$out/$wire.err" >&2 # its progress
            fail "holmes-bench failed with HOLMES_TCP=$wire"
        }
    python3 "$top/bench/link_tables.py" lanes "$out/$wire.json" "$wire" "$lanes" "$throttle"
done
