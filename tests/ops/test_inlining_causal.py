"""compile_options: attention whose mask is a constant and causal runs without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass

import fuseline

LENGTH = 24


def low(shape: tuple[int, ...], least: float = -torch.inf) -> Tensor:
    """Return an additive mask."""
    return torch.zeros(shape).masked_fill(torch.ones(shape).triu(1).bool(), least)


def positions(rows: int = LENGTH, shift: int = 0) -> Tensor:
    at = torch.arange(LENGTH)
    return at[None, None, None, :] <= (torch.arange(rows) + shift)[None, None, :, None]


CAUSAL: dict[str, Callable[[], Tensor]] = {
    "of positions": positions,
    "of each batch": lambda: positions().expand(2, 1, LENGTH, LENGTH),
    "a triangle": lambda: torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(),
    "added": lambda: low((LENGTH, LENGTH)),
    "of the least number": lambda: low((LENGTH, LENGTH), torch.finfo(torch.float32).min),
    "of cuDNN's": lambda: low((LENGTH, LENGTH), -65504.0),
}
ALL: dict[str, Callable[[], Tensor]] = {
    "all": lambda: torch.ones(LENGTH, LENGTH, dtype=torch.bool),
    "nothing added": lambda: torch.zeros(2, 1, LENGTH, LENGTH),
}
OTHER: dict[str, Callable[[], Tensor]] = {
    "one more": lambda: positions(shift=1),
    "a window": lambda: positions() & (positions(shift=-8) == 0),
    "not square": lambda: positions(16, LENGTH - 16),
    "of some size": lambda: low((LENGTH, LENGTH), -1e4),
    "other heads": lambda: torch.stack(
        (positions(), positions() | (torch.arange(LENGTH) == 3))
    ).reshape(2, 1, LENGTH, LENGTH),
    "random": lambda: positions() & (torch.rand(LENGTH, LENGTH) < 2),
}


def inputs(rows: int = LENGTH) -> list[Tensor]:
    torch.manual_seed(0)
    lengths = (rows, LENGTH, LENGTH)
    return [torch.randn(2, 3, n, 16).requires_grad_() for n in lengths]


class Seen(CustomGraphPass):
    """Masks and is_causal of the attention in the graphs that it is given."""

    def __init__(self) -> None:
        self.calls: list[tuple[bool, bool]] = []

    def __call__(self, graph: Any) -> None:
        for node in graph.nodes:
            if "flash_attention_for_cpu" in str(node.target):
                names = [a.name for a in node.target._schema.arguments]
                given = dict(zip(names, node.args, strict=False)) | node.kwargs
                masked = given.get("attn_mask") is not None
                self.calls.append((masked, bool(given.get("is_causal"))))

    def uuid(self) -> Any:
        return None


def compiled(function: Callable[..., Tensor], args: list[Tensor]) -> tuple[list[Tensor], Any]:
    """Return result and gradients of a compiled function, and what both graphs have."""
    torch._dynamo.reset()
    seen = Seen()
    options = fuseline.compile_options({"post_grad_custom_pre_pass": seen})
    y = torch.compile(function, fullgraph=True, options=options)(*args)
    return [y, *torch.autograd.grad(y.square().sum(), args)], seen.calls


def attention(mask: Callable[[], Tensor]) -> Callable[..., Tensor]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask())


def wanted(mask: Callable[[], Tensor], args: list[Tensor]) -> list[Tensor]:
    wide = [a.detach().double().requires_grad_() for a in args]
    m = mask()
    y = F.scaled_dot_product_attention(*wide, attn_mask=m if m.dtype == torch.bool else m.double())
    return [t.float() for t in (y, *torch.autograd.grad(y.square().sum(), wide))]


@pytest.mark.parametrize("name", [*CAUSAL, *ALL])
def test_a_mask_that_is_causal_or_hides_nothing_is_not_made(name: str) -> None:
    args, mask = inputs(), (CAUSAL | ALL)[name]
    found, calls = compiled(attention(mask), args)
    torch.testing.assert_close(found, wanted(mask, args), rtol=1e-4, atol=1e-5)
    assert calls == [(False, name in CAUSAL)] * 2


@pytest.mark.parametrize("name", OTHER)
def test_another_mask_stays(name: str) -> None:
    args = inputs(16 if name == "not square" else LENGTH)
    found, calls = compiled(attention(OTHER[name]), args)
    torch.testing.assert_close(found, wanted(OTHER[name], args), rtol=1e-4, atol=1e-5)
    assert calls == [(True, False)] * 2


def test_a_mask_that_is_given_stays() -> None:
    args: Any = inputs()

    def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    run = torch.compile(masked, fullgraph=True, options=fuseline.compile_options())
    for mask in (positions(), positions(shift=1)):
        expected = F.scaled_dot_product_attention(*args, attn_mask=mask)
        torch.testing.assert_close(run(*args, mask), expected)


def test_lengths_that_are_not_known_stay() -> None:
    def of_its_length(q: Tensor) -> Tensor:
        at = torch.arange(q.shape[2])
        return F.scaled_dot_product_attention(q, q, q, attn_mask=at[None, :] <= at[:, None])

    torch._dynamo.reset()
    run = torch.compile(of_its_length, dynamic=True, options=fuseline.compile_options())
    for n in (8, 12):
        q = torch.randn(2, 3, n, 16)
        expected = F.scaled_dot_product_attention(q, q, q, is_causal=True)
        torch.testing.assert_close(run(q), expected)
