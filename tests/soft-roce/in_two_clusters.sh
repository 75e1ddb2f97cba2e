# shellcheck shell=sh
# The tests of test_four_guests.sh, sourced in each guest by in_four_guests.sh. All guests go through
# the same steps; a0 looks at what all of them left in the shared folder and makes the claims.
#   ... in_two_clusters.sh BUILD TEXT
# shellcheck disable=SC2154 # from in_four_guests.sh
build=$1 text=$2
plugin=$build/plugin/libnccl-net-holmes.so
[ "$host" != a0 ] || TAP_REPORT=$share/report
export TAP_REPORT
. "$(dirname "$0")/../scripts/tap.sh"

step() { # step NAME: all guests begin it together
    step=$share/$1
    mkdir -p "$step"
    barrier "$1" 200
}

peer() { # peer SECONDS WHAT...
    limit=$1
    shift
    timeout -k 5 "$limit" "$build/tests/soft-roce/peer" "$plugin" "$step" "$host" "$@" \
        >"$step/$host.out" 2>"$step/$host.log"
    echo $? >"$step/$host.rc"
}

step_done() { # on a0: the others have left everything
    barrier "$(basename "$step")-done" 200
}

# --- every pair -------------------------------------------------------------------------------

# wires HOSTS...: what both ends of each pair said, one line a pair: FROM TO wire, wire, reason,
# connect time in ms, and how many messages arrived intact.
wires() {
    for h in "$@"; do cat "$step/$h.out"; done | awk '
        { pair = $1 " " $2 }
        $4 == "connected" {
            at = match($0, /(tcp|verbs) over /)
            wire[pair, $3] = at ? substr($0, at, RLENGTH - 6) : "none"
            reason[pair, $3] = $0
            sub(/.* lanes?: /, "", reason[pair, $3])
            pairs[pair] = 1
        }
        $4 == "connected" && $3 == "send" { ms[pair] = $5 }
        $3 == "recv" && $4 == "moved" && / intact$/ { intact[pair]++ }
        END {
            for (p in pairs) {
                same = reason[p, "send"] == reason[p, "recv"] ? "" : "; the other end: " reason[p, "recv"]
                printf "%s %s %s %d %d %s%s\n", p, wire[p, "send"], wire[p, "recv"], ms[p],
                    intact[p], reason[p, "send"], same
            }
        }' | sort
}

# are_wires EXPECTED: lines of "FROM TO WIRE".
are_wires() {
    cat "$step/wires"
    echo "$1" | while read -r from to wire; do
        line=$(grep "^$from $to " "$step/wires") || { echo "$from $to: nothing"; return 1; }
        case $line in
        *"; the other end:"*) echo "the ends differ in the reason: $line" && return 1 ;;
        "$from $to $wire $wire "*) ;;
        *) echo "not $wire: $line" && return 1 ;;
        esac
    done
}

all_intact() { # 1 MiB and 64 MiB
    awk '$6 != 2 { bad = 1; print } END { exit bad || NR == 0 }' "$step/wires"
}

connected_within() { # connected_within MS
    awk -v limit="$1" '$5 > limit || $5 == 0 { bad = 1; print } END { exit bad || NR == 0 }' \
        "$step/wires"
}

two_clusters="a0 a1 verbs
a1 a0 verbs
b0 b1 verbs
b1 b0 verbs
a0 b0 tcp
a0 b1 tcp
a1 b0 tcp
a1 b1 tcp
b0 a0 tcp
b0 a1 tcp
b1 a0 tcp
b1 a1 tcp"

step pairs
peer 240 matrix a0,a1,b0,b1
step_done
if [ "$host" = a0 ]; then
    # shellcheck disable=SC2086 # words
    wires $hosts >"$step/wires"
    claim "verbs inside each cluster, tcp between them, and both ends say why" are_wires "$two_clusters"
    claim "each pair connects in under 5 s" connected_within 5000
    claim "1 MiB and 64 MiB arrive intact between each pair" all_intact
fi

# --- a host without RDMA ----------------------------------------------------------------------

[ "$host" != a1 ] || rdma link delete rxe0
step without
case $host in
a*) peer 120 matrix a0,a1 ;;
esac
step_done
if [ "$host" = a0 ]; then
    wires a0 a1 >"$step/wires"
    claim "a host without RDMA is reached over tcp, and both ends say why" are_wires "a0 a1 tcp
a1 a0 tcp"
    claim "it connects in under 5 s" connected_within 5000
    claim "1 MiB and 64 MiB arrive intact there and back" all_intact
fi
[ "$host" != a1 ] || roce_add rxe0 eth0

# --- training ---------------------------------------------------------------------------------

sent() { # sent INTERFACE: bytes that left through it
    cat "/sys/class/net/$1/statistics/tx_bytes"
}

train_rank() {
    set -- --rank "$rank" --world 4 --rendezvous "$(plain_address a0):29500" \
        --host-label "$host" --cluster "${host%?}" --placement planned
    [ "$rank" != 0 ] || set -- "$@" --serve --log "$step/job.jsonl"
    # shellcheck disable=SC2046 # words
    HOLMES_JOB_SECRET=0123456789abcdef timeout -k 5 200 "$build/trainer/holmes-train" \
        --data "$text" --plugin "$plugin" $(cat "$share/model") "$@" >"$step/$host.out" 2>&1
    echo $? >"$step/$host.rc"
}

all_ended_well() {
    for h in $hosts; do
        [ "$(cat "$step/$h.rc")" = 0 ] || {
            echo "$h ended with status $(cat "$step/$h.rc"):"
            tail -n 5 "$step/$h.out"
            return 1
        }
    done
}

# What the ranks' report and the interfaces' counters say: bytes sent, as dp_verbs=1234 and so on.
totals() {
    python3 "$top/tests/soft-roce/totals.py" "$step/job.jsonl"
    for interface in eth0 eth1; do
        sum=0
        for h in $hosts; do sum=$((sum + $(cat "$step/$h.$interface"))); done
        echo "$interface=$sum"
    done
}

total() { # total NAME
    sed -n "s/^$1=//p" "$step/totals"
}

gradients_on_verbs() {
    cat "$step/totals"
    [ "$(total dp_verbs)" -gt 1000000 ] && [ "$(total dp_tcp)" = 0 ]
}

activations_on_tcp() {
    cat "$step/totals"
    [ "$(total pp_tcp)" -gt 10000 ] && [ "$(total pp_verbs)" = 0 ]
}

# With room for headers, acknowledgements and handshakes, but far too little for the gradients.
interfaces_agree() {
    cat "$step/totals"
    [ "$(total eth0)" -ge "$(total dp_verbs)" ] && [ "$(total eth1)" -ge "$(total pp_tcp)" ] &&
        [ "$(total eth1)" -lt $(($(total pp_tcp) * 2 + 500000)) ] &&
        [ "$(total eth1)" -lt $(($(total dp_verbs) / 4)) ]
}

if [ -e "$share/model" ]; then
    step training
    eth0=$(sent eth0) eth1=$(sent eth1)
    train_rank
    echo $(($(sent eth0) - eth0)) >"$step/$host.eth0"
    echo $(($(sent eth1) - eth1)) >"$step/$host.eth1"
    step_done
    if [ "$host" = a0 ]; then
        claim "a job trains on the four hosts" all_ended_well
        totals >"$step/totals"
        claim "gradients and weights travel over verbs alone" gradients_on_verbs
        claim "activations travel over tcp alone" activations_on_tcp
        claim "the interfaces counted the same: no gradients between the clusters" interfaces_agree
    fi
fi

# --- links that fail --------------------------------------------------------------------------

# stream WHAT-HAPPENS: a0 sends to a1 without end; once it does, one of them makes it happen.
stream() {
    case $host in
    a*)
        peer 150 stream a0 a1 &
        await 100 test -e "$step/moving.$host" && "$1"
        wait $!
        ;;
    esac
    step_done
}

# ended HOST RESULTS MS: the host's stream, with one of the results, MS after its last message at most.
ended() {
    cat "$step/$1.out"
    # ... ended: result R after N messages, T ms after the last one, longest wait L ms
    awk -v results=" $2 " -v limit="$3" '
        / ended: result / && index(results, " " $6 " ") && $10 < limit { good = 1 }
        END { exit !good }' "$step/$1.out"
}

# As remote errors, within the retries' or the peer timeout's time, and some.
both_fail() {
    ended a0 6 30000 && ended a1 6 30000
}

owner_fails_too() { # who lost the device may call it an error of the host
    ended a0 6 30000 && ended a1 "2 6" 30000
}

waited() { # waited MS: the sender stood still for so long, and went on
    awk -v least="$1" '/ ended: result / && $(NF - 1) >= least { good = 1 } END { exit !good }' \
        "$step/a0.out"
}

# Nothing passes, and nobody is told.
short_outage() {
    if [ "$host" = a0 ]; then
        tc qdisc add dev eth0 root netem loss 100%
        sleep 1 # this is the outage
        tc qdisc del dev eth0 root
        touch "$step/stop"
    fi
}

# First the cable, so that the adapter has sent what it holds: a queue pair whose packets lie in the
# ring of an adapter that is down cannot be destroyed, and after 50 s the driver does it all the same
# and panics when they are freed (rxe_skb_tx_dtor, Linux 6.1).
long_outage() {
    if [ "$host" = a0 ]; then
        tc qdisc add dev eth0 root netem loss 100%
        await 20 nothing_leaves eth0
        ip link set eth0 down
    fi
}

nothing_leaves() { # nothing_leaves INTERFACE: for a tenth of a second
    was=$(sent "$1")
    sleep 0.1
    [ "$was" = "$(sent "$1")" ]
}

vanish() {
    [ "$host" != a1 ] || ip link delete bridge
}

survives_outage() {
    ended a0 0 60000 && ended a1 0 60000 && waited 900
}

step short-outage
stream short_outage
[ "$host" != a0 ] || claim "a link that carries nothing for a second is waited for" survives_outage

# About two seconds of retries.
export NCCL_IB_TIMEOUT=16 HOLMES_PEER_TIMEOUT=5
step long-outage
stream long_outage
[ "$host" != a0 ] || claim "a link that stays down is a remote error at both ends" both_fail
[ "$host" != a0 ] || { ip link set eth0 up && tc qdisc del dev eth0 root && await 20 roce_ready rxe0; }

# The interface below a1's device is one that can go for good.
if [ "$host" = a1 ]; then
    rdma link delete rxe0
    ip addr flush dev eth0
    ip link add bridge mtu 4200 type bridge
    ip link set eth0 master bridge
    ip addr add "$(cable_address a1)/24" dev bridge
    ip link set bridge up
    roce_add rxe0 bridge && await 30 answers "$(cable_address a0)"
fi
step vanished
stream vanish
[ "$host" != a0 ] || claim "a device that vanishes fails both ends, its peer with a remote error" owner_fails_too
failures=0 # they are in the report
