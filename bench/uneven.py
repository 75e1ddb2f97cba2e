#!/usr/bin/env python3
"""uneven.py DIR HOLMES-TRAIN ROUNDS: what bench/uneven.sh measured, beside what the plan in DIR
expected."""
import json
import statistics
import subprocess
import sys

folder, train, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])


def runs(kind):
    """Step time of each round, ms."""
    times = []
    for number in range(1, rounds + 1):
        report = subprocess.run(
            [train, "report", f"{folder}/{kind}-{number}.jsonl", "--json"],
            check=True, capture_output=True)
        times.append(json.loads(report.stdout)["runs"][0]["step_ms"])
    return times


with open(f"{folder}/plan.json", encoding="utf-8") as document:
    plan = json.load(document)["plan"]
expected = {"uniform": plan["naive"]["step_s"] * 1e3, "planned": plan["cost"]["step_s"] * 1e3}
medians = {}
print()
print("step time, ms   median    least     most   expected  median/expected")
print("-------------  -------  -------  -------  ---------  ---------------")
for kind in ("uniform", "planned"):
    times = runs(kind)
    medians[kind] = statistics.median(times)
    print(f"{kind:<13}  {medians[kind]:7.1f}  {min(times):7.1f}  {max(times):7.1f}  "
          f"{expected[kind]:9.1f}  {medians[kind] / expected[kind]:15.2f}")
print()
print(f"uniform by planned: measured {medians['uniform'] / medians['planned']:.2f}, "
      f"expected {expected['uniform'] / expected['planned']:.2f}")
