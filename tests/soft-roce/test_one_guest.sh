#!/bin/sh
# Test programs of other suites on the verbs wire, in guests with two RDMA devices: over a cable that
# loses nothing, and over worse ones. And those over TCP that want a kernel with netem.
#   test_one_guest.sh BUILD TRANSPORT PLUGIN MESSAGES TRAFFIC
#     lists of programs below BUILD/tests; MESSAGES is for bad cables, TRAFFIC for bad networks under TCP
# What the guests and the programs said stays in BUILD/soft-roce.
. "$(dirname "$0")/../scripts/tap.sh"
. "$(dirname "$0")/outside.sh"
build=$1 transport=$2 plugin=$3 messages=$4 traffic=$5
logs=$build/soft-roce

# over GUEST CABLE PROGRAMS NETEM...: more work for a guest.
over() {
    guest=$1 cable=$2 programs=$3
    shift 3
    mkdir -p "$logs/$guest"
    for program in $programs; do
        echo "$cable $program $*"
    done >>"$logs/$guest/plan"
}

start() { # start GUEST: sets $pid
    "$here/guest" -n "$1" -c 2 -m 384 -t 1500 -s "$logs/$1" -- \
        sh "$here/in_one_guest.sh" "$top" "$build" "$logs/$1" >"$logs/$1/output" 2>&1 &
    pid=$!
}

went_through() { # went_through GUEST PID: and has shown what failed
    wait "$2" || {
        echo "status $?"
        cat "$logs/$1/output"
        return 1
    }
}

# Takes over the cases that the guest's programs reported.
collect() { # collect GUEST
    for tap in "$logs/$1"/*/*.tap; do
        [ -e "$tap" ] || continue
        folder=$(dirname "$tap")
        program=$(basename "$tap" .tap)
        take_over "$tap" "$folder/${program%.*}.log" "$(basename "$folder" | tr _ ' '): "
    done
}

guests_or_skip "the verbs wire over two RDMA devices"
rm -rf "$logs/clean" "$logs/plugin" "$logs/bad"
over clean good_cable "$transport"
over plugin good_cable "$plugin"
if [ -x "$build/topology/holmes-topo" ]; then : >"$logs/clean/preflight"; fi
# Set-up, hundreds of times, over tcp: what worse cables do to it is tcp's affair, and takes its time.
# The guest that is done first does it.
over plugin one_percent_lost transport/test_conn loss 1%
over bad one_percent_lost "$messages" loss 1%
over bad five_percent_lost "$messages" loss 5%
over bad 2_ms_late "$messages" delay 2ms
over bad tcp_one_percent_lost "$traffic" loss 1%
over bad tcp_five_percent_doubled "$traffic" duplicate 5%
over bad tcp_out_of_order "$traffic" limit 10000 delay 1ms reorder 25% 50%
over bad tcp_20_ms_round_trip "$traffic" limit 10000 delay 10ms

# The guests with bad cables mostly wait.
start bad
bad=$pid
start clean
claim "a guest runs the transport's tests over a good cable" went_through clean $pid
start plugin
claim "a guest runs the plugin's tests over a good cable" went_through plugin $pid
claim "a guest runs the transport's tests over bad cables" went_through bad $bad
for guest in clean plugin bad; do collect $guest; done
