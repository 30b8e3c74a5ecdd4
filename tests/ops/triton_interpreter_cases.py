"""RMSNorm's Triton kernels on the CPU; needs TRITON_INTERPRET=1 before triton is imported.

Run by test_rms_norm_triton.py in a process of its own, so that the variable reaches nobody else.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fuseline
from fuseline.core.selection.tuned import Tile
from fuseline.ops.rms_norm.impl_triton import bwd, fwd

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
LENGTHS = (1, 2, 61, 64, 130, 257, 1027, 4096, 33000)

FWD_ULP = {torch.float64: 8, torch.float32: 2, torch.float16: 0.51, torch.bfloat16: 0.51}
# In eps times the largest gradient.
BWD_EPS = {torch.float64: 8, torch.float32: 8, torch.float16: 1, torch.bfloat16: 1}


pytestmark = pytest.mark.usefixtures("interpreter_as_a_gpu", "few_programs")


def exact(t: torch.Tensor) -> np.ndarray:
    return t.double().numpy().astype(np.longdouble)


def oracle(x, weight, eps, dy, offset):
    """y, dx, dweight of the formula, in 80-bit floats."""
    x, dy = exact(x), exact(dy)
    w = np.longdouble(1) if weight is None else offset + exact(weight)
    rstd = 1 / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + np.longdouble(eps))
    xhat = x * rstd
    dx = rstd * (dy * w - xhat * np.mean(dy * w * xhat, axis=1, keepdims=True))
    return xhat * w, dx, np.sum(dy * xhat, axis=0)


def ulp_error(got: torch.Tensor, want: np.ndarray) -> float:
    info = torch.finfo(got.dtype)
    size = np.maximum(np.abs(want), np.longdouble(info.tiny))
    spacing = np.exp2(np.floor(np.log2(size))) * np.longdouble(info.eps)
    return float(np.max(np.abs(exact(got) - want) / spacing))


def eps_error(got: torch.Tensor, want: np.ndarray) -> float:
    largest = np.max(np.abs(want))
    return float(np.max(np.abs(exact(got) - want)) / largest / torch.finfo(got.dtype).eps)


def eager(x: torch.Tensor, weight: torch.Tensor | None, eps: float, offset: float) -> torch.Tensor:
    y = x * torch.rsqrt(x.square().mean(1, keepdim=True) + eps)
    return y if weight is None else y * (offset + weight)


def random(rows: int, n: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + rows * n)
    return torch.randn(rows, n, dtype=torch.float64, generator=generator).to(dtype)


def weight_of(kind: str, n: int, dtype: torch.dtype) -> torch.Tensor | None:
    if kind == "none":
        return None
    w = 1 + 0.25 * random(1, n, torch.float64, seed=7)[0]
    return w.to(torch.float32 if kind == "fp32" else dtype)


def check(x, weight, eps, dy, gradients=True, offset=0.0):
    """Forward and backward against the oracle; outputs contiguous, inputs untouched."""
    before = [t.clone() for t in (x, dy)]
    y, rstd = fwd(x, weight, eps, save_rstd=True, weight_offset=offset)
    want_y, want_dx, want_dw = oracle(x, weight, eps, dy, offset)
    assert y.is_contiguous()
    assert y.dtype == x.dtype
    assert rstd.dtype == (torch.float64 if x.dtype == torch.float64 else torch.float32)
    limit = FWD_ULP[x.dtype]
    if x.dtype == torch.float32 and offset:
        limit += 1  # one rounding more
    if x.dtype == torch.float32 and eps > 0:
        limit = max(limit, 2 * ulp_error(eager(x, weight, eps, offset), want_y))
    assert ulp_error(y, want_y) <= limit
    if gradients:
        dx, dweight = bwd(dy, x, weight, rstd, True, True, weight_offset=offset)
        assert dx.is_contiguous()
        assert dx.dtype == x.dtype
        # A row of one element has gradient 0: what is left of it is the rounding of its two terms.
        if x.shape[1] > 1:
            assert eps_error(dx, want_dx) <= BWD_EPS[x.dtype]
        if weight is None:
            assert dweight is None
        else:
            assert dweight.dtype == weight.dtype
            assert eps_error(dweight, want_dw) <= BWD_EPS[weight.dtype]
    for t, old in zip((x, dy), before, strict=True):
        assert torch.equal(t, old)


@pytest.mark.parametrize(  # long rows of one half type: the interpreter is slow
    ("n", "dtype"), [(n, d) for n in LENGTHS for d in DTYPES if n < 1000 or d != torch.float16]
)
def test_every_length(n, dtype):
    rows = 3 if n > 4096 else 7
    check(random(rows, n, dtype), weight_of("same", n, dtype), 1e-5, random(rows, n, dtype, 1))


@pytest.mark.parametrize(
    ("n", "dtype"), [*((61, t) for t in DTYPES), (2048, torch.bfloat16), (33000, torch.bfloat16)]
)
@pytest.mark.parametrize("kind", ["none", "fp32"])
def test_every_weight(kind, n, dtype):
    check(random(5, n, dtype), weight_of(kind, n, dtype), 1e-6, random(5, n, dtype, 1))


@pytest.mark.parametrize(
    ("n", "kind", "dtype"),
    [
        *((61, kind, dtype) for kind in ("same", "fp32") for dtype in DTYPES),
        *((70000, "same", dtype) for dtype in (torch.float64, torch.float32)),
    ],
)
def test_every_weight_with_an_offset(n, kind, dtype):
    """0.1 has no exact fp32, so fp64 shows whether it came whole."""
    offset = 0.1 if dtype == torch.float64 else 1.0
    x, w, dy = random(3, n, dtype), weight_of(kind, n, dtype), random(3, n, dtype, 1)
    x[1] *= 2.0**-100 if dtype in (torch.float32, torch.bfloat16) else 1.0  # looked at twice
    check(x, w, 0.0, dy, gradients=False, offset=offset)
    x = random(3, n, dtype)
    check(x, w, 1e-6, dy, offset=offset)


@pytest.mark.parametrize(("n", "pad"), [(130, 1), (130, 6), (1027, 32), (33000, 6)])
def test_row_stride(n, pad):
    x = random(5, n + pad, torch.float32)[:, pad:]
    dy = random(5, n + 3 * pad, torch.float32, 1)[:, :n]
    assert x.stride(0) != n != dy.stride(0)
    check(x, weight_of("same", n, x.dtype), 1e-5, dy)


@pytest.mark.parametrize("n", [64, 33000])
def test_row_stride_zero(n):
    row, drow = random(1, n, torch.float32), random(1, n, torch.float32, 1)
    check(row.expand(6, n), weight_of("same", n, row.dtype), 1e-5, drow.expand(6, n))


@pytest.mark.parametrize("n", [61, 2048, 33000])
@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        (torch.float32, 1e30),
        (torch.float32, 1e-30),
        (torch.bfloat16, 1e30),
        (torch.bfloat16, 1e-30),
        (torch.float64, 1e200),
        (torch.float64, 1e-200),
    ],
    ids=str,
)
def test_magnitudes_without_eps(dtype, scale, n):
    x = (random(5, n, torch.float64) * scale).to(dtype)
    dy = random(5, n, dtype, 1)
    check(x, weight_of("same", n, dtype), 0.0, dy, gradients=n < 33000)


@pytest.mark.parametrize("n", [61, 70000])
@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 1e-41), (torch.float64, 1e-310)])
def test_subnormal_rows_forward(dtype, scale, n):
    x = (random(3, n, torch.float64) * scale).to(dtype)
    check(x, weight_of("same", n, dtype), 0.0, random(3, n, dtype, 1), gradients=False)


@pytest.mark.parametrize(("dtype", "eps"), [(torch.float32, 1e-41), (torch.float64, 1e-5)])
def test_eps_is_exact(dtype, eps):
    """The mean square is far below eps, and eps has no exact (or no normal) fp32 value."""
    x = (random(3, 61, torch.float64) * eps).to(dtype)
    check(x, None, eps, random(3, 61, dtype, 1), gradients=False)


def test_second_look_leaves_the_other_rows_alone():
    x = random(64, 61, torch.float32)
    plain, _ = fwd(x, None, 0.0, save_rstd=False)
    x[17] *= 1e30
    x[40] *= 1e-30
    y, _ = fwd(x, None, 0.0, save_rstd=False)
    others = [i for i in range(64) if i not in (17, 40)]
    assert torch.equal(y[others], plain[others])
    torch.testing.assert_close(y[[17, 40]], plain[[17, 40]], rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [130, 33000])
def test_inf_and_nan_stay_in_their_rows(n, dtype):
    x, w, dy = random(4, n, dtype), weight_of("same", n, dtype), random(4, n, dtype, 1)
    clean, clean_rstd = fwd(x, w, 1e-5, save_rstd=True)
    clean_dx, _ = bwd(dy, x, w, clean_rstd, need_dx=True, need_dweight=False)
    x[1, 5], x[2, 7] = float("inf"), float("nan")
    y, rstd = fwd(x, w, 1e-5, save_rstd=True)
    dx, _ = bwd(dy, x, w, rstd, need_dx=True, need_dweight=False)
    assert rstd[1] == 0
    assert y[1, 5].isnan()
    assert y[1].nan_to_num(0).abs().sum() == 0
    assert y[1].isnan().sum() == 1
    assert y[2].isnan().all()
    assert dx[1:3].isnan().all()
    assert torch.equal(y[[0, 3]], clean[[0, 3]])
    assert torch.equal(dx[[0, 3]], clean_dx[[0, 3]])


@pytest.mark.parametrize("n", [1, 61, 33000])
def test_no_rows(n):
    x, w = torch.empty(0, n), torch.ones(n)
    y, rstd = fwd(x, w, 1e-5, save_rstd=True)
    dx, dweight = bwd(x, x, w, rstd, need_dx=True, need_dweight=True)
    assert y.shape == dx.shape == (0, n)
    assert rstd.shape == (0,)
    assert torch.equal(dweight, torch.zeros(n))


def test_no_columns():
    x, w = torch.empty(3, 0), torch.empty(0)
    y, rstd = fwd(x, w, 1e-5, save_rstd=True)
    dx, dweight = bwd(x, x, w, rstd, need_dx=True, need_dweight=True)
    assert y.shape == dx.shape == (3, 0)
    assert rstd.isnan().all()
    assert dweight.shape == (0,)


@pytest.mark.parametrize("n", [61, 1027, 33000])
def test_only_what_is_needed_is_computed(n):
    x, dy = random(9, n, torch.float32), random(9, n, torch.float32, 1)
    w = weight_of("same", n, torch.float32)
    y, none = fwd(x, w, 1e-5, save_rstd=False)
    y_too, rstd = fwd(x, w, 1e-5, save_rstd=True)
    assert none is None
    assert torch.equal(y, y_too)
    launched: list[str] = []

    def spy(kernel):
        launched.append(kernel.fn.__name__)
        return kernel

    both = bwd(dy, x, w, rstd, need_dx=True, need_dweight=True)
    dx, no_dweight = bwd(dy, x, w, rstd, need_dx=True, need_dweight=False, wrap=spy)
    assert len(launched) == 1
    no_dx, dweight = bwd(dy, x, w, rstd, need_dx=False, need_dweight=True, wrap=spy)
    assert len(launched) == 3
    assert bwd(dy, x, w, rstd, need_dx=False, need_dweight=False, wrap=spy) == (None, None)
    assert len(launched) == 3
    assert no_dx is None
    assert no_dweight is None
    assert torch.equal(dx, both[0])
    assert torch.equal(dweight, both[1])


@pytest.mark.parametrize("n", [2, 61, 1027, 33000])
def test_a_row_does_not_depend_on_the_number_of_rows(n):
    x, dy = random(9, n, torch.float32), random(9, n, torch.float32, 1)
    y, rstd = fwd(x, None, 1e-5, save_rstd=True)
    dx, _ = bwd(dy, x, None, rstd, need_dx=True, need_dweight=False)
    y_one, rstd_one = fwd(x[8:], None, 1e-5, save_rstd=True)
    dx_one, _ = bwd(dy[8:], x[8:], None, rstd_one, need_dx=True, need_dweight=False)
    assert torch.equal(y[8:], y_one)
    assert torch.equal(dx[8:], dx_one)


def test_many_rows_reach_dweight():
    """More rows than the persistent grid holds at once, and a last tile that is not full."""
    x, dy = random(5003, 16, torch.float32), random(5003, 16, torch.float32, 1)
    check(x, weight_of("same", 16, x.dtype), 1e-5, dy)


def test_like_terms_do_not_add_up_their_roundings():
    """All roundings of a long sum are then of one sign; random rows would hide it."""
    x = torch.full((1, 1 << 19), 0.7390851)
    y, _ = fwd(x, None, 0.0, save_rstd=False)
    assert ((y - 1).abs() <= 4 * torch.finfo(y.dtype).eps).all()
    x, weight = x.view(-1, 1), torch.ones(1)
    rstd = torch.ones(x.shape[0])
    _, dweight = bwd(x, x, weight, rstd, need_dx=False, need_dweight=True)
    torch.testing.assert_close(dweight, (x.double() ** 2).sum(0).float(), rtol=1e-6, atol=0.0)


def test_the_small_elements_of_a_large_row_keep_their_bits():
    x = torch.tensor([[1e155, 1e-140], [1e-200, 1e-220]], dtype=torch.float64)
    check(x, torch.tensor([1.0, 1e100], dtype=torch.float64), 0.0, x, gradients=False)


def test_a_negated_view_keeps_its_sign():
    x, weight = torch.randn(3, 5), torch.randn(5)
    y = fuseline.rms_norm(torch._neg_view(x), torch._neg_view(weight), 1e-6, impl="triton")
    torch.testing.assert_close(y, fuseline.rms_norm(x, weight, 1e-6, impl="eager"))


def test_the_raw_backward_refuses_what_it_cannot_read():
    x = torch.randn(4, 8)
    rstd = torch.ones(4)
    op = torch.ops.fuseline._rms_norm_bwd__triton
    for dy, saved, name in ((x[:1], rstd, "dy"), (x.double(), rstd, "dy"), (x, rstd[:1], "rstd")):
        with pytest.raises(ValueError, match=name):
            op(dy, x, None, saved, True, False)


@pytest.mark.parametrize(
    ("n", "tile"),
    [
        (61, Tile(256, 1, weight_first=True)),
        (257, Tile(512, 2)),
        (257, Tile(64, 1, weight_first=True)),  # in blocks
        (1027, Tile(4096, 4, 2, 3)),
    ],
)
@pytest.mark.parametrize("weighted", [True, False])
def test_any_tile_gives_what_the_tables_tile_gives(n, tile, weighted):
    x, dy = torch.randn(2, 37, n)
    x[3] *= 1e-25  # looked at twice
    w = torch.randn(n) if weighted else None
    usual, rstd = fwd(x, w, 1e-60, True)
    y, again = fwd(x, w, 1e-60, True, tile=tile)
    torch.testing.assert_close(y, usual, rtol=1e-6, atol=0)
    torch.testing.assert_close(again, rstd, rtol=1e-6, atol=0)
    for got, want in zip(
        bwd(dy, x, w, rstd, True, True, tile=tile), bwd(dy, x, w, rstd, True, True), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4 * rstd.max().item())
