"""The model in PyTorch, its norms in plain tensor operations, as transformers has them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuselab.training.setting import NORM_EPS, Setting, Weights, rope


class RMSNorm(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.variance_epsilon = NORM_EPS

    def forward(self, hidden_states: Tensor) -> Tensor:
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


class Layer(nn.Module):
    def __init__(self, setting: Setting, take: dict[str, Tensor]) -> None:
        super().__init__()
        self.setting = setting
        self.norm1, self.norm2 = RMSNorm(take["norm1"]), RMSNorm(take["norm2"])
        self.matrices = nn.ParameterDict(
            {name: nn.Parameter(t) for name, t in take.items() if not name.startswith("norm")}
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        m = self.matrices
        h = self.norm1(x)
        q, k, v = (self._heads(h @ m[name]) for name in ("q", "k", "v"))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(x.shape) @ m["o"]
        h = self.norm2(x)
        added: Tensor = (F.silu(h @ m["gate"]) * (h @ m["up"])) @ m["down"]
        return x + added

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.setting.heads, self.setting.head).transpose(1, 2)


class Model(nn.Module):
    """Tokens (batch, length) -> logits (batch, length, vocab); the embedding is the head too."""

    def __init__(self, setting: Setting, weights: Weights, device: str) -> None:
        super().__init__()
        dtype = getattr(torch, setting.dtype)
        take = {n: torch.tensor(w).to(device=device, dtype=dtype) for n, w in weights.items()}
        self.embedding = nn.Parameter(take.pop("embedding"))
        self.norm = RMSNorm(take.pop("norm"))
        self.layers = nn.ModuleList(
            Layer(
                setting, {n.partition(".")[2]: t for n, t in take.items() if n.startswith(f"{i}.")}
            )
            for i in range(setting.layers)
        )
        for name, table in zip(("cos", "sin"), rope(setting), strict=True):
            self.register_buffer(name, torch.tensor(table).to(device=device, dtype=dtype))

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.embedding(tokens, self.embedding)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits: Tensor = self.norm(x) @ self.embedding.T
        return logits


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def loss_of(model: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
    """Return the mean cross entropy of each next token, in fp32."""
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
