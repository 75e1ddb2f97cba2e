#!/bin/bash
# System calls and context switches for each message over the two wires for TCP and over a plain
# stream, whose ends block or poll. `bench/counts.sh --help`; docs/performance.md.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
build=${BUILD:-$top/build}
bench=$build/bench/holmes-bench
plugin=$build/plugin/libnccl-net-holmes.so

usage() {
    cat <<'EOT'
Usage: bench/counts.sh [OPTION...]

Runs `holmes-bench sendrecv` between two processes over loopback and counts their system calls by
`perf stat`, which the kernel must let us use (root, or kernel.perf_event_paranoid -1).

A figure is per message and taken from two runs, one with three times the messages of the other, so
that setting up does not count. "In vain" are calls that moved nothing: how many there are depends on
how long is waited for what, and so on the machine and whatever else it does. All others do not.

  --scale N    N times the messages of each run (1)
  --only TEXT  rows that contain TEXT, like 1M or libfabric
  --plugin P   of the two wires (build/plugin/libnccl-net-holmes.so)
EOT
}

fail() {
    printf 'counts: %s\n' "$*" >&2
    exit 1
}

scale=1 only=
while [ $# -gt 0 ]; do
    case $1 in
    --scale | --only | --plugin)
        [ $# -gt 1 ] || fail "$1 needs a value"
        case $1 in
        --scale) scale=$2 ;;
        --only) only=$2 ;;
        --plugin) plugin=$2 ;;
        esac
        shift
        ;;
    -h | --help) usage && exit ;;
    *) fail "no option '$1': --scale N, --only TEXT and --plugin P are right" ;;
    esac
    shift
done
case $scale in
'' | *[!0-9]* | 0*) fail "--scale '$scale': a whole number from 1 is right" ;;
esac
[ -x "$bench" ] || fail "no $bench: build first (meson setup build && ninja -C build)"
perf stat -e syscalls:sys_exit_read true 2>/dev/null ||
    fail "perf cannot count system calls: install it, be root, and see that tracefs is there"

# Kind of each call. What the kernel took or gave counts as moved, anything else as in vain; a yield
# moves nothing and is of no kind with the others.
calls="sendto:send sendmsg:send writev:send recvfrom:receive recvmsg:receive readv:receive
epoll_wait:ready poll:ready ppoll:ready read:wake write:wake futex:futex epoll_ctl:watch
io_uring_enter:uring sched_yield:yield nanosleep:sleep clock_nanosleep:sleep"

events=()
for call in $calls; do
    for filter in 'ret > 0' 'ret <= 0'; do
        events+=(-e "syscalls:sys_exit_${call%:*}" --filter "$filter")
    done
done

# "KIND moved|vain NUMBER" for each kind, of one run of holmes-bench with these arguments.
count() {
    local file
    file=$(mktemp)
    perf stat -x, -o "$file" -e context-switches "${events[@]}" \
        "$bench" sendrecv --no-check --rounds 1 "$@" >/dev/null 2>&1 || {
        rm -f "$file"
        fail "holmes-bench sendrecv $* failed"
    }
    awk -F, -v calls="$calls" '
        BEGIN { n = split(calls, c, " "); for (i = 1; i <= n; i++) { split(c[i], p, ":"); kind[p[1]] = p[2] } }
        /context-switches/ { print "switch", "moved", $1 }
        /sys_exit_/ {
            name = $3; sub(/.*sys_exit_/, "", name)
            seen[name]++
            sum[kind[name] " " (seen[name] == 1 ? "moved" : "vain")] += $1
        }
        END { for (k in sum) print k, sum[k] }' "$file"
    rm -f "$file"
}

# Row: what is measured, its size, messages of the short run, who.
row() {
    local what=$1 size=$2 n=$(($3 * scale)) who=$4 args per
    case "$what $size $who" in
    *"$only"*) ;;
    *) return ;;
    esac
    args=(--measure "$what" -b "$size" -e "$size")
    case $who in
    blocking) args+=(--reference-streams 1 --reference-threads streams) ;;
    polling) args+=(--reference-streams 1 --reference-threads 1) ;;
    *) args+=(--no-reference -p "$who=$plugin,HOLMES_TCP=$who,HOLMES_LANES=1") ;;
    esac
    # A fifth more is sent before the clock starts; a round trip is two messages.
    per=$(awk -v n="$n" -v what="$what" 'BEGIN { print 1.2 * n * (what == "latency" ? 2 : 1) }')
    {
        count "${args[@]}" --iters "$n" | sed 's/^/short /'
        count "${args[@]}" --iters $((3 * n)) | sed 's/^/long /'
    } | awk -v what="$what" -v size="$size" -v who="$who" -v per="$per" '
        $1 == "short" { short[$2 " " $3] = $4 }
        $1 == "long" { long[$2 " " $3] = $4 }
        function each(k) { return (long[k] - short[k]) / (2 * per) }
        function all(k) { return long[k] / (3 * per) }
        function total() {
            return each("send moved") + each("receive moved") + each("ready moved") + \
                each("wake moved") + each("futex moved") + each("futex vain") + \
                each("watch moved") + each("watch vain") + each("uring moved") + each("uring vain")
        }
        # Below a call in two hundred messages nothing is there but noise.
        function fig(x) { return x < 0.005 ? "-" : sprintf("%.2f", x) }
        END {
            print what, size, who, fig(total()), fig(each("send moved")), fig(each("receive moved")),
                fig(each("ready moved")), fig(each("wake moved")),
                fig(each("futex moved") + each("futex vain")),
                fig(all("send vain")), fig(all("receive vain")), fig(all("ready vain")),
                fig(all("yield vain") + all("yield moved")), fig(all("switch moved"))
        }'
}

sides="blocking polling libfabric sockets"
{
    echo "measure size over all send receive ready wake futex send: receive: ready: yield switches"
    for who in $sides; do row latency 8 5000 "$who"; done
    for who in $sides; do row latency 64K 2000 "$who"; done
    for who in $sides; do row bandwidth 64K 4000 "$who"; done
    for who in $sides; do row bandwidth 1M 600 "$who"; done
    for who in $sides; do row bandwidth 16M 40 "$who"; done
} | column -t
echo
echo "Calls per message that moved something: all, and by kind (ready: epoll_wait or poll that reported;"
echo "wake: read or write on a descriptor that wakes). With a colon: in vain. Then context switches."
