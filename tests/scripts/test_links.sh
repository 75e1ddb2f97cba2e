#!/bin/sh
# The scripts that measure over shaped links: figures that a busy machine cannot exceed, and one line
# for what is wrong. $1: the build folder.
. "$(dirname "$0")/tap.sh"
BUILD=$1
export BUILD
lanes=$top/bench/lanes.sh shares=$top/bench/wire-share.sh long=$top/bench/long-link.sh

names_what_is_wrong() {
    gives 1 "$lanes" --rate 0 && says err "'0'" &&
        gives 1 "$lanes" --rate 5 --throttle 1 && says err "below 1 Mbit/s" &&
        gives 1 "$lanes" --lanes && says err "--lanes needs a value" &&
        gives 1 "$lanes" --tcp pigeon && says err "pigeon" &&
        gives 1 "$lanes" --plugin /none && says err "/none is not there" &&
        gives 1 "$shares" --frob && says err "no option '--frob'" &&
        gives 1 "$shares" --rates 1X && says err '"1X"' &&
        gives 1 "$long" --windows 0x1M && says err '"0"' &&
        gives 1 "$long" --rounds x && says err "'x'" &&
        gives 0 "$lanes" --help && says out "--throttle PERCENT" &&
        gives 0 "$shares" --help && says out "--rates LIST"
}

below() { # below LIMIT VALUE WHAT: VALUE is a positive number, not above LIMIT
    awk -v limit="$1" -v value="$2" 'BEGIN { exit !(value > 0 && value <= limit) }' && return
    echo "$3: '$2', not above $1"
    return 1
}

# Lanes of 100 Mbit/s carry 3.1 of one while one is throttled, however the plugin shares out.
a_slow_lane_is_slow() { # a_slow_lane_is_slow WIRE
    gives 0 "$lanes" --rate 100 --rounds 1 --tcp "$1" || return
    below 106 "$(awk '/^  one full lane/ { print $7 }' "$scratch/out")" "one lane, Mbit/s" &&
        below 420 "$(awk '/^  4 full lanes/ { print $4 }' "$scratch/out")" "four lanes, Mbit/s" &&
        below 330 "$(awk '/^  4 lanes, one at 10/ { print $7 }' "$scratch/out")" \
            "four lanes with a slow one, Mbit/s" && return
    cat "$scratch/out"
    return 1
}

shares_are_of_the_wire() {
    gives 0 "$shares" --rates 100M --rounds 1 --streams 1 || return
    [ "$(grep -c '^0.1 Gbit/s, ' "$scratch/out")" = 4 ] || return
    # the medians of three sides
    awk '/^0.1 Gbit/ { for (c = 7; c <= 15; c += 4) if (!($c > 0 && $c <= 104)) exit 1 }' \
        "$scratch/out" && return
    cat "$scratch/out"
    return 1
}

# One stream of each side loses a packet in five: it has to show.
loss_is_of_one_stream() {
    gives 0 "$long" --rate 100M --rtt 2ms --loss 20% --rounds 1 --windows 8x128K -p \
        "holmes=$BUILD/plugin/libnccl-net-holmes.so,HOLMES_TCP=libfabric,HOLMES_LANES=4" || return
    [ "$(awk '/^8 x 128 KiB, / { print $6 }' "$scratch/out" | sort -u)" = 4194 ] || return
    clean=$(awk '/KiB, clean/ { print $11 }' "$scratch/out")
    lossy=$(awk '/KiB, lossy/ { print $11 }' "$scratch/out")
    below 104 "$clean" "plain streams, Mbit/s" && below "$clean" "$lossy" "the same with loss" && return
    cat "$scratch/out"
    return 1
}

unlinked() { # a user without namespaces: the script says so and nothing else
    gives 1 "$lanes" --rate 100 --rounds 1 && says err "may not make"
}

claim "bad input is one line that names it" names_what_is_wrong
if ! "$BUILD/bench/holmes-bench" sendrecv -b 8 -e 8 --rounds 1 --iters 1 --reference-streams 1 \
    --rtt 0ms >"$scratch/probe" 2>&1; then
    claim "without namespaces the reason is told" unlinked
    skip "lanes and shares over links" "this user may make no network namespaces"
    exit
fi
claim "one lane of four is throttled, libfabric" a_slow_lane_is_slow libfabric
claim "one lane of four is throttled, sockets" a_slow_lane_is_slow sockets
claim "one stream of a long link loses packets" loss_is_of_one_stream
claim "shares of the wire lie below it" shares_are_of_the_wire
