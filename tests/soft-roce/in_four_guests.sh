# shellcheck shell=sh
# Runs first in each guest of four-guests: brings its network up and hands over to the script.
#   sh in_four_guests.sh TOP SHARE RANK SCRIPT [ARGUMENT...]
# shellcheck disable=SC2034 # used by the script
top=$1 share=$2 rank=$3 script=$4
shift 4
. "$(dirname "$0")/inside.sh"
hopeless=$share/barriers/failed # one of the guests is done for

hosts="a0 a1 b0 b1"
host=$(hostname)
neighbour=${host%?}$((1 - ${host#?})) # at the other end of the RDMA cable

cable_address() { # cable_address HOST: on eth0
    case $1 in
    a*) echo "10.5.1.1${1#a}" ;;
    b*) echo "10.5.2.1${1#b}" ;;
    esac
}

plain_address() { # plain_address HOST: on eth1
    case $1 in
    a*) echo "10.7.0.1${1#a}" ;;
    b*) echo "10.7.0.2${1#b}" ;;
    esac
}

# Until all guests are at the barrier of this name.
barrier() { # barrier NAME [SECONDS]
    touch "$share/barriers/$1.$host"
    for other in $hosts; do
        await "${2:-120}" test -e "$share/barriers/$1.$other" || return 1
    done
}

answers() { # answers ADDRESS
    ping -q -c 1 -W 1 "$1" >/dev/null
}

network_up() {
    await 20 test -e /sys/class/net/eth1 || return 1
    ip addr add "$(cable_address "$host")/24" dev eth0 &&
        ip link set eth0 mtu 4200 up &&
        ip addr add "$(plain_address "$host")/24" dev eth1 &&
        ip link set eth1 mtu 9000 up &&
        roce_add rxe0 eth0 || return 1
    for other in $hosts; do
        await 200 answers "$(plain_address "$other")" || return 1
    done
    await 60 answers "$(cable_address "$neighbour")"
}

network_up || exit 1
barrier up || exit 1
# shellcheck source=/dev/null
. "$script"
