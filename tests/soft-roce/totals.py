"""Prints what the log of a run counted as sent, by kind of communicator and wire: dp_verbs=1234."""
import json
import sys

sent = {kind + "_" + wire: 0 for kind in ("dp", "pp", "world") for wire in ("verbs", "tcp")}
with open(sys.argv[1], encoding="utf-8") as log:
    records = [json.loads(line) for line in log]
for record in records:
    for communicator in record.get("communicators", []):
        for use in communicator["wires"]:
            name = communicator["kind"] + "_" + use["wire"]
            sent[name] = sent.get(name, 0) + use["bytes_sent"]
for name, count in sent.items():
    print(f"{name}={count}")
