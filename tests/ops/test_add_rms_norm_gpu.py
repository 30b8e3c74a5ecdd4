"""add_rms_norm in CUDA C++: each regime's kernel, rows misaligned, ranges, each gradient alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops.on_a_gpu import kernels, misaligned

import fuseline
from fuseline import table
from fuseline.ops.rms_norm import reference
from fuseline.testing.trial import Trial, same_bits

OPS = torch.ops.fuseline
SPEC = table.load()["add_rms_norm"]
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Elements of a row, and by how many the pointers miss 16 bytes: a length for each kernel.
LENGTHS = [(61, 0), (128, 0), (130, 0), (512, 0), (1024, 0), (1027, 0), (2048, 0), (4096, 1),
           (8192, 0), (12001, 0), (16384, 0), (20000, 1), (24584, 0), (32768, 0), (70000, 0),
          (800000, 0)]  # fmt: skip

pytestmark = pytest.mark.gpu


def _inputs(rows: int, n: int, offset: int, dtype: torch.dtype) -> dict[str, Any]:
    x, residual = (misaligned((rows, n), offset, dtype) for _ in range(2))
    return {"x": x, "residual": residual, "weight": misaligned((n,), offset, dtype), "eps": 1e-6}


def _trial(dtype: torch.dtype) -> Trial:
    return Trial(SPEC, SPEC.implementation("cuda"), SPEC.cases[0], dtype, torch.device("cuda"))


@pytest.mark.parametrize(
    ("n", "offset", "forward", "backward"),
    [
        (128, 0, "row_kernel<", "BwdShape<8, 1, false"),
        (512, 0, "row_kernel<", "BwdShape<8, 2, false"),
        (1024, 0, "row_kernel<", "BwdShape<8, 4, false"),
        (2048, 0, "row_kernel<", "BwdShape<8, 1, true"),
        (4096, 0, "row_kernel<", "BwdShape<8, 2, true, 512"),
        (8192, 0, "row_kernel<", "BwdShape<8, 2, true, 512"),
        (16384, 0, "row_cluster_kernel", "BwdShape<8, 2, true, 1024"),
        (16392, 0, "row_cluster_kernel", "bwd_grid_kernel<B, B"),
        (32768, 0, "row_cluster_kernel", "bwd_grid_kernel<B, B"),
        (65536, 0, "row_cluster_kernel", "bwd_grid_kernel<B, B"),
        (393216, 0, "row_grid_kernel", "bwd_grid_kernel<B, B"),
        (1 << 19, 0, "row_grid_kernel", "bwd_grid_kernel<B, B"),
        (1 << 20, 0, "row_grid_kernel", "bwd_long_sums_kernel<B, B, 8, (fuse"),
        (4096, 1, "row_short_kernel", "OddShape<8, 0, 512"),
        (1027, 0, "row_short_kernel", "OddShape<9, 128,"),
        (130, 0, "row_short_kernel", "OddShape<9, 16,"),
        (61, 0, "row_short_kernel", "OddShape<4, 16,"),
        (10, 0, "row_short_kernel", "OddShape<4, 4,"),
        (3, 0, "row_short_kernel", "OddShape<4, 4,"),
        (12001, 0, "row_long_kernel", "bwd_long_sums_kernel<B, B, 1"),
        (40000, 1, "row_cluster_kernel", "bwd_long_sums_kernel<B, B, 1, (fuse"),
        (20000, 1, "row_cluster_kernel", "bwd_long_sums_kernel<B, B, 1, (fuse"),
    ],
)  # fmt: skip
def test_each_regime_runs_its_kernel(n: int, offset: int, forward: str, backward: str) -> None:
    inputs = _inputs(5, n, offset, torch.bfloat16)
    leaves = [inputs[name].requires_grad_() for name in ("x", "residual", "weight")]
    outputs = fuseline.add_rms_norm(**inputs, impl="cuda")
    dys = [misaligned((5, n), offset, torch.bfloat16) for _ in range(2)]
    with torch.no_grad():
        names = kernels(lambda: fuseline.add_rms_norm(**inputs))
    assert any(forward in k for k in names), names
    names = kernels(lambda: torch.autograd.grad(outputs, leaves, dys, retain_graph=True))
    assert any(backward in k for k in names), names


@pytest.mark.parametrize(("n", "offset"), LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight", ["same", "float32", "none"])
def test_each_regime_keeps_the_budget(n: int, offset: int, dtype: torch.dtype, weight: str) -> None:
    """Once with fewer rows than a block holds, once with more than the GPU holds at a time."""
    trial = _trial(dtype)
    for rows in (3, 5000 if n < 2000 else 300 if n < 100000 else 40):
        inputs = _inputs(rows, n, offset, dtype)
        if weight == "float32":
            inputs["weight"] = misaligned((n,), offset, torch.float32)
        elif weight == "none":
            inputs["weight"] = None
        with torch.no_grad():
            _, h = fuseline.add_rms_norm(**inputs, impl="cuda")
        assert torch.equal(h, inputs["x"] + inputs["residual"])
        assert trial.wrong(inputs, "fwd") is None
        dys = tuple(misaligned((rows, n), offset, dtype) for _ in range(2))
        assert trial.wrong(inputs, "bwd", dys) is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("packs", [4097, 6144, 6145, 8193, 49151, 49152])
def test_rows_that_no_block_holds_keep_the_budget(packs: int, dtype: torch.dtype) -> None:
    """Around what clusters of 2 and 4 blocks hold, longer ones, and more than are added at once."""
    n, trial = packs * 16 // dtype.itemsize, _trial(dtype)
    for rows in (1, 2, 530 if packs > 49000 else 41):
        inputs = _inputs(rows, n, 0, dtype)
        dys = tuple(misaligned((rows, n), 0, dtype) for _ in range(2))
        assert trial.wrong(inputs, "bwd", dys) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [1024, 4096])
def test_any_one_tensor_may_lie_askew(n: int, dtype: torch.dtype) -> None:
    trial = _trial(dtype)
    for which in range(5):
        offsets = [int(i == which) for i in range(5)]
        x, residual, dy, dh = (misaligned((33, n), o, dtype) for o in offsets[:4])
        inputs = {"x": x, "residual": residual, "eps": 1e-6}
        inputs["weight"] = misaligned((n,), offsets[4], dtype)
        assert trial.wrong(inputs, "fwd") is None
        assert trial.wrong(inputs, "bwd", (dy, dh)) is None


def _all(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    dy: torch.Tensor,
    dh: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    """y, h, rstd, dx, dweight."""
    y, h, rstd = OPS._add_rms_norm_fwd(x, residual, weight, 1e-6)
    return y, h, rstd, *OPS._add_rms_norm_bwd(dy, dh, h, weight, rstd, True, True)


@pytest.mark.parametrize(("n", "offset"), LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_does_not_know_its_batch(n: int, offset: int, dtype: torch.dtype) -> None:
    x, residual, dy, dh = (misaligned((41, n), offset, dtype) for _ in range(4))
    weight = misaligned((n,), offset, dtype)
    together = _all(x, residual, weight, dy, dh)[:4]
    for rows in (slice(0, 1), slice(17, 18), slice(32, 41)):
        alone = _all(x[rows], residual[rows], weight, dy[rows], dh[rows])[:4]
        for whole, part in zip(together, alone, strict=True):
            assert same_bits(whole[rows], part)


@pytest.mark.parametrize(("n", "offset"), LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_gradient_alone_is_as_with_the_others(n: int, offset: int, dtype: torch.dtype) -> None:
    x, residual, dy, dh = (misaligned((200, n), offset, dtype) for _ in range(4))
    weight = misaligned((n,), offset, dtype)
    _, h, rstd = OPS._add_rms_norm_fwd(x, residual, weight, 1e-6)
    for added in (dh, None):
        args = (dy, added, h, weight, rstd)
        dx, dweight = OPS._add_rms_norm_bwd(*args, True, True)
        alone, none = OPS._add_rms_norm_bwd(*args, True, False)
        assert same_bits(alone, dx)
        assert none.shape == (0,)
        none, alone = OPS._add_rms_norm_bwd(*args, False, True)
        assert same_bits(alone, dweight)
        assert none.shape == (0,)
        if added is None:
            zeros = OPS._add_rms_norm_bwd(dy, torch.zeros_like(dh), h, weight, rstd, True, True)
            # 0 is added to -0.
            assert torch.equal(zeros[0], dx)
            assert same_bits(zeros[1], dweight)


@pytest.mark.parametrize("n", [61, 1024, 4096, 70000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_strides_change_no_bit(n: int, dtype: torch.dtype) -> None:
    def strided() -> list[torch.Tensor]:
        gap, wide = 24, torch.randn(9, 3 * n + 24, device="cuda", dtype=dtype)
        return [
            wide[:, :n],
            wide[:, n : 2 * n] if n % 8 == 0 else wide[:, gap : gap + n],
            torch.randn(1, n, device="cuda", dtype=dtype).expand(9, n),
            torch.randn(n, 9, device="cuda", dtype=dtype).t(),
        ]

    weight = torch.randn(2 * n, device="cuda", dtype=dtype)[::2]
    for turn in range(4):
        tensors = strided()
        tensors = tensors[turn:] + tensors[:turn]
        x, residual, dy, dh = tensors
        plain = [t.contiguous() for t in tensors]
        got = _all(x, residual, weight, dy, dh)
        want = _all(plain[0], plain[1], weight.contiguous(), plain[2], plain[3])
        for a, b in zip(got, want, strict=True):
            assert a.is_contiguous()
            assert same_bits(a, b)


@pytest.mark.parametrize("shape", [(0, 32), (3, 0), (2, 0, 61), (0,)])
def test_empty_tensors_are_as_on_the_cpu(shape: tuple[int, ...]) -> None:
    x, dy = torch.randn(shape), torch.randn(shape)
    weight = torch.randn(shape[-1])
    for dh in (dy, None):
        want = _all(x, x, weight, dy, dh)
        got = _all(*(None if t is None else t.cuda() for t in (x, x, weight, dy, dh)))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a.cpu(), b, equal_nan=True)


@pytest.mark.parametrize(("n", "offset"), LENGTHS)
@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(torch.float32, 2.0**100), (torch.float64, 2.0**1000), (torch.bfloat16, 2.0**100)],
)
def test_rows_out_of_range_beside_rows_within(
    n: int, offset: int, dtype: torch.dtype, scale: float
) -> None:
    inputs = _inputs(21, n, offset, dtype)
    small, large, nan = 3, 7, 12
    for x in (inputs["x"], inputs["residual"]):
        x[small] *= 1 / scale
        x[large] *= scale
        x[nan, n // 2] = torch.nan
    inputs["eps"] = 0.0
    y, h = fuseline.add_rms_norm(**inputs, impl="cuda")
    exact = h.double()
    exact[small] *= scale
    exact[large] *= 1 / scale
    expected = reference.rms_norm(exact, inputs["weight"].double(), 0.0)
    assert expected[nan].isnan().all()
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), expected, rtol=8 * eps, atol=8 * eps, equal_nan=True)


@pytest.mark.parametrize(
    ("rows", "n"), [(1, 1 << 20), (1, (1 << 20) - 1), (3, 8209), (3, 32767), (1 << 20, 61)]
)
def test_like_terms_do_not_add_up_their_roundings(rows: int, n: int) -> None:
    """All roundings of a long sum are then of one sign; random rows would hide it."""
    x = torch.full((rows, n), 0.7390851, device="cuda")
    weight = torch.ones(n, device="cuda", requires_grad=True)
    y, _ = fuseline.add_rms_norm(x, x, weight, 0.0, impl="cuda")
    eps = torch.finfo(x.dtype).eps
    assert ((y - 1).abs() <= 4 * eps).all()
    (dweight,) = torch.autograd.grad(y, weight, x)
    exact = x[0, 0].double() * rows
    assert ((dweight.double() / exact - 1).abs() <= 16 * eps).all()


def test_more_elements_than_an_int32_counts() -> None:
    rows, n = 2**20 + 3, 2048 + 8
    x = torch.randn(rows, n, device="cuda", dtype=torch.bfloat16)
    y, h, rstd = OPS._add_rms_norm_fwd(x, x, None, 1e-6)
    assert torch.equal(h[-5:], x[-5:] + x[-5:])
    dx, _ = OPS._add_rms_norm_bwd(x, x, h, None, rstd, True, False)
    part = _all(x[-5:], x[-5:], None, x[-5:], x[-5:])
    for whole, alone in zip((y, h, rstd, dx), part, strict=False):
        assert same_bits(whole[-5:], alone)
