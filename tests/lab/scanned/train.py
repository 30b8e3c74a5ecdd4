"""A training script as people write them: norms, a gate, attention and a loss of their own."""

import argparse
import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Norm(nn.Module):
    """RMSNorm, spelled as transformers' models do."""

    def __init__(self, n: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x.to(dtype)


class Gated(nn.Module):
    def __init__(self, n: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(n, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, n, bias=False)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


class Attention(nn.Module):
    def __init__(self, n: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(n, 3 * n), nn.Linear(n, n)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        return self.out((F.softmax(scores, -1) @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(n), Norm(n)
        self.attention, self.mlp = Attention(n, 2), Gated(n, 2 * n)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, n: int, layers: int, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, n)
        self.blocks = nn.ModuleList(Block(n) for _ in range(layers))
        self.norm, self.head = Norm(n), nn.Linear(n, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--words", type=int, default=512)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--autocast", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--fail-at", type=int, default=-1)
    given = parser.parse_args()
    torch.manual_seed(0)
    model = Model(given.width, given.layers, given.words)
    model.to(given.device, getattr(torch, given.dtype))
    run = torch.compile(model) if given.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(given.steps):
        if step == given.fail_at:
            raise ValueError("the data ran out")
        tokens = torch.randint(given.words, (given.batch, given.length + 1), device=given.device)
        with torch.autocast(given.device, torch.bfloat16, enabled=given.autocast):
            logits = run(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"{sys.argv[0]}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
