#!/usr/bin/python3
"""Tokens per second of holmes-train and of eager PyTorch (Debian: python3-torch), on the same model,
cores and machine: GPT-2 124M, float32, whole training steps with clipping and AdamW. The two take
turns, round by round; the first step of every round is not counted. Prints one table.

    ninja -C build && /usr/bin/python3 bench/train/compare.py

PyTorch runs in a process of its own that waits between rounds. It gets what helps it: its fused
loop over parameters in AdamW, large pages, and a heap that gives no memory back to the system.
docs/trainer-speed.md says what was measured and what the limit is."""

import argparse
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = {"layers": 12, "channels": 768, "heads": 12}
VOCAB = 50257
LR, DECAY, CLIP = 1e-4, 0.1, 1.0
SGEMM_SIZE, SGEMM_REPEATS = 2048, 5


def flops_per_token(seq_len):
    """Multiplications and additions that a step needs: six per weight of a product, and causal
    attention, whose two products and their four gradients have half a matrix each."""
    layers, channels = MODEL["layers"], MODEL["channels"]
    return 6 * (12 * layers * channels**2 + VOCAB * channels) + 6 * layers * seq_len * channels


# The other side


def torch_worker(args):
    """Answers lines on stdin: "steps N" with seconds of N steps, "sgemm" with GFLOPS."""
    import time

    sys.dont_write_bytecode = True
    sys.path.insert(0, HERE)
    import torch
    import torch_gpt

    seq_len, batch = args.shapes[0]
    torch.set_num_threads(args.threads)
    model = torch_gpt.GPT(MODEL["layers"], MODEL["channels"], MODEL["heads"], seq_len, VOCAB, True)
    optimizer = torch_gpt.adamw(model, LR, DECAY, foreach=True)
    a, b = torch.randn(SGEMM_SIZE, SGEMM_SIZE), torch.randn(SGEMM_SIZE, SGEMM_SIZE)

    def step():
        ids = torch.randint(VOCAB, (batch, seq_len + 1))
        torch_gpt.train_step(model, optimizer, ids[:, :-1], ids[:, 1:], CLIP)

    def seconds(f):
        start = time.perf_counter()
        f()
        return time.perf_counter() - start

    print(json.dumps(torch.__version__), flush=True)
    for line in sys.stdin:
        what = line.split()
        if what[0] == "steps":
            print(json.dumps([seconds(step) for _ in range(int(what[1]))]), flush=True)
        else:
            best = min(seconds(lambda: torch.mm(a, b)) for _ in range(SGEMM_REPEATS))
            print(json.dumps(2 * SGEMM_SIZE**3 / best / 1e9), flush=True)


class Torch:
    def __init__(self, shape, threads):
        tunables = {"hugetlb": 1, "mmap_threshold": 1 << 35, "trim_threshold": 1 << 35,
                    "top_pad": 1 << 28}
        env = dict(os.environ, OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS=str(threads),
                   GLIBC_TUNABLES=":".join(f"glibc.malloc.{k}={v}" for k, v in tunables.items()))
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--torch-worker", "--threads", str(threads),
             "--shapes", "%dx%d" % shape],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.version = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("compare: the PyTorch process ended (is python3-torch installed?)")
        return json.loads(line)

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


# This side


def write_tokens(prefix, documents=32, length=8192):
    """Random tokens as Megatron-LM's PREFIX.bin and PREFIX.idx."""
    rng, count = random.Random(1), documents * length
    with open(prefix + ".bin", "wb") as f:
        f.write(struct.pack("<%dH" % count, *(rng.randrange(VOCAB) for _ in range(count))))
    with open(prefix + ".idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, documents, documents + 1))
        f.write(struct.pack("<%di" % documents, *[length] * documents))
        f.write(struct.pack("<%dq" % documents, *(2 * length * i for i in range(documents))))
        f.write(struct.pack("<%dq" % (documents + 1), *range(documents + 1)))


def holmes_steps(args, prefix, shape, count):
    """Seconds of `count` steps of a fresh holmes-train."""
    seq_len, batch = shape
    log = prefix + ".jsonl"
    command = [os.path.join(args.build, "trainer", "holmes-train"), "--data", prefix,
               "--vocab", VOCAB, "--tied", "--seq-len", seq_len, "--batch", batch,
               "--microbatch", batch, "--steps", count, "--threads", args.threads, "--lr", LR,
               "--weight-decay", DECAY, "--clip", CLIP, "--eval-sequences", 0, "--log", log]
    command += [x for name, n in MODEL.items() for x in ("--" + name, n)]
    if os.path.exists(log):
        os.unlink(log)
    run = subprocess.run([str(x) for x in command], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit("compare: holmes-train failed: " + run.stderr.strip())
    with open(log) as f:
        records = [json.loads(line) for line in f]
    return [r["step_seconds"] for r in records if r["record"] == "step"]


# Both


def middle_and_spread(values, digits):
    return "%.*f (%.*f..%.*f)" % (digits, statistics.median(values), digits, min(values), digits,
                                  max(values))


def compare(args, shape, prefix):
    """-> (row of the table, PyTorch's version)"""
    tokens = shape[0] * shape[1]
    torch = Torch(shape, args.threads)
    holmes, other, ratios, sgemm = [], [], [], []
    for _ in range(args.rounds):
        sgemm.append(torch.ask("sgemm"))
        h = holmes_steps(args, prefix, shape, args.steps + 1)[1:]
        t = torch.ask("steps %d" % (args.steps + 1))[1:]
        holmes += [tokens / s for s in h]
        other += [tokens / s for s in t]
        ratios.append(statistics.median(t) / statistics.median(h))
    torch.close()
    limit = max(sgemm) * 1e9 / flops_per_token(shape[0])
    return ("%d x %d" % shape, middle_and_spread(holmes, 1), middle_and_spread(other, 1),
            middle_and_spread(ratios, 2), "%.0f" % max(sgemm), "%.0f" % limit,
            "%.0f %%" % (100 * statistics.median(holmes) / limit)), torch.version


def shapes(text):
    return [tuple(int(n) for n in s.split("x")) for s in text.split(",")]


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build", help="build folder of holmes (build)")
    p.add_argument("--threads", type=int, default=2, help="of both (2)")
    p.add_argument("--shapes", type=shapes, default=shapes("1024x1,256x2"), metavar="TxB,...",
                   help="tokens in a sequence x sequences in a step (1024x1,256x2)")
    p.add_argument("--rounds", type=int, default=4, help="turns of each (4)")
    p.add_argument("--steps", type=int, default=2, help="steps counted in a turn (2)")
    p.add_argument("--torch-worker", action="store_true", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.torch_worker:
        return torch_worker(args)

    head = ("T x B", "holmes-train, tokens/s", "PyTorch, tokens/s", "ratio", "sgemm GFLOPS",
            "limit, tokens/s", "of limit")
    rows = [head]
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "tokens")
        write_tokens(prefix)
        for shape in args.shapes:
            row, version = compare(args, shape, prefix)
            rows.append(row)
    widths = [max(len(r[i]) for r in rows) for i in range(len(head))]
    for r in rows:
        print("  ".join(c.ljust(w) for c, w in zip(r, widths)).rstrip())
    print("median (least..most) of %d rounds of %d steps each, in turns; %d threads; PyTorch %s; "
          "limit: sgemm's speed at %d^3 over the arithmetic a token needs"
          % (args.rounds, args.steps, args.threads, version, SGEMM_SIZE))
    return 0


if __name__ == "__main__":
    sys.exit(main())
