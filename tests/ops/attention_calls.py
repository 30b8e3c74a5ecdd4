"""What tests of attention share: problems, their oracle, and FlashAttention's rule of accuracy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fuseline
from fuseline import table

SPEC = table.load()["attention"]
# Shapes of FlashAttention's tests: queries, keys.
LENGTHS = ((1, 1), (64, 128), (239, 1), (3, 799), (113, 203), (128, 217), (255, 256))


def problem(
    queries: int,
    keys: int,
    d: int,
    dtype: torch.dtype = torch.float32,
    *,
    device: str = "cpu",
    heads: tuple[int, int] = (2, 2),
    batch: int = 2,
    layout: str = "heads first",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return q, k, v and a gradient of the output."""

    def random(heads: int, length: int) -> Tensor:
        t = torch.randn(batch, heads, length, d, device=device).to(dtype)
        if layout == "heads last":
            return t.transpose(1, 2).contiguous().transpose(1, 2)
        if layout == "gaps":
            return t.new_empty(batch, heads, length, d + 3)[..., 1 : d + 1].copy_(t)
        return t.mT.contiguous().mT if layout == "columns" else t

    q, k = heads
    return random(q, queries), random(k, keys), random(k, keys), random(q, queries)


def results(dout: Tensor, *tensors: Any, **options: Any) -> list[Tensor]:
    """Return the output and the gradients of q, k, v and a mask of floats."""
    given = [t.detach().requires_grad_() if _is_floating(t) else t for t in tensors]
    out = fuseline.attention(*given, **options)
    return [out.detach(), *torch.autograd.grad(out, list(filter(_is_floating, given)), dout)]


def oracle(dout: Tensor, *tensors: Any, **options: Any) -> list[Tensor]:
    """Return the same in fp64."""
    given = [t.detach().double().requires_grad_() if _is_floating(t) else t for t in tensors]
    how = {n: v for n, v in options.items() if n != "impl"}
    if isinstance(how.get("window"), int):
        how["window"] = (how["window"] - 1,) * 2
    out = SPEC.reference(*given, **how)
    leaves = list(filter(_is_floating, given))
    return [out.detach(), *torch.autograd.grad(out, leaves, dout.double())]


def _is_floating(t: Any) -> bool:
    return isinstance(t, Tensor) and t.is_floating_point()


def error(found: Tensor, wanted: Tensor) -> float:
    """Return the largest error."""
    assert found.shape == wanted.shape
    return float((found.double() - wanted).abs().max()) if wanted.numel() else 0.0


def hold(dout: Tensor, *tensors: Any, **options: Any) -> None:
    """Require twice the error of the formula in the same type at most, and a few roundings of the
    largest element: see `near`.
    """
    wanted = oracle(dout, *tensors, **options)
    eager = results(dout, *tensors, **{**options, "impl": "eager"})
    near(results(dout, *tensors, **options), eager, wanted, *tensors[:2], options)


def near(
    found: list[Tensor],
    eager: list[Tensor],
    wanted: list[Tensor],
    q: Tensor,
    k: Tensor,
    options: dict[str, Any],
) -> None:
    """Require what `hold` does of the output, and of gradients.

    Half types are rounded once, from float32; the others at each step. A score is rounded as the
    terms of its product, which is a relative error of probabilities, of either side's its own.
    """
    scale = options.get("scale") or q.shape[-1] ** -0.5
    longest = [float(t.double().norm(dim=-1).max()) if t.numel() else 0.0 for t in (q, k)]
    scores = abs(scale) * longest[0] * longest[1]
    unit = float(wanted[0].shape[-1] * max(wanted[0].shape[-3:-1])) ** 0.5
    for f, e, w in zip(found, eager, wanted, strict=True):
        # Where one key is seen the gradients of q and k are 0: differences of sums of products.
        largest = float(w.abs().max()) if w.numel() else 0.0
        largest = unit if largest < 1e-12 else largest
        roundings = 4 if f.dtype in (torch.float16, torch.bfloat16) else 8 + scores
        limit = 2 * error(e, w) + roundings * torch.finfo(f.dtype).eps * largest
        assert error(f, w) <= limit, (tuple(f.shape), f.dtype, options)
