#!/usr/bin/env python3
"""Tables of runs over shaped links, from holmes-bench's JSON.
  link_tables.py lanes FILE WIRE LANES PERCENT   for bench/lanes.sh
  link_tables.py wire-share FOLDER               for bench/wire-share.sh
  link_tables.py long-link FOLDER                for bench/long-link.sh"""
import json
import pathlib
import statistics
import sys


def spread(values, form):
    values = sorted(values)
    return f"{statistics.median(values):{form}} ({values[0]:{form}} to {values[-1]:{form}})"


def mbit(cell):
    return [cell["size_bytes"] * 8 / us for us in cell["round_us"]]


def lanes(path, wire, count, percent):
    results = json.loads(pathlib.Path(path).read_text())["results"]
    side = {cell["side"]: mbit(cell) for cell in results}
    one = side["TCP x1"]
    print(f"HOLMES_TCP={wire}")
    print(f"  one full lane (a plain stream)        {spread(one, '7.0f')}")
    for name, label in (("all", f"{count} full lanes"),
                        ("throttled", f"{count} lanes, one at {percent} %")):
        over = [total / lane for total, lane in zip(side[name], one)]
        print(f"  {label:37} {spread(side[name], '7.0f')}   over one lane {spread(over, '.2f')}")


def side_of(cell):
    """All numbers of streams of a reference are one side."""
    return cell["side"].split(" x")[0] if cell["streams"] else cell["side"]


def shares_of(run):
    """{(size, side): share}, the best where a side has several lines."""
    best = {}
    for cell in run["results"]:
        key = cell["size_bytes"], side_of(cell)
        best[key] = max(best.get(key, 0), cell["wire_share"])
    return best


def wire_share(folder):
    shares, sides, combinations = {}, [], []
    files = sorted(pathlib.Path(folder).glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    for path in files:
        run = json.loads(path.read_text())
        rate = run["links"][0]["bits_per_s"]
        for (size, side), share in shares_of(run).items():
            combination = rate, run["both_ways"], size
            if combination not in combinations:
                combinations.append(combination)
            if side not in sides:
                sides.append(side)
            shares.setdefault((combination, side), []).append(100 * share)
    print("share of the wire, %, of one direction: median (least to most)")
    width = 24
    print(f"{'':34}" + "".join(f"{side:>{width}}" for side in sides))
    for combination in sorted(combinations):
        rate, both, size = combination
        name = (f"{rate / 1e9:g} Gbit/s, {'both ways' if both else 'one way'}, "
                f"{size // 1024} KiB")
        print(f"{name:34}" + "".join(f"{spread(shares[combination, side], '.1f'):>{width}}"
                                     for side in sides))


def long_link(folder):
    """Files are named WINDOW-KIND-ROUND.SIZE.json."""
    rows, sides = {}, []
    for path in sorted(pathlib.Path(folder).glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
        run = json.loads(path.read_text())
        window, kind, _ = path.name.split(".")[0].split("-")
        for cell in run["results"]:
            row = rows.setdefault((cell["size_bytes"], int(window), kind), {})
            row.setdefault(cell["side"], []).append(mbit(cell)[0])
            if cell["side"] not in sides:
                sides.append(cell["side"])
        rtt_s = run["links"][0]["rtt_ms"] / 1e3
    plain = next(side for side in sides if side.startswith("TCP x"))
    width = 24
    print(f"{'window':18}{'its limit':>10}" + "".join(f"{side:>{width}}" for side in sides))
    for (size, window, kind), row in sorted(rows.items()):
        name = f"{window} x {size // 1024} KiB, {kind}"
        limit = f"{window * size * 8e-6 / rtt_s:.0f}" if rtt_s else "-"
        print(f"{name:18}{limit:>10}" + "".join(f"{spread(row[side], '.0f'):>{width}}"
                                                for side in sides))
        ratios = [[ours / base for ours, base in zip(row[side], row[plain])] for side in sides]
        print(f"{f'  over {plain}':28}" + "".join(f"{spread(ratio, '.2f'):>{width}}"
                                                for ratio in ratios))


if sys.argv[1:2] == ["lanes"] and len(sys.argv) == 6:
    lanes(*sys.argv[2:])
elif sys.argv[1:2] == ["wire-share"] and len(sys.argv) == 3:
    wire_share(sys.argv[2])
elif sys.argv[1:2] == ["long-link"] and len(sys.argv) == 3:
    long_link(sys.argv[2])
else:
    sys.exit(__doc__)
