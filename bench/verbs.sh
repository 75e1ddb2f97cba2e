#!/bin/sh
# Holmes beside perftest and beside bare queue pairs, in turns in one guest with two soft-RoCE
# devices (tests/soft-roce): 1 MiB messages for bandwidth, 8 bytes for latency. Prints a table with
# each one's median, and the plugin's ratios to the others, round by round: median, least and most.
#   bench/verbs.sh [-p LABEL=PLUGIN]... [BUILD [ROUNDS]]    default: build 7
#     -p  one more plugin beside BUILD's: an older build, to see what has changed since
# Absolute figures say nothing of any network: the guest is emulated. Ratios do, on a quiet machine.
set -eu
here=$PWD # paths in options are the user's
cd "$(dirname "$0")/.."
top=$PWD

# --- in the guest -----------------------------------------------------------------------------

latency_messages=1000
stream_messages=200

bench() { # bench BACKEND lat|bw SIZE COUNT [PLUGIN]
    "$build/bench/holmes-verbs-bench" "$1" "$2" rxe_v0,rxe_v1 "$3" "$4" "$(roce_gid rxe_v0)" "${5-}"
}

perftest() { # perftest PROGRAM SIZE COUNT COLUMN
    timeout 60 "$1" -d rxe_v1 -x "$(roce_gid rxe_v1)" -s "$2" -n "$3" -F >/dev/null 2>&1 &
    server=$!
    await 20 is_listening 18515
    timeout 60 "$1" -d rxe_v0 -x "$(roce_gid rxe_v0)" -s "$2" -n "$3" -F 127.0.0.1 |
        awk -v size="$2" -v column="$4" '$1 == size { print $column }'
    wait $server
}

measure() { # measure ROUNDS LABEL=PLUGIN...: lines of: name value
    rounds=$1
    shift
    for _ in $(seq "$rounds"); do
        echo "bw-perftest $(perftest ib_write_bw 1048576 $stream_messages 4)"
        echo "bw-bare $(bench bare bw 1048576 $stream_messages)"
        for plugin in "$@"; do
            echo "bw-${plugin%%=*} $(bench plugin bw 1048576 $stream_messages "${plugin#*=}")"
        done
        echo "lat-perftest $(perftest ib_write_lat 8 $latency_messages 5)"
        echo "lat-bare $(bench bare lat 8 $latency_messages)"
        for plugin in "$@"; do
            echo "lat-${plugin%%=*} $(bench plugin lat 8 $latency_messages "${plugin#*=}")"
        done
        # none comes first in every round
        first=$1
        shift
        set -- "$@" "$first"
    done
}

if [ "${1-}" = --inside ]; then
    build=$2
    shift 2
    . "$top/tests/soft-roce/inside.sh"
    roce_pair
    measure "$@"
    exit
fi

# --- outside ----------------------------------------------------------------------------------

table() { # table LABEL...
    awk -v labels="$*" '
    { value[$1, ++n[$1]] = $2 }
    function sorted(a, count,    i, j, t) {
        for (i = 2; i <= count; i++)
            for (j = i; j > 1 && a[j - 1] > a[j]; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
    }
    function median(name,    a, i) {
        for (i = 1; i <= n[name]; i++) a[i] = value[name, i]
        sorted(a, n[name])
        return a[int((n[name] + 1) / 2)]
    }
    function ratio(name, to,    a, i, rounds) {
        rounds = n[name] < n[to] ? n[name] : n[to]
        for (i = 1; i <= rounds; i++) a[i] = value[name, i] / value[to, i]
        sorted(a, rounds)
        return sprintf("%.2f  (%.2f to %.2f)", a[int((rounds + 1) / 2)], a[1], a[rounds])
    }
    function row(what, unit, key, tool,    i) {
        printf "%s, %s:\n", what, unit
        printf "  %-14s %10.2f\n", tool, median(key "-perftest")
        printf "  %-14s %10.2f   x %s of %s\n", "bare", median(key "-bare"),
            ratio(key "-bare", key "-perftest"), tool
        printf "  %-14s %10.2f   x %s of %s\n", "plugin", median(key "-plugin"),
            ratio(key "-plugin", key "-perftest"), tool
        printf "  %-14s %10s   x %s of bare\n", "", "", ratio(key "-plugin", key "-bare")
        for (i = 1; i <= nlabels; i++) {
            printf "  %-14s %10.2f\n", label[i], median(key "-" label[i])
            printf "  %-14s %10s   x %s of %s\n", "plugin", "", ratio(key "-plugin", key "-" label[i]), label[i]
        }
    }
    END {
        nlabels = split(labels, label, " ")
        row("1 MiB messages", "MiB/s", "bw", "ib_write_bw")
        row("8 bytes, half a round trip", "us", "lat", "ib_write_lat")
        printf "%d rounds\n", n["lat-plugin"]
    }'
}

usage() {
    sed -n '5,6s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

labels='' plugins=''
while getopts p: option; do
    case $option:${OPTARG-} in
    *[[:space:]]*) usage ;; # they become words
    p:?*=?*) label=${OPTARG%%=*} plugin=${OPTARG#*=} ;;
    *) usage ;;
    esac
    plugin=$(cd "$here" && realpath -e "$plugin")
    labels="$labels $label" plugins="$plugins $label=$plugin"
done
shift $((OPTIND - 1))
build=$(cd "${1-build}" && pwd)
rounds=${2-7}
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
# shellcheck disable=SC2086 # words
tests/soft-roce/guest -c 2 -m 512 -t $((120 + rounds * 90)) -s "$results" -- \
    "$top/bench/verbs.sh" --inside "$build" "$rounds" \
    "plugin=$build/plugin/libnccl-net-holmes.so" $plugins | tee "$results/values" >&2
# shellcheck disable=SC2086
table $labels <"$results/values"
