#!/usr/bin/env python3
"""load_plugin.py NAME: loads a net plugin by file name as NCCL does, initialises it through its v8
table and prints the number of its devices and the libfabric that it came to use."""
import ctypes
import sys

Logger = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p)


class NetV8(ctypes.Structure):  # the beginning of ncclNet_v8_t
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("init", ctypes.CFUNCTYPE(ctypes.c_int, Logger)),
        ("devices", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))),
    ]


net = NetV8.in_dll(ctypes.CDLL(sys.argv[1]), "ncclNetPlugin_v8")
logger = Logger(lambda level, flags, file, line, text: None)
count = ctypes.c_int()
if net.init(logger) != 0 or net.devices(ctypes.byref(count)) != 0:
    sys.exit(f"{sys.argv[1]}: init or devices failed")
with open("/proc/self/maps", encoding="utf-8") as maps:
    libfabric = {line.split(maxsplit=5)[-1].strip() for line in maps if "/libfabric.so" in line}
print(net.name.decode(), count.value, *libfabric)
