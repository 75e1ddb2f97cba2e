#!/usr/bin/env python3
"""Builds the tree of a recorded machine from a short table.

usage: tree.py TABLE NUMBER OUT

TABLE describes a kind of machine, NUMBER (1 to 200) which of them: {n} in the table stands for it,
{x} for it in two hexadecimal digits. OUT is the folder to make; it must not exist. It then holds
sys/, proc/, etc/hostname and ip-addr.json, as `holmes-topo discover --sysfs-root OUT` reads them.

Lines of a table, words as in a shell, '#' begins a comment:
  host NAME
  numa N cpumap=MAP memory_gib=G [vendor=V family=F model=M]
  unit BUS numa=N link="32.0 GT/s PCIe"     a root port with a switch of two devices, on three buses
       gpu=VENDOR:DEVICE model="..."        first device, a GPU
       nic=VENDOR:DEVICE class=0x020700 rdma=DEVICE [netdev=NAME]    second device
  card BUS numa=N nic=VENDOR:DEVICE [class=...] [rdma=DEVICE] [netdev=NAME]    a device at a root port
  netif NAME speed=MBPS [state=down] [addr=A/L]... [bond=NAME,NAME]
  port DEVICE link=InfiniBand|Ethernet rate="400 Gb/sec (4X NDR)" guid=0x... [lid=N]
       [gid=INDEX,TYPE,GID,NETDEV]...       TYPE: ib, v1, v2; a table of four with the others zero
"""
import ipaddress
import json
import os
import shlex
import sys

out = ""
addresses = {}
ndev_of = {}
cpumap = {}


def write(path, text):
    full = os.path.join(out, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "w", encoding="utf-8") as f:
        f.write(text + "\n")


def link(path, target):
    """`path` points at `target`, both below the tree."""
    full = os.path.join(out, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    os.symlink(os.path.relpath(os.path.join(out, target), os.path.dirname(full)), full)


def config_space(ids, pci_class, address, below):
    """Its first 64 bytes, which have the buses of a bridge."""
    vendor, device = ids.split(":")
    number = int(pci_class, 16)
    config = bytearray(64)
    config[0:4] = int(vendor, 16).to_bytes(2, "little") + int(device, 16).to_bytes(2, "little")
    config[9:12] = number.to_bytes(3, "little")
    if below:
        config[14] = 1
        config[24:27] = [int(address[5:7], 16), below[0], below[1]]
    return bytes(config)


def function(parent, address, o, ids, pci_class, below=None):
    """A PCI function; `below`: the first and last bus below a bridge."""
    where = f"{parent}/{address}"
    vendor, device = ids.split(":")
    write(f"{where}/class", pci_class)
    write(f"{where}/vendor", f"0x{vendor}")
    write(f"{where}/device", f"0x{device}")
    write(f"{where}/numa_node", o["numa"])
    write(f"{where}/max_link_speed", o.get("link", "16.0 GT/s PCIe"))
    write(f"{where}/max_link_width", "16")
    write(f"{where}/local_cpus", cpumap[o["numa"]])
    with open(os.path.join(out, where, "config"), "wb") as f:
        f.write(config_space(ids, pci_class, address, below))
    link(f"sys/bus/pci/devices/{address}", where)
    return where


def devices_of(where, o):
    if "rdma" in o:
        folder = f"{where}/infiniband/{o['rdma']}"
        write(f"{folder}/node_type", "1: CA")
        link(f"{folder}/device", where)
        link(f"sys/class/infiniband/{o['rdma']}", folder)
    if "netdev" in o:
        ndev_of[o["netdev"]] = where


def gpu(parent, address, o):
    where = function(parent, address, o, o["gpu"], "0x030200")
    os.makedirs(os.path.join(out, "sys/bus/pci/drivers/nvidia"), exist_ok=True)
    link(f"{where}/driver", "sys/bus/pci/drivers/nvidia")
    write(f"proc/driver/nvidia/gpus/{address}/information", f"Model: \t\t {o['model']}")


def unit(bus, o):
    b = int(bus, 16)
    port = function(f"sys/devices/pci0000:{b:02x}", f"0000:{b:02x}:01.0", o, "8086:352a",
                    "0x060400", (b + 1, b + 4))
    up = function(port, f"0000:{b + 1:02x}:00.0", o, "1000:c030", "0x060400", (b + 2, b + 4))
    for slot, what in enumerate(["gpu", "nic"]):
        down = function(up, f"0000:{b + 2:02x}:{slot:02x}.0", o, "1000:c030", "0x060400",
                        (b + 3 + slot, b + 3 + slot))
        address = f"0000:{b + 3 + slot:02x}:00.0"
        if what == "gpu":
            gpu(down, address, o)
        else:
            devices_of(function(down, address, o, o["nic"], o.get("class", "0x020000")), o)


def card(bus, o):
    b = int(bus, 16)
    port = function(f"sys/devices/pci0000:{b:02x}", f"0000:{b:02x}:01.0", o, "8086:352b",
                    "0x060400", (b + 1, b + 1))
    where = function(port, f"0000:{b + 1:02x}:00.0", o, o["nic"], o.get("class", "0x020000"))
    devices_of(where, o)


def netif(name, o, lists):
    parent = ndev_of.get(name)
    where = f"{parent}/net/{name}" if parent else f"sys/devices/virtual/net/{name}"
    up = o.get("state", "up") == "up"
    number = 2 + len(addresses)
    write(f"{where}/flags", "0x9" if name == "lo" else "0x1003" if up else "0x1002")
    write(f"{where}/operstate", "unknown" if name == "lo" else "up" if up else "down")
    write(f"{where}/type", "772" if name == "lo" else "1")
    write(f"{where}/ifindex", str(number))
    write(f"{where}/iflink", str(number))
    if up and "speed" in o:
        write(f"{where}/speed", o["speed"])
    write(f"{where}/uevent", ("DEVTYPE=bond\n" if "bond" in o else "") + f"INTERFACE={name}")
    if parent:
        link(f"{where}/device", parent)
    for lower in o.get("bond", "").split(",") if "bond" in o else []:
        link(f"{where}/lower_{lower}", f"{ndev_of[lower]}/net/{lower}")
    link(f"sys/class/net/{name}", where)
    addresses[name] = [
        {"family": "inet6" if ":" in a else "inet", "local": a.split("/")[0],
         "prefixlen": int(a.split("/")[1])} for a in lists.get("addr", [])]


def groups(number, n):
    digits = f"{number:0{4 * n}x}"
    return ":".join(digits[i:i + 4] for i in range(0, len(digits), 4))


def port(device, o, lists):
    folder = f"sys/class/infiniband/{device}"
    write(f"{folder}/node_guid", groups(int(o["guid"], 16), 4))
    write(f"{folder}/sys_image_guid", groups(int(o["guid"], 16), 4))
    at = f"{folder}/ports/1"
    write(f"{at}/state", "4: ACTIVE")
    write(f"{at}/phys_state", "5: LinkUp")
    write(f"{at}/link_layer", o["link"])
    write(f"{at}/rate", o["rate"])
    write(f"{at}/lid", hex(int(o.get("lid", "0"))))
    gids = {int(g.split(",")[0]): g.split(",") for g in lists.get("gid", [])}
    for i in range(max([4] + [i + 1 for i in gids])):
        gid = int(ipaddress.IPv6Address(gids[i][2])) if i in gids else 0
        write(f"{at}/gids/{i}", groups(gid, 8))
        if i in gids:
            write(f"{at}/gid_attrs/types/{i}", "RoCE v2" if gids[i][1] == "v2" else "IB/RoCE v1")
            if len(gids[i]) > 3:
                write(f"{at}/gid_attrs/ndevs/{i}", gids[i][3])


def numa(node, o):
    cpumap[node] = o["cpumap"]
    kib = int(float(o["memory_gib"]) * (1 << 20))
    write(f"sys/devices/system/node/node{node}/cpumap", o["cpumap"])
    write(f"sys/devices/system/node/node{node}/meminfo", f"Node {node} MemTotal:  {kib} kB")
    if "vendor" in o:
        write("proc/cpuinfo", f"processor\t: 0\nvendor_id\t: {o['vendor']}\n"
              f"cpu family\t: {o['family']}\nmodel\t\t: {o['model']}")


def main():
    global out
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    n, out = int(sys.argv[2]), sys.argv[3]
    os.makedirs(out)
    with open(sys.argv[1], encoding="utf-8") as f:
        text = f.read().replace("{n}", str(n)).replace("{x}", f"{n:02x}").replace("\\\n", " ")
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        lists = {}
        for key, value in (w.split("=", 1) for w in words[2:]):
            lists.setdefault(key, []).append(value)
        o = {key: values[0] for key, values in lists.items()}
        what, name = words[0], words[1]
        if what == "host":
            write("etc/hostname", name)
        elif what in ("netif", "port"):
            globals()[what](name, o, lists)
        elif what in ("numa", "unit", "card"):
            globals()[what](name, o)
        else:
            sys.exit(f"{sys.argv[1]}: {what}: no such line")
    write("ip-addr.json", json.dumps(
        [{"ifname": name, "addr_info": infos} for name, infos in addresses.items()], indent=1))


main()
