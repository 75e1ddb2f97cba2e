#!/usr/bin/env python3
"""crossing.py RUN.jsonl: payload bytes that the ranks of a run counted from cluster A to B and from
B to A, evaluation included, to be held against the kernel's counters of the link between."""
import json
import sys

with open(sys.argv[1], encoding="utf-8") as log:
    records = [json.loads(line) for line in log]
cluster = {r["rank"]: r["cluster"] for r in records if r["record"] == "traffic"}
sent = {"A": 0, "B": 0}
for record in records:
    if record["record"] != "traffic":
        continue
    for communicator in record["communicators"]:
        for peer in communicator["peers"]:
            if cluster[peer["rank"]] != record["cluster"]:
                sent[record["cluster"]] += peer["bytes_sent"]
print(sent["A"], sent["B"])
