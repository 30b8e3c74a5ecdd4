"""The study's patterns as plain torch functions, and the row that docs/fusion.md has of each."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from fuselab.explain.examples.attention import attention_pytorch
from fuselab.fusion.assertion import measure
from fuselab.fusion.record import Fusion

ROWS, COLUMNS = 512, 1024
HEADS = 8  # of multihead_attention
# Torch's attention has a buffer a thread.
THREADS = 2
PAGE = Path(__file__).parents[2] / "docs" / "fusion.md"
HEAD = "| pattern | kernels | traffic | peak | kept apart |\n|---|---:|---:|---:|---|"
VERSION = re.compile(r"torch\s+(\S+),\s+CPU")


@dataclass(frozen=True)
class Pattern:
    """A function and the shapes of its inputs."""

    fn: Callable[..., object]
    shapes: tuple[tuple[int, ...], ...] = ((ROWS, COLUMNS),)

    def inputs(self) -> list[Tensor]:
        return [torch.randn(shape) for shape in self.shapes]


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, 1)


def double_softmax(x: Tensor) -> Tensor:
    return torch.softmax(torch.softmax(x, 1), 1)


def softmax_backward(dy: Tensor, y: Tensor) -> Tensor:
    return y * (dy - (dy * y).sum(1, keepdim=True))


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias)


def norm_chain(x: Tensor) -> Tensor:
    for _ in range(3):
        x = x * torch.sum(x, 1, keepdim=True)
    return x


def pointwise_chain(x: Tensor) -> Tensor:
    y = torch.cos(x)
    x = x * y
    y = torch.max(x, y)
    return x + y


def horizontal_reduction_pointwise(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sum(x, dim=1), torch.cos(x)


def horizontal_reduction_reduction(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sum(x, dim=1), torch.amax(x, dim=1)


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    x = x + bias
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


def bias_dropout_add(x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    return residual + torch.nn.functional.dropout(x + bias, p=0.5, training=False)


def bias_dropout_add_transposed(x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    return bias_dropout_add(x, bias.t(), residual.t())


def matmul_add(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return a @ b + bias


def matmul_relu(a: Tensor, b: Tensor) -> Tensor:
    return torch.relu(a @ b)


def matmul_add_relu(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(a @ b + bias)


def matmul_add_gelu(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return functional.gelu(a @ b + bias, approximate="tanh")


def matmul_matmul(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    return (x @ w1) @ w2


def mlp(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    return functional.gelu(x @ w1 + b1) @ w2 + b2


def conv_add(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.conv2d(x, weight) + bias[:, None, None]


def conv_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(functional.conv2d(x, weight, bias))


def conv_add_relu(x: Tensor, weight: Tensor, bias: Tensor, z: Tensor) -> Tensor:
    return torch.relu(functional.conv2d(x, weight, bias) + z)


def conv_bn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    bn_weight: Tensor,
    bn_bias: Tensor,
    mean: Tensor,
    var: Tensor,
) -> Tensor:
    h = functional.conv2d(x, weight, bias)
    return functional.batch_norm(h, mean, var, bn_weight, bn_bias)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


def multihead_attention(
    x: Tensor, w_qkv: Tensor, b_qkv: Tensor, w_out: Tensor, b_out: Tensor
) -> Tensor:
    q, k, v = (x @ w_qkv + b_qkv).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    return attention(q, k, v).transpose(1, 2).flatten(2) @ w_out + b_out


_ROW, _FLIPPED = (COLUMNS,), (COLUMNS, ROWS)
_X, _SQUARE, _SHORT = (ROWS, COLUMNS), (ROWS, ROWS), (ROWS,)
_IMAGES, _FILTERS, _CHANNELS = (4, 16, 28, 28), (32, 16, 3, 3), (32,)
_FILTERED = (4, 32, 26, 26)
_HEADS, _HEADS_LAST = (2, 4, 256, 64), (2, 256, 4, 64)
PATTERNS = {"softmax, 2 rows": Pattern(softmax, ((2, COLUMNS),))} | {
    fn.__name__: Pattern(fn, shapes)
    for fn, shapes in (
        (softmax, (_X,)),
        (double_softmax, (_X,)),
        (softmax_backward, (_X, _X)),
        (layer_norm, (_X, _ROW, _ROW)),
        (norm_chain, (_X,)),
        (pointwise_chain, (_X,)),
        (horizontal_reduction_pointwise, (_X,)),
        (horizontal_reduction_reduction, (_X,)),
        (bias_gelu, (_X, _ROW)),
        (bias_dropout_add, (_X, _ROW, _X)),
        (bias_dropout_add_transposed, (_X, _FLIPPED, _FLIPPED)),
        (matmul_add, (_X, _FLIPPED, _SHORT)),
        (matmul_relu, (_X, _FLIPPED)),
        (matmul_add_relu, (_X, _FLIPPED, _SHORT)),
        (matmul_add_gelu, (_X, _FLIPPED, _SHORT)),
        (matmul_matmul, (_X, _FLIPPED, _X)),
        (mlp, (_X, _FLIPPED, _SHORT, _X, _ROW)),
        (conv_add, (_IMAGES, _FILTERS, _CHANNELS)),
        (conv_relu, (_IMAGES, _FILTERS, _CHANNELS)),
        (conv_add_relu, (_IMAGES, _FILTERS, _CHANNELS, _FILTERED)),
        (conv_bn, (_IMAGES, _FILTERS, *(_CHANNELS for _ in range(5)))),
        (attention, (_HEADS,) * 3),
        (attention_pytorch, (_HEADS_LAST,) * 3),
        (multihead_attention, ((2, 256, ROWS), (ROWS, 3 * ROWS), (3 * ROWS,), _SQUARE, _SHORT)),
    )
}


def row(name: str) -> str:
    """Return a pattern's row of the table, as torch.compile makes it here."""
    pattern = PATTERNS[name]
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        found = measure(torch.compile(pattern.fn), *pattern.inputs(), peak=True)
    finally:
        torch.set_num_threads(before)
    figures = f"{found.traffic:.3f} | {found.peak_ratio:.3f}"
    return f"| `{name}` | {len(found.kernels)} | {figures} | {_apart(found)} |"


def documented() -> dict[str, str]:
    """Return the rows on the page, by pattern."""
    table = PAGE.read_text().partition(HEAD)[2].partition("\n\n")[0]
    return {line.split("`")[1]: line for line in table.splitlines() if line}


def documented_version() -> str:
    found = VERSION.search(PAGE.read_text())
    assert found, f"{PAGE}: no version of torch beside the table"
    return found[1]


def _apart(found: Fusion) -> str:
    """Return the pairs that were kept apart and the reasons, those that read alike once."""
    texts = (
        f"`{found.planned[pair.first].name}` and `{found.planned[pair.second].name}`: {pair.reason}"
        for pair in found.unfused
    )
    return "; ".join(dict.fromkeys(texts))


if __name__ == "__main__":
    print(HEAD, *map(row, PATTERNS), sep="\n")
