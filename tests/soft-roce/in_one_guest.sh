# shellcheck shell=sh
# Runs in the guest of test_one_guest.sh: takes each line of the plan, makes the cable as it says and
# runs one test program over it. Reports and output go to the shared folder.
#   sh in_one_guest.sh TOP BUILD SHARE
# A line of SHARE/plan: name of the cable, test program (with ":PATTERN" only those of its tests), what
# netem does to the cable. Cables named tcp_* are the loopback, for tests over TCP.
top=$1 build=$2 share=$3
. "$(dirname "$0")/inside.sh"

# Whether the rig itself carries RDMA, seen without Holmes.
pingpong() {
    timeout 60 ibv_rc_pingpong -d rxe_v1 -g "$(roce_gid rxe_v1)" -n 100 >"$share/pingpong" 2>&1 &
    server=$!
    await 20 is_listening 18515 &&
        timeout 60 ibv_rc_pingpong -d rxe_v0 -g "$(roce_gid rxe_v0)" -n 100 127.0.0.1 \
            >>"$share/pingpong" 2>&1 && wait $server
}

# netem takes what it is given for one packet, so that no larger ones than Ethernet's may come.
tcp_cable() { # tcp_cable NETEM...
    tc qdisc del dev lo root 2>/dev/null
    ip link set lo mtu 1500 gso_max_segs 1 && tc qdisc add dev lo root netem "$@"
}

# Criterion plans and tells of those that a pattern left out, too; who skips himself says why.
leave_out() { # leave_out TAP
    awk '/# SKIP test was skipped$/ { out++; next }
        { line[++n] = $0 }
        END {
            for (i = 1; i <= n; i++) {
                if (line[i] ~ /^1\.\.[0-9]+$/) line[i] = "1.." substr(line[i], 4) - out
                print line[i]
            }
        }' "$1" >"$1.kept" && mv "$1.kept" "$1"
}

# One test program over the present cable.
run() { # run PROGRAM[:PATTERN]
    devices=rxe_v0,rxe_v1 only=''
    case $cable in tcp_*) devices='' ;; esac
    case $1 in *:*) only=--filter=${1#*:} ;; esac
    TEST_RECORDS=$share/$cable HOLMES_TEST_VERBS=$devices timeout -k 5 600 \
        "$top/tools/test-record" "$build/tests/${1%%:*}" ${only:+"$only"}
    [ -z "$only" ] || leave_out "$share/$cable/$(basename "${1%%:*}")".*.tap
}

# holmes-topo check between the two ports, as if they were two hosts.
preflight() {
    roce_cable || return
    timeout -k 5 200 "$build/topology/holmes-topo" check --hosts v0,v1 \
        --launcher 'env NCCL_IB_HCA==rxe_{host}' >"$share/good_cable/preflight.log" 2>&1 &&
        grep -q '^verbs .* v0 - v1 .*: probe passed' "$share/good_cable/preflight.log"
}

change_cable() { # change_cable NAME NETEM...
    cable=$1
    shift
    mkdir -p "$share/$cable"
    case $cable in tcp_*)
        tcp_cable "$@"
        return
        ;;
    esac
    roce_cable "$@" || return
    [ $# = 0 ] || return 0 # pingpong's last acknowledgement may get lost
    if pingpong; then
        echo "ok - the cable carries RDMA without Holmes"
    else
        cp "$share/pingpong" "$share/$cable/cable.log"
        echo "not ok - the cable carries RDMA without Holmes"
    fi >"$share/$cable/cable.tap"
}

roce_pair || exit 1
export HOLMES_TEST_PATIENCE=8 # emulation is slow enough when the machine is not shared
export TEST_NETEM=1 # the bench's links must not do without
export NCCL_IB_TIMEOUT=14 # a lost packet goes out again after 67 ms; NCCL's default waits for 4 s
cable=''
while read -r name program netem; do
    # shellcheck disable=SC2086 # words
    [ "$name" = "$cable" ] || change_cable "$name" $netem || exit 1
    read -r now _ </proc/uptime
    echo "$now $name $program"
    # its failures are in the report
    run "$program" </dev/null >"$share/$name/$(basename "${program%%:*}").log" 2>&1 || :
done <"$share/plan"
if [ -e "$share/preflight" ]; then
    not=''
    mkdir -p "$share/good_cable"
    preflight || not='not '
    echo "${not}ok - holmes-topo check proves RDMA between two ports" >"$share/good_cable/preflight.tap"
fi
