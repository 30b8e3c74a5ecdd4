"""The CUDA kernels along other dimensions than the last: each length's, how exact, same bits."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from ops.on_a_gpu import kernels, misaligned

import fuseline
from fuseline import table
from fuseline.core import native
from fuseline.testing import Judge
from fuseline.testing.oracle import accuracy

OPS = ("double_softmax", "log_softmax", "softmax", "softmax_backward")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Columns of one thread, of few and of many; the longest that are held; those in slices.
LENGTHS = (1, 2, 4, 5, 16, 17, 61, 64, 65, 256, 1000, 1027, 2048, 3073, 4096, 4097, 9001)
INNERS = (*range(2, 34), 64, 100, 130, 1000)

pytestmark = pytest.mark.gpu


def _inputs(
    op: str, shape: tuple[int, ...], dtype: torch.dtype, offset: int = 0
) -> dict[str, torch.Tensor]:
    """Those of an operator along dimension 1, `offset` elements behind an aligned address."""
    torch.manual_seed(sum(shape))
    x = misaligned(shape, offset, dtype)
    if op != "softmax_backward":
        return {"x": x}
    y = misaligned(shape, offset, dtype)
    return {"dy": x, "y": y.copy_(y.float().softmax(1))}


def _right(op: str, shape: tuple[int, ...], dtype: torch.dtype, offset: int = 0) -> None:
    """Output and gradients keep the budget of rows, and nothing is copied."""
    spec, call = table.load()[op], partial(getattr(fuseline, op), dim=1, impl="cuda")
    inputs = _inputs(op, shape, dtype, offset)
    dy, before = misaligned(shape, offset, dtype), native.copies()
    leaves = {name: t.requires_grad_() for name, t in inputs.items()}
    y = call(**leaves)
    grads = torch.autograd.grad(y, leaves.values(), dy)
    assert native.copies() == before
    rows = {name: t.detach().transpose(1, 2) for name, t in leaves.items()}
    gradients = {name: g.transpose(1, 2) for name, g in zip(inputs, grads, strict=True)}
    wrong = Judge(spec, rows, "fwd").wrong({"out0": y.detach().transpose(1, 2)})
    wrong = wrong or Judge(spec, rows, "bwd", (dy.transpose(1, 2),)).wrong(gradients)
    assert wrong is None, (shape, wrong)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_columns_keep_the_budget(op: str, dtype: torch.dtype) -> None:
    for n in LENGTHS:
        for inner in (7, 8, 64):
            # Of fp64 so few that long double is the oracle.
            if dtype != torch.float64 or 2 * n * inner <= accuracy.LONGDOUBLE_ELEMENTS:
                _right(op, (2, n, inner), dtype)
    for inner in INNERS:
        _right(op, (3, 61, inner), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_columns_at_odd_addresses_keep_the_budget(op: str, dtype: torch.dtype) -> None:
    for n in (3, 64, 1024, 9001):
        _right(op, (2, n, 32), dtype, 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_a_column_does_not_know_its_batch(op: str, dtype: torch.dtype) -> None:
    """One kernel a call, launched once or for each sum; the same bits beside any, wherever."""
    call = partial(getattr(fuseline, op), dim=1, impl="cuda")
    for n, kind in ((3, "column_kernel"), (1000, "column_kernel"), (9001, "column_slice_kernel")):
        inputs = _inputs(op, (5, n, 96), dtype)
        whole = call(**inputs)
        assert torch.equal(whole, call(**inputs))
        names = kernels(lambda inputs=inputs: call(**inputs))
        assert [kind in name for name in names if "rows::" in name] == [True], names
        # Read by fours, by pairs of half types and by single elements.
        few = [(slice(None), slice(None), slice(k, to)) for k, to in ((32, 40), (2, 8), (1, 14))]
        for part in (slice(0, 1), slice(2, 4), *few):
            assert torch.equal(call(**{k: t[part] for k, t in inputs.items()}), whole[part])


@pytest.mark.parametrize("op", OPS)
def test_empty_tensors(op: str) -> None:
    for shape in ((0, 3, 5), (2, 0, 5), (2, 3, 0)):
        inputs = {name: t.requires_grad_() for name, t in _inputs(op, shape, torch.float32).items()}
        y = getattr(fuseline, op)(**inputs, dim=1, impl="cuda")
        torch.autograd.grad(y, inputs.values(), torch.ones_like(y))
        torch.cuda.synchronize()
        assert y.shape == shape


@pytest.mark.parametrize("shape", [(3, 2**15, 2**15), (1, 2**17, 2**14 + 8)])
def test_more_elements_than_32_bits_count(shape: tuple[int, int, int]) -> None:
    x = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
    y = fuseline.softmax(x, 1, "cuda")
    last = x[-1:, :, -64:].contiguous()
    assert torch.equal(y[-1:, :, -64:], fuseline.softmax(last, 1, "cuda"))
    torch.testing.assert_close(y[-1, :, -1], x[-1, :, -1].softmax(0))
