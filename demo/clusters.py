#!/usr/bin/env python3
"""clusters.py CHECK.json: the two groups of hosts that slow links part, as `holmes-topo check --json`
found them, and what the link between carries, as variables for a shell."""
import json
import sys

with open(sys.argv[1], encoding="utf-8") as report:
    check = json.load(report)
groups = sorted(check["groups"])
if len(groups) != 2:
    sys.exit(f"clusters.py: check found {len(groups)} groups of hosts, not two: {groups}")
across = [
    pair
    for pair in check["pairs"]
    if pair["state"] == "ok" and (pair["a"] in groups[0]) != (pair["b"] in groups[0])
]
# Pairs that were measured at the same time have shared the link: the fastest had it for itself.
print(f"cluster_a={','.join(groups[0])} cluster_b={','.join(groups[1])}")
print(f"link_gbps={max(min(p['gbps_forth'], p['gbps_back']) for p in across):.3f}")
print(f"link_rtt_ms={min(p['round_trip_us'] for p in across) / 1000:.3f}")
