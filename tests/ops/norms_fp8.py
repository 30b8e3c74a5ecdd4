"""What tests of norms in float8_e4m3fn by scales of their own share: inputs, calls, comparisons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import fuseline
from fuseline import table
from fuseline.testing.oracle.accuracy import errors, over_budget

FP8 = torch.float8_e4m3fn
LEAST = 2.0**-126
# Names of what an operator takes beside x and the weight.
OTHERS = {
    "rms_norm_fp8_dynamic": (),
    "add_rms_norm_fp8_dynamic": ("residual",),
    "layer_norm_fp8_dynamic": ("bias",),
}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BLOCKS = (None, 16, 128)
SPECS = table.load()


def given(
    op: str, shape: tuple[int, ...], dtype: torch.dtype, device: str = "cpu", **options: Any
) -> dict[str, Any]:
    """Return the inputs of an operator: rows that lie apart, and all from N(0, 1)."""
    *lead, n = shape
    rows = [name for name in ("x", "residual") if name in ("x", *OTHERS[op])]
    tensors = {r: torch.randn(*lead, n + 6, device=device).to(dtype)[..., 6:] for r in rows}
    for name in ("weight", "bias"):
        if name in ("weight", *OTHERS[op]):
            tensors[name] = torch.randn(n, device=device).to(dtype)
    return {**tensors, "eps": 1e-6, "block": None, "scale_ub": None, **options}


def call(op: str, inputs: dict[str, Any], impl: str = "auto") -> tuple[Tensor, ...]:
    function: Callable[..., tuple[Tensor, ...]] = getattr(fuseline, op)
    return function(**inputs, impl=impl)


def same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors have the same bits, NaN included."""
    kinds = (a.dtype, a.shape) == (b.dtype, b.shape)
    return kinds and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def wrong(op: str, inputs: dict[str, Any], outputs: tuple[Tensor, ...]) -> str | None:
    """Return why y is not the e4m3 value nearest to the fp64 oracle's, or a scale is off, or None.

    The sum with a residual is the implementation's own: its rounding is tested apart.
    """
    inputs, norm = dict(inputs), op
    if "residual" in inputs:
        norm, inputs["x"] = "rms_norm_fp8_dynamic", outputs[2]
        del inputs["residual"]
    named = {f"out{i}": t for i, t in enumerate(outputs[:2])}
    figures = errors(SPECS[norm], inputs, "fwd", named)
    if figures["out1"].max_ulp > 4.0:
        return f"scale: {figures['out1'].max_ulp} ULP"
    return over_budget(SPECS[norm].budget, FP8, "fwd", figures["out0"], None)


def by_blocks(t: Tensor, block: int | None) -> list[Tensor]:
    """Return the blocks of the last dimension."""
    return [t] if block is None else list(t.split(block, -1))
