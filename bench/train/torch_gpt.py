"""GPT-2 in plain eager PyTorch, as holmes-train has it: learned positions, pre-norm blocks, GELU in
its tanh form, AdamW that decays matrices only. Tensors have the names they have there."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, channels, heads, seq_len):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)
        later = torch.ones(seq_len, seq_len, dtype=torch.bool).triu(1)
        self.register_buffer("later", later, persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (y.view(B, T, self.heads, C // self.heads).transpose(1, 2)
                   for y in self.qkv(x).split(C, dim=2))
        scores = q @ k.transpose(2, 3) * (1 / math.sqrt(C // self.heads))
        probs = F.softmax(scores.masked_fill(self.later, -math.inf), dim=-1)
        return self.proj((probs @ v).transpose(1, 2).reshape(B, T, C))


class MLP(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.fc = nn.Linear(channels, 4 * channels)
        self.proj = nn.Linear(4 * channels, channels)

    def forward(self, x):
        return self.proj(F.gelu(self.fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, channels, heads, seq_len):
        super().__init__()
        self.ln_1 = nn.LayerNorm(channels)
        self.attn = Attention(channels, heads, seq_len)
        self.ln_2 = nn.LayerNorm(channels)
        self.mlp = MLP(channels)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, layers, channels, heads, seq_len, vocab, tied):
        super().__init__()
        self.wte = nn.Embedding(vocab, channels)
        self.wpe = nn.Embedding(seq_len, channels)
        self.h = nn.ModuleList(Block(channels, heads, seq_len) for _ in range(layers))
        self.ln_f = nn.LayerNorm(channels)
        self.lm_head = nn.Linear(channels, vocab, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                shrink = math.sqrt(2 * layers) if "proj" in name else 1
                nn.init.normal_(p, std=0.02 / shrink)
            elif "bias" in name:
                nn.init.zeros_(p)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, tokens, targets):
        """Mean cross entropy, in nats per token. tokens, targets: (B, T) int64."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def adamw(model, lr, weight_decay, betas=(0.9, 0.95), eps=1e-8, **options):
    decayed = [p for p in model.parameters() if p.dim() == 2]
    other = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": decayed, "weight_decay": weight_decay},
              {"params": other, "weight_decay": 0}]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, **options)


def train_step(model, optimizer, tokens, targets, clip):
    optimizer.zero_grad(set_to_none=True)
    loss = model(tokens, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return loss.item()
