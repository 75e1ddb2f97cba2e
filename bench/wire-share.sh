#!/bin/sh
# What share of the wire messages reach: links of each rate, one way and both ways at once, 64 KiB and
# 1 MiB. `bench/wire-share.sh --help`; docs/bench.md.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
build=${BUILD:-$top/build}

usage() {
    cat <<'EOT'
Usage: bench/wire-share.sh [OPTION...]

Two ranks over links of holmes-bench's own (root, or user namespaces). In each round every combination of
rate, direction and size has one measurement of every side. Prints payload over rate, in percent and for
one direction: the median of the rounds, least and most.

  --rates LIST   of the links (1G,10G)
  --rounds N     (5)
  --rtt TIME     that the links add (none)
  --streams LIST of the reference; the best counts (1,4)
  --idle-us US   as for holmes-bench (0)
  -p SIDE        as for holmes-bench, again for each; default: the built plugin with HOLMES_TCP=libfabric,
                 and with HOLMES_TCP=sockets
EOT
}

fail() {
    printf 'wire-share: %s\n' "$*" >&2
    exit 1
}

rates=1G,10G rounds=5 rtt=0ms streams=1,4 idle=0
plugin=$build/plugin/libnccl-net-holmes.so
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
: >"$out/sides"
while [ $# -gt 0 ]; do
    case $1 in
    --rates | --rounds | --rtt | --streams | --idle-us | -p)
        [ $# -gt 1 ] || fail "$1 needs a value"
        case $1 in
        --rates) rates=$2 ;;
        --rounds) rounds=$2 ;;
        --rtt) rtt=$2 ;;
        --streams) streams=$2 ;;
        --idle-us) idle=$2 ;;
        -p) printf '%s\n' "$2" >>"$out/sides" ;;
        esac
        shift
        ;;
    -h | --help) usage && exit ;;
    *) fail "no option '$1' (see bench/wire-share.sh --help)" ;;
    esac
    shift
done
case $rounds in
'' | *[!0-9]* | 0*) fail "--rounds '$rounds': a whole number from 1 is right" ;;
esac
[ -x "$build/bench/holmes-bench" ] || fail "holmes-bench is not there: build first (ninja -C $build)"
if [ ! -s "$out/sides" ]; then
    for wire in libfabric sockets; do
        echo "$wire=$plugin,HOLMES_TCP=$wire"
    done >"$out/sides"
fi
set --
while read -r side; do
    set -- "$@" -p "$side"
done <"$out/sides"

run() { # run RATE one|both ROUND SIDE...
    rate=$1 ways=$2 round=$3
    shift 3
    both=''
    [ "$ways" = one ] || both=--both-ways
    name=$rate-$ways-$round
    # shellcheck disable=SC2086 # an option or nothing
    "$build/bench/holmes-bench" sendrecv --measure bandwidth -b 64K -e 1M -f 16 --rate "$rate" \
        --rtt "$rtt" $both --rounds 1 --idle-us "$idle" --reference-streams "$streams" "$@" \
        --json "$out/$name.json" >"$out/out" 2>"$out/err" ||
        {
            grep -v '^sendrecv \[' "$out/err" >&2 # its progress
            fail "holmes-bench failed with --rate $rate, $ways way(s)"
        }
}

for round in $(seq "$rounds"); do
    for rate in $(echo "$rates" | tr ',' ' '); do
        for ways in one both; do
            [ ! -t 2 ] || printf '\rround %s of %s: %s, %s way(s)   ' "$round" "$rounds" "$rate" \
                "$ways" >&2
            run "$rate" "$ways" "$round" "$@"
        done
    done
done
[ ! -t 2 ] || printf '\r%40s\r' '' >&2
python3 "$top/bench/link_tables.py" wire-share "$out"
