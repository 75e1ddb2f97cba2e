"""Compares the losses of two runs' logs step by step; a relative difference above 1e-5 is an error."""
import json
import sys


def losses(path):
    with open(path, encoding="utf-8") as log:
        records = [json.loads(line) for line in log]
    return [r["loss"] for r in records if r["record"] == "step"]


one, other = (losses(path) for path in sys.argv[1:3])
if not one or len(one) != len(other):
    sys.exit(f"{len(one)} and {len(other)} steps")
worst = max(abs(a - b) / abs(b) for a, b in zip(one, other))
print(f"losses {one} and {other}, largest relative difference {worst:.1e}")
sys.exit(worst > 1e-5)
