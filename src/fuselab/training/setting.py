"""What all variants share: sizes, initial weights, data, hyperparameters; no torch, no jax."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Weights = dict[str, NDArray[np.float32]]
LR, BETAS, ADAM_EPS, DECAY = 1e-3, (0.9, 0.95), 1e-8, 0.1
NORM_EPS, ROPE_BASE = 1e-6, 10000.0


@dataclass(frozen=True)
class Setting:
    """A model and its batches.

    ffn    hidden width of SwiGLU
    dtype  of weights, activations and AdamW's moments: float32 or bfloat16
    """

    vocab: int
    width: int
    layers: int
    heads: int
    ffn: int
    batch: int
    length: int
    dtype: str

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.width // self.heads

    @property
    def parameters(self) -> int:
        """Number of weights."""
        layer = 4 * self.width**2 + 3 * self.width * self.ffn + 2 * self.width
        return self.vocab * self.width + self.layers * layer + self.width


SETTINGS = {
    "small": Setting(256, 64, 2, 4, 176, 4, 64, "float32"),
    "medium": Setting(4096, 512, 4, 8, 1408, 8, 256, "float32"),
    "full": Setting(32000, 2048, 12, 16, 5632, 8, 2048, "bfloat16"),
}


def weights(setting: Setting) -> Weights:
    """Return the initial weights by name; matrices are [in, out]."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> NDArray[np.float32]:
        return (0.02 * rng.standard_normal(shape, dtype=np.float32)).astype(np.float32)

    d, f = setting.width, setting.ffn
    found = {"embedding": normal(setting.vocab, d), "norm": np.ones(d, np.float32)}
    for i in range(setting.layers):
        found |= {f"{i}.norm1": np.ones(d, np.float32), f"{i}.norm2": np.ones(d, np.float32)}
        found |= {f"{i}.{name}": normal(d, d) for name in ("q", "k", "v", "o")}
        found |= {f"{i}.gate": normal(d, f), f"{i}.up": normal(d, f), f"{i}.down": normal(f, d)}
    return found


def batches(setting: Setting, steps: int) -> Iterator[NDArray[np.int32]]:
    """Yield tokens of shape (batch, length + 1): a rule that can be learned, with some noise."""
    rng = np.random.default_rng(1)
    for _ in range(steps):
        tokens = np.empty((setting.batch, setting.length + 1), np.int32)
        tokens[:, 0] = rng.integers(setting.vocab, size=setting.batch)
        noise = rng.random(tokens.shape) < 0.1
        other = rng.integers(setting.vocab, size=tokens.shape)
        for t in range(setting.length):
            after = (3 * tokens[:, t] + 7) % setting.vocab
            tokens[:, t + 1] = np.where(noise[:, t], other[:, t], after)
        yield tokens


def rope(setting: Setting) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return cos and sin of shape (length, head / 2), for heads split in halves."""
    frequency = ROPE_BASE ** (-np.arange(0, setting.head, 2) / setting.head)
    angle = np.arange(setting.length)[:, None] * frequency[None, :]
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
