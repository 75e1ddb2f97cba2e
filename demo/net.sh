# shellcheck shell=sh
# Sourced by demo.sh: two clusters of two hosts as network namespaces, and the slow link between.
#
#     a0 --\                                          /-- b0
#           switch-a [uplink]== 200 Mbit/s ==[uplink] switch-b       10.77.0.0/24
#     a1 --/                                          \-- b1
#
# All of it lives in network, mount and process namespaces of its own (net_isolation), so the kernel
# takes everything away when the script ends, however it ends, and parallel runs never meet.

net_hosts="a0 a1 b0 b1"
net_mbit=200 # of the slow link, each way

# Prints the command that gives another such namespaces and ends it when its parent ends; fails where
# that is not allowed. Without root a user namespace gives root's rights over what is made inside.
net_isolation() {
    for user in '' '--map-root-user '; do
        isolation="setpriv --pdeathsig KILL unshare $user--net --mount --pid --fork --kill-child"
        # shellcheck disable=SC2086 # a list of words
        if $isolation --mount-proc true 2>/dev/null; then
            echo "$isolation --mount-proc"
            return 0
        fi
    done
    return 1
}

net_address() { # net_address HOST
    case $1 in
    a*) echo "10.77.0.1${1#a}" ;;
    b*) echo "10.77.0.2${1#b}" ;;
    esac
}

net_up() {
    mount -t tmpfs tmpfs /run && mkdir /run/netns || return 1
    for cluster in a b; do
        ip netns add switch-$cluster || return 1
        ip -n switch-$cluster link add lan type bridge || return 1
        ip -n switch-$cluster link set lan up
    done
    for host in $net_hosts; do
        switch=switch-${host%?}
        ip netns add "$host" &&
            ip -n "$switch" link add "$host" type veth peer name eth0 netns "$host" &&
            ip -n "$switch" link set "$host" master lan up &&
            ip -n "$host" address add "$(net_address "$host")/24" dev eth0 &&
            ip -n "$host" link set lo up &&
            ip -n "$host" link set eth0 up || return 1
    done
    ip -n switch-a link add uplink type veth peer name uplink netns switch-b || return 1
    for cluster in a b; do
        ip -n switch-$cluster link set uplink master lan up &&
            tc -n switch-$cluster qdisc add dev uplink root \
                tbf rate "${net_mbit}mbit" burst 64kb latency 5ms || return 1
    done
}

# Bytes that the kernel has sent over the slow link so far, frame headers included: A to B, B to A.
net_uplink_bytes() {
    for cluster in a b; do
        ip netns exec switch-$cluster cat /sys/class/net/uplink/statistics/tx_bytes
    done
}

net_on() { # net_on HOST COMMAND...
    ip netns exec "$@"
}
