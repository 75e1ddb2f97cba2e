#!/usr/bin/python3
"""Makes the files of test_golden.c with PyTorch (Debian: python3-torch), beside this script:
loss, gradients and two clipped AdamW steps of small GPTs, computed in float64 so that what differs
is the other side's rounding. Weights come from a formula that the test has as well. Says what
PyTorch's own float32 differs by."""

import json
import os
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../../bench/train"))
sys.dont_write_bytecode = True

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch_gpt  # noqa: E402

CASES = {
    "untied": dict(layers=3, channels=20, heads=4, seq_len=24, vocab=101, tied=False, batch=2),
    "tied": dict(layers=2, channels=28, heads=4, seq_len=17, vocab=61, tied=True, batch=3),
}
OPTIONS = dict(lr=1e-3, weight_decay=0.1, beta1=0.9, beta2=0.95, eps=1e-8)
STEPS = 2


def hash_values(name, n):
    """n numbers in [-1, 1) of 24 bits each, exact in float32: from the FNV-1a hash of the name."""
    h = 2166136261
    for c in name.encode():
        h = (h ^ c) * 16777619 & 0xFFFFFFFF
    x = (h + np.arange(n, dtype=np.uint64) * 2654435761 & 0xFFFFFFFF).astype(np.uint64)
    x ^= x >> 15
    x = x * 2246822519 & 0xFFFFFFFF
    x ^= x >> 13
    return (x >> 8).astype(np.float64) / 2**23 - 1


def weights(name, shape):
    """0.25 u, and 1 more for the weights of norms, rounded to float32."""
    u = hash_values(name, int(np.prod(shape))).reshape(shape)
    is_norm = "ln_" in name and name.endswith("weight")
    return (0.25 * u + (1 if is_norm else 0)).astype(np.float32)


def tokens(name, case):
    u = hash_values(name, case["batch"] * case["seq_len"])
    ids = ((u + 1) / 2 * case["vocab"]).astype(np.int32)
    return ids.reshape(case["batch"], case["seq_len"])


def build(case, dtype):
    model = torch_gpt.GPT(*(case[k] for k in ("layers", "channels", "heads", "seq_len", "vocab",
                                              "tied"))).to(dtype)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.from_numpy(weights(name, tuple(p.shape))))
    return model


def backward(model, case):
    x, y = (torch.from_numpy(tokens(n, case)).long() for n in ("tokens", "targets"))
    model.zero_grad(set_to_none=True)
    loss = model(x, y)
    loss.backward()
    return loss.item()


def kept_after_steps(name):
    """A sample of the tensors. Not qkv.bias: the gradient of a key's bias is 0 but for rounding,
    and AdamW makes a full step of its sign."""
    return ("bias" in name and "qkv" not in name) or "ln_" in name or name == "wpe.weight" \
        or name == "h.1.attn.proj.weight"


def run(case, dtype):
    """-> (facts, tensors)"""
    model = build(case, dtype)
    optimizer = torch_gpt.adamw(model, OPTIONS["lr"], OPTIONS["weight_decay"],
                                (OPTIONS["beta1"], OPTIONS["beta2"]), OPTIONS["eps"])
    out, facts = {}, {}
    for step in range(STEPS):
        loss = backward(model, case)
        if step == 0:
            norm = torch.sqrt(sum(p.grad.double().square().sum() for p in model.parameters()))
            clip = round(norm.item() / 2, 2)
            facts = {"loss": loss, "grad_norm": norm.item(), "clip": clip}
            for name, p in model.named_parameters():
                out["grad." + name] = p.grad.numpy().copy()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    for name, p in model.named_parameters():
        if kept_after_steps(name):
            out["stepped." + name] = p.detach().numpy().copy()
    return facts, out


def write(path, metadata, tensors):
    """A safetensors file."""
    header, at = {"__metadata__": metadata}, 0
    for name, a in tensors.items():
        header[name] = {"dtype": "I32" if a.dtype == np.int32 else "F32", "shape": list(a.shape),
                        "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for a in tensors.values():
            f.write(a.astype(a.dtype.newbyteorder("<")).tobytes())


def worst(got, want, prefix):
    """Largest norm of a difference over the norm, and whose."""
    return max((float(np.linalg.norm(got[k].astype(np.float64) - want[k]) /
                      np.linalg.norm(want[k])), k) for k in want if k.startswith(prefix))


def torch_version():
    package = subprocess.run(["dpkg-query", "-W", "python3-torch"], capture_output=True, text=True)
    return torch.__version__ + (" (%s)" % " ".join(package.stdout.split()) if package.stdout
                                else "")


for label, case in CASES.items():
    facts, tensors = run(case, torch.float64)
    facts32, tensors32 = run(case, torch.float32)
    print(f"{label}: loss {facts['loss']:.7f}, gradient norm {facts['grad_norm']:.5f}; float32: "
          f"loss off by {abs(facts32['loss'] / facts['loss'] - 1):.1e}, gradients by up to "
          "%.1e (%s)" % worst(tensors32, tensors, "grad."))
    metadata = {k: repr(v) for k, v in {**case, **facts, **OPTIONS, "steps": STEPS}.items()
                if k != "tied"}
    metadata |= {"tied": str(int(case["tied"])), "torch": torch_version(),
                 "made_by": "tests/kernels/golden/make.py"}
    all_tensors = {"tokens": tokens("tokens", case), "targets": tokens("targets", case)}
    all_tensors |= {k: v.astype(np.float32) for k, v in tensors.items()}
    write(os.path.join(HERE, label + ".safetensors"), metadata, all_tensors)
