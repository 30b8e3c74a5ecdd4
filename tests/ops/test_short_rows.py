"""Rows of few elements, which the CPU takes by tiles: alone, in any batch and in any layout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ops.budgets import keeps_the_budget
from ops.instruction_sets import BUILT, for_instruction_set
from torch import Tensor
from torch.testing import assert_close

import fuseline
from fuseline import table
from fuseline.core import native
from fuseline.core.specs.spec import Inputs

# Around the limits of what goes by tiles, of every instruction set.
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 32, 33)
ROWS = 150
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# A second input is the first.
CALLS: dict[str, Callable[..., Tensor | tuple[Tensor, ...]]] = {
    "softmax": fuseline.softmax,
    "log_softmax": fuseline.log_softmax,
    "double_softmax": lambda x: fuseline.double_softmax(x, -1),
    "softmax_backward": lambda x: fuseline.softmax_backward(x, x),
    "masked_softmax": lambda x: fuseline.masked_softmax(x, x.detach()),
    "layer_norm": lambda x: fuseline.layer_norm(x, *parameters(x)),
    "rms_norm": lambda x: fuseline.rms_norm(x, parameters(x)[0]),
    "add_rms_norm": lambda x: fuseline.add_rms_norm(x, x, parameters(x)[0]),
    "norm_chain": fuseline.norm_chain,
}
SCALE = torch.tensor(0.01)
FORWARD_ONLY: dict[str, Callable[..., Tensor | tuple[Tensor, ...]]] = {
    "rms_norm_fp8": lambda x: fuseline.rms_norm_fp8(x, parameters(x)[0], SCALE),
    "layer_norm_fp8": lambda x: fuseline.layer_norm_fp8(x, *parameters(x), SCALE),
    "rms_norm_fp8_dynamic": lambda x: fuseline.rms_norm_fp8_dynamic(x, None, block=16),
    "add_rms_norm_fp8_dynamic": lambda x: fuseline.add_rms_norm_fp8_dynamic(x, x, parameters(x)[0]),
    "layer_norm_fp8_dynamic": lambda x: fuseline.layer_norm_fp8_dynamic(x, *parameters(x)),
}

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


def parameters(x: Tensor) -> list[Tensor]:
    return [torch.linspace(start, 2.0, x.shape[-1]).to(x.dtype) for start in (0.5, -1.0)]


def rows(n: int, dtype: torch.dtype) -> Tensor:
    """Ordinary ones, and here and there one that a tile leaves to a row alone."""
    x = torch.randn(ROWS, n, generator=torch.Generator().manual_seed(n))
    x[3] *= 1e30
    x[70] *= 1e-30
    x[71] = 0
    x[72, 0] = torch.nan
    x[73, -1] = torch.inf
    x[140] = -torch.inf
    x[141] += 1e4
    return x.to(dtype)


def results(name: str, x: Tensor) -> list[Tensor]:
    """Return the outputs and the gradient of x, for gradients that each row has of its own."""
    if name in FORWARD_ONLY:
        found = FORWARD_ONLY[name](x)
        return [y.float() for y in (found if isinstance(found, tuple) else (found,))]
    leaf = x.detach().requires_grad_()
    found = CALLS[name](leaf)
    ys = list(found) if isinstance(found, tuple) else [found]
    return ys + list(torch.autograd.grad(ys, leaf, [y.detach().cos() for y in ys]))


def layouts(x: Tensor) -> list[Tensor]:
    """Return x with gaps, of every second element, transposed, and from an odd address."""
    n = x.shape[1]
    wide = x.new_full((len(x), 2 * n + 3), torch.nan)
    gaps, steps = wide[:, :n].copy_(x), wide.clone()[:, 1 : 2 * n + 1 : 2].copy_(x)
    moved = x.new_empty(x.numel() + 1)[1:].view_as(x).copy_(x)
    return [gaps, steps, x.T.contiguous().T, moved]


def all_alike(name: str) -> None:
    for dtype in DTYPES[1:] if name in FORWARD_ONLY else DTYPES:
        for n in LENGTHS:
            x = rows(n, dtype)
            whole = results(name, x)
            for part in (slice(0, 1), slice(60, 67), slice(70, 74), slice(128, ROWS)):
                for a, b in zip(results(name, x[part]), whole, strict=True):
                    assert_close(a, b[part], rtol=0, atol=0, equal_nan=True)
            for laid in layouts(x):
                for a, b in zip(results(name, laid), whole, strict=True):
                    assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", [*CALLS, *FORWARD_ONLY])
def test_a_short_row_knows_neither_its_batch_nor_its_layout(name: str) -> None:
    all_alike(name)


@pytest.mark.parametrize("isa", BUILT[:1])
def test_nor_with_the_kernels_of_other_processors(isa: str) -> None:
    code = "from ops.test_short_rows import CALLS, FORWARD_ONLY, all_alike\n"
    code += "for name in (*CALLS, *FORWARD_ONLY): all_alike(name)"
    for_instruction_set(isa, code)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "norm_chain", "double_softmax"])
def test_short_rows_keep_the_budget(name: str, dtype: torch.dtype) -> None:
    spec = table.load()[name]
    for n in LENGTHS:
        torch.manual_seed(n)  # of the gradients too: of two elements one may leave next to nothing
        x = torch.randn(4096, n).abs().to(dtype)  # norm_chain's sums do not cancel
        inputs: Inputs = {"x": x}
        names = [p for p in ("weight", "bias") if p in spec.differentiable]
        inputs |= dict(zip(names, parameters(x), strict=False))
        if names:
            inputs["eps"] = 1e-5
        keeps_the_budget(spec, "cpu", inputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 2, 7, 15])
def test_gelu_joins_short_rows(n: int, dtype: torch.dtype) -> None:
    """Into rows of several, of which some are left: 4099 is prime."""
    x, bias = torch.randn(4099, n).to(dtype), parameters(torch.empty(n, dtype=dtype))[0]
    keeps_the_budget(
        table.load()["bias_gelu"], "cpu", {"x": x, "bias": bias, "approximate": "tanh"}
    )
    whole = fuseline.bias_gelu(x, bias)
    for part in (slice(0, 5), slice(4090, None)):
        assert torch.equal(whole[part], fuseline.bias_gelu(x[part], bias))
