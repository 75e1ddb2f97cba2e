#!/bin/bash
# test_discover.sh TOPO: discover as a program: what it shows of recorded machines, what it writes,
# that NCCL's variables count, and what it says of bad input.
. "$(dirname "$0")/tap.sh"
topo=$1
data=$top/tests/data
unset NCCL_IB_HCA NCCL_IB_GID_INDEX NCCL_IB_DISABLE NCCL_SOCKET_IFNAME NCCL_SOCKET_FAMILY

roce=$scratch/roce
ib=$scratch/ib
"$data/hosts/tree.py" "$data/hosts/roce-h100.table" 1 "$roce" || exit 1
"$data/hosts/tree.py" "$data/hosts/ib-h100.table" 1 "$ib" || exit 1

shows_tables() {
    gives 0 "$topo" discover --sysfs-root "$roce" &&
        says out "b1 (recorded), 2048 GiB: 13 NICs, 12 RDMA ports of which 8 used, 8 GPUs" &&
        says out "3 v2-ipv4  rail0   0000:19:00.0     0  yes (not opened)" &&
        says out "its GID table is empty" &&
        says out "loopback; there is ethernet" &&
        says out "NVIDIA H100 80GB HBM3   80" &&
        says out "mlx5_0   PIX   NODE"
}

explains() {
    gives 0 "$topo" discover --sysfs-root "$roce" --explain &&
        says out "mlx5_0:1       3  RoCE v2  ::ffff:10.2.0.1" &&
        says out "  7  mlx5_11" && says out "PIX at most one PCIe switch"
}

counts_variables() {
    NCCL_IB_HCA=^mlx5_3 gives 0 "$topo" discover --sysfs-root "$roce" &&
        says out "excluded by NCCL_IB_HCA" && says out "of which 7 used" &&
        NCCL_IB_GID_INDEX=1 gives 0 "$topo" discover --sysfs-root "$roce" &&
        says out "GID 1 fe80::" &&
        NCCL_IB_DISABLE=1 gives 0 "$topo" discover --sysfs-root "$roce" &&
        says out "of which 0 used" && says out "NCCL_IB_DISABLE is set" &&
        NCCL_SOCKET_IFNAME=eth gives 0 "$topo" discover --sysfs-root "$roce" &&
        says out "named in NCCL_SOCKET_IFNAME" &&
        NCCL_IB_HCA=mlx5_77 gives 2 "$topo" discover --sysfs-root "$roce" && says err "mlx5_77" &&
        NCCL_SOCKET_IFNAME=eth9 gives 2 "$topo" discover --sysfs-root "$roce" && says err "eth9"
}

json_comes_back() {
    gives 0 "$topo" discover --sysfs-root "$ib" --json && cp "$scratch/out" "$scratch/a.json" &&
        gives 0 "$topo" discover --from "$scratch/a.json" --json &&
        cmp "$scratch/out" "$scratch/a.json" &&
        gives 0 "$topo" discover --from "$scratch/a.json" && cp "$scratch/out" "$scratch/tables" &&
        gives 0 "$topo" discover --sysfs-root "$ib" && cmp "$scratch/out" "$scratch/tables"
}

nccl_comes_back() {
    gives 0 "$topo" discover --sysfs-root "$ib" --nccl-xml "$scratch/t.xml" &&
        says out "8 GPUs" &&
        gives 0 "$topo" discover --from "$scratch/t.xml" --nccl-xml - &&
        head -1 "$scratch/out" | grep -qx '<system version="1">' &&
        cmp "$scratch/out" "$scratch/t.xml"
}

this_machine() {
    gives 0 "$topo" discover && says out "(live)" && says out "loopback" &&
        gives 0 "$topo" discover --sysfs-root / --json && says out '"source": "live"'
}

refuses() { # refuses TEXT ARGUMENT...
    text=$1
    shift
    gives 2 "$topo" discover "$@" && says err "$text"
}

bad_input() {
    printf '<system version="1">\n<cpu numaid="0">\n<pci busid="x"/></cpu></system>\n' \
        >"$scratch/bad.xml"
    refuses "one machine at a time" --from a --sysfs-root b &&
        refuses "takes options only" b1 &&
        refuses "unrecognized option" --colour &&
        refuses "the output takes one of them" --json --nccl-xml - &&
        refuses "/nonexistent: No such file" --from /nonexistent &&
        refuses "/nonexistent: No such file" --sysfs-root /nonexistent &&
        refuses "holds no recorded machine" --sysfs-root "$data/hosts" &&
        refuses 'bad.xml:3: <pci busid="x">' --from "$scratch/bad.xml" &&
        gives 1 "$topo" discover --sysfs-root "$ib" --nccl-xml /nonexistent/x &&
        says err "/nonexistent/x: No such file"
}

full_disk() {
    [ -w /dev/full ] || return 0
    "$topo" discover --sysfs-root "$ib" >/dev/full 2>"$scratch/err"
    [ $? = 1 ] && says err "cannot be written"
}

claim "discover shows ports, interfaces, GPUs and distances" shows_tables
claim "--explain adds GIDs, order and words" explains
claim "NCCL's variables count as in the plugin" counts_variables
claim "what --json writes --from reads, and shows the same" json_comes_back
claim "what --nccl-xml writes --from reads" nccl_comes_back
claim "this machine is shown" this_machine
claim "bad input is refused with status 2 and its name" bad_input
claim "output that cannot be written is a failure" full_disk
