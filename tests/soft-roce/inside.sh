# shellcheck shell=sh
# Sourced by what runs inside the guests: RDMA devices, and waiting for them.

await() { # await SECONDS COMMAND...: until it succeeds, or the file $hopeless exists
    awaited=$1
    shift
    deadline=$(($(date +%s) + awaited))
    until "$@"; do
        [ ! -e "${hopeless-}" ] || return 1
        [ "$(date +%s)" -lt $deadline ] || {
            echo "not within $awaited s: $*" >&2
            return 1
        }
        sleep 0.1
    done
}

# The index of the GID that is made from the interface's IPv4 address.
roce_gid() { # roce_gid DEVICE
    for file in /sys/class/infiniband/"$1"/ports/1/gids/*; do
        case $(cat "$file") in
        0000:0000:0000:0000:0000:ffff:*) basename "$file" && return ;;
        esac
    done
    return 1
}

roce_ready() { # roce_ready DEVICE: active, with that GID
    grep -q ACTIVE "/sys/class/infiniband/$1/ports/1/state" && roce_gid "$1" >/dev/null
}

# The kernel adds GIDs after the command has returned.
roce_add() { # roce_add DEVICE INTERFACE
    rdma link add "$1" type rxe netdev "$2" && await 20 roce_ready "$1"
}

setting() { # setting NAME VALUE: of net/ipv4/conf
    echo "$2" >"/proc/sys/net/ipv4/conf/$1"
}

# Two interfaces v0 and v1, the ends of one cable, with 10.2.0.1 and 10.2.0.2, and RDMA devices rxe_v0
# and rxe_v1 on them. A host sends what goes to an address of its own through `lo`, where there is no
# such device, so the table of own addresses is asked for arriving packets first, and for others only
# after rules that send from one end to the other over the cable.
roce_pair() {
    ip link add v0 type veth peer name v1 || return 1
    setting all/rp_filter 0
    for i in 0 1; do
        setting v$i/rp_filter 0
        setting v$i/accept_local 1
        setting v$i/arp_ignore 1
        setting v$i/arp_announce 2
        ip addr add 10.2.0.$((i + 1))/24 dev v$i
        # room for RDMA's largest packets, 4096 bytes
        ip link set v$i mtu 4200 up
        ip route add 10.2.0.$((2 - i)) dev v$i table 10$i
        ip rule add pref $((i + 1)) iif v$i lookup local
        ip rule add pref $((i + 3)) from 10.2.0.$((i + 1)) to 10.2.0.$((2 - i)) lookup 10$i
    done
    ip rule add pref 9 lookup local && ip rule del pref 0 || return 1
    roce_add rxe_v0 v0 && roce_add rxe_v1 v1 &&
        await 20 ping -q -c 1 -W 1 -I 10.2.0.1 10.2.0.2 >/dev/null
}

roce_cable() { # roce_cable NETEM...: what the cable does to packets, both ways; without: nothing
    for i in 0 1; do
        tc qdisc del dev v$i root 2>/dev/null
        [ $# = 0 ] || tc qdisc add dev v$i root netem "$@" || return 1
    done
}

is_listening() { # is_listening PORT: some TCP socket of this host
    ss -Hltn "sport = :$1" | grep -q .
}
