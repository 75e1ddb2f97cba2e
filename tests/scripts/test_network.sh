#!/bin/sh
# The demo's network: four hosts that reach each other, a slow link between the clusters and only
# there, and nothing left behind.
. "$(dirname "$0")/tap.sh"
. "$top/demo/net.sh"

# What the shells in the network know: speed FROM TO prints a plain TCP stream's Mbit/s.
cat >"$scratch/inside.sh" <<'EOF'
. "$top/demo/net.sh"
net_up || exit 1
speed() {
    net_on "$2" python3 "$top/demo/pathspeed.py" recv 5001 &
    net_on "$1" python3 "$top/demo/pathspeed.py" send "$(net_address "$2")" 5001
    wait $!
}
EOF

# in_network COMMANDS: a shell in a network of its own runs them.
in_network() {
    # shellcheck disable=SC2046 # a list of words
    top=$top timeout 60 $(net_isolation) sh -c ". '$scratch/inside.sh'; $1"
}

between() { # between LOW HIGH FROM TO
    mbit=$(in_network "speed $3 $4")
    [ "$mbit" -ge "$1" ] && [ "$mbit" -le "$2" ] && return
    echo "$3 to $4: $mbit Mbit/s, not $1 to $2"
    return 1
}

# Bounds that a busy machine keeps: above what the slow link could ever carry, and not above it.
inside_is_fast() { between 250 1000000 a0 a1 && between 250 1000000 b1 b0; }
across_is_slow() { between 50 200 a0 b1 && between 50 200 b0 a1; }

counters_tell() {
    # shellcheck disable=SC2016 # for the shell in the network
    in_network 'set -- $(net_uplink_bytes)
        speed a0 a1 >/dev/null
        set -- $1 $2 $(net_uplink_bytes)
        [ $(($3 - $1 + $4 - $2)) -lt 100000 ] || exit 1
        speed a0 b0 >/dev/null
        set -- $3 $4 $(net_uplink_bytes)
        [ $(($3 - $1)) -gt 10000000 ] && [ $(($4 - $2)) -lt 3000000 ]'
}

side_by_side() {
    between 250 1000000 a0 a1 >"$scratch/other" &
    between 250 1000000 a0 a1 && wait $! && return
    cat "$scratch/other"
    return 1
}

# A process that has made a network and waits with a child inside is ended from outside by SIGNAL.
leaves_nothing_after() {
    before=$(ip netns list 2>/dev/null)
    mkfifo "$scratch/up"
    cat >"$scratch/victim.sh" <<'EOF'
. "$top/demo/net.sh"
if [ -z "$inside" ]; then
    inside=1 $(net_isolation) sh "$0"
    exit
fi
net_up
net_on a0 sleep 61.0625 &
echo up >"$up"
wait
EOF
    inside='' top=$top up=$scratch/up sh "$scratch/victim.sh" &
    pid=$!
    read -r _ <"$scratch/up"
    rm "$scratch/up"
    kill "-$1" $pid
    wait $pid 2>/dev/null
    deadline=$(($(date +%s) + 5))
    while grep -qs '61[.]0625' /proc/[0-9]*/cmdline; do
        [ "$(date +%s)" -lt $deadline ] || { echo "the child lives on"; return 1; }
    done
    [ "$(ip netns list 2>/dev/null)" = "$before" ]
}

if ! net_isolation >/dev/null; then
    skip "the demo's network" "no network namespaces for this user"
    exit
fi
claim "hosts of one cluster reach each other fast" inside_is_fast
claim "hosts of different clusters share 200 Mbit/s" across_is_slow
claim "the slow link's counters see what crosses it and nothing else" counters_tell
claim "two networks exist side by side" side_by_side
claim "nothing is left after SIGKILL" leaves_nothing_after KILL
claim "nothing is left after SIGTERM" leaves_nothing_after TERM
