#!/usr/bin/env python3
"""export-check.py MODEL LOG: a model that `holmes-train export` wrote, in a GPT-2 of plain PyTorch.

MODEL is the folder, LOG the run's log (--log) whose last checkpoint was exported, trained on a text
file. Computes the loss on the sequences that the run's last evaluation used and compares the two.
Exit status 1 when they differ by more than 1e-5, 2 without PyTorch. Needs torch (Debian:
python3-torch); names, order and orientation of the weights are those of Hugging Face's transformers,
which is not needed.
"""
import json
import struct
import sys

try:
    import torch
    import torch.nn.functional as F
except ImportError as missing:
    print(f"export-check.py: {missing}: PyTorch is needed (Debian: python3-torch)", file=sys.stderr)
    sys.exit(2)


def read_safetensors(path):
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(length))
        data = bytearray(f.read())
    tensors = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        assert t["dtype"] == "F32", name
        a, b = t["data_offsets"]
        tensors[name] = torch.frombuffer(data[a:b], dtype=torch.float32).reshape(t["shape"])
    return tensors


def conv1d(w, name, x):  # transformers' Conv1D: weight (in, out)
    return x @ w[name + ".weight"] + w[name + ".bias"]


def norm(w, name, x, eps):
    return F.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], eps)


def attention(w, name, x, heads):
    B, T, C = x.shape
    q, k, v = conv1d(w, name + ".c_attn", x).split(C, dim=2)
    q, k, v = (t.view(B, T, heads, C // heads).transpose(1, 2) for t in (q, k, v))
    scores = q @ k.transpose(2, 3) / (C // heads) ** 0.5
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    out = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
    return conv1d(w, name + ".c_proj", out.transpose(1, 2).reshape(B, T, C))


def gelu_new(x):
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def logits(w, config, tokens):
    eps, p = config["layer_norm_epsilon"], "transformer."
    x = w[p + "wte.weight"][tokens] + w[p + "wpe.weight"][: tokens.shape[1]]
    for i in range(config["n_layer"]):
        h = f"{p}h.{i}."
        x = x + attention(w, h + "attn", norm(w, h + "ln_1", x, eps), config["n_head"])
        y = gelu_new(conv1d(w, h + "mlp.c_fc", norm(w, h + "ln_2", x, eps)))
        x = x + conv1d(w, h + "mlp.c_proj", y)
    head = w[p + "wte.weight"] if config["tie_word_embeddings"] else w["lm_head.weight"]
    return norm(w, p + "ln_f", x, eps) @ head.T


def held_out(run, T, sequences):
    text = open(run["data"]["file"], "rb").read()
    split = run["data"]["split"]
    first = round(len(text) * (split[0] / sum(split)))
    rows = [text[first + i * T : first + i * T + T + 1] for i in range(sequences)]
    return torch.tensor([list(r) for r in rows])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    model, log = sys.argv[1:]
    config = json.load(open(model + "/config.json"))
    w = read_safetensors(model + "/model.safetensors")
    records = [json.loads(line) for line in open(log)]
    run = next(r for r in records if r["record"] == "config")
    last = [r for r in records if r["record"] == "held_out"][-1]
    rows = held_out(run, config["n_positions"], last["sequences"])
    with torch.no_grad():
        out = logits(w, config, rows[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(out.double(), rows[:, 1:].flatten()).item()
    difference = abs(loss - last["loss"]) / last["loss"]
    print(f"torch {torch.__version__}: loss {loss:.7f} on {len(rows)} held-out sequences, "
          f"holmes-train {last['loss']:.7f}, relative difference {difference:.1e}")
    sys.exit(difference > 1e-5)


if __name__ == "__main__":
    main()
