"""rms_norm_fp8 in CUDA C++: each regime's kernel, rows misaligned, ranges, a scale that changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops.on_a_gpu import kernels, misaligned
from ops.test_rms_norm_fp8 import FP8, same

import fuseline
from fuseline import table
from fuseline.testing.trial import Trial

SPEC = table.load()["rms_norm_fp8"]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Elements of a row, and by how many the pointers miss 16 bytes: a length for each kernel.
LENGTHS = [(8, 0), (61, 0), (128, 0), (130, 0), (512, 0), (515, 0), (1024, 0), (1027, 0), (2048, 0),
           (4096, 1), (4098, 0), (8192, 0), (12001, 0), (16384, 0), (20000, 1), (32768, 0),
           (65536, 0), (40000, 1), (131072, 0)]  # fmt: skip

pytestmark = pytest.mark.gpu


def _inputs(rows: int, n: int, offset: int, dtype: torch.dtype) -> dict[str, Any]:
    x, weight = misaligned((rows, n), offset, dtype), misaligned((n,), offset, dtype)
    return {"x": x, "weight": weight, "scale": torch.tensor([0.013], device="cuda"), "eps": 1e-6}


def _trial(dtype: torch.dtype) -> Trial:
    return Trial(SPEC, SPEC.implementation("cuda"), SPEC.cases[0], dtype, torch.device("cuda"))


@pytest.mark.parametrize(
    ("n", "offset", "kernel"),
    [
        (128, 0, "row_kernel<"),
        (512, 0, "row_kernel<"),
        (1024, 0, "row_kernel<"),
        (4096, 0, "row_kernel<"),
        (8192, 0, "row_kernel<"),
        (16384, 0, "row_kernel<"),
        (32768, 0, "row_cluster_kernel"),
        (65536, 0, "row_cluster_kernel"),
        (131072, 0, "row_long_kernel"),
        (1 << 20, 0, "row_grid_kernel"),
        (61, 0, "row_short_kernel"),
        (130, 0, "row_short_kernel"),
        (515, 0, "row_short_kernel"),
        (1027, 0, "row_short_kernel"),
        (4096, 1, "row_short_kernel"),
        (20000, 1, "row_cluster_kernel"),
        (40000, 1, "row_cluster_kernel"),
    ],
)
def test_each_regime_runs_its_kernel(n: int, offset: int, kernel: str) -> None:
    inputs = _inputs(5, n, offset, torch.bfloat16)
    names = kernels(lambda: fuseline.rms_norm_fp8(**inputs))
    assert any(kernel in k and "__nv_fp8_e4m3" in k for k in names), names


@pytest.mark.parametrize(("n", "offset"), LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight", ["same", "float32", "none"])
def test_each_regime_keeps_the_budget(n: int, offset: int, dtype: torch.dtype, weight: str) -> None:
    """Once with fewer rows than a block holds, once with more than the GPU holds at a time."""
    for rows in (3, 5000 if n < 2000 else 300):
        inputs = _inputs(rows, n, offset, dtype)
        if weight == "float32":
            inputs["weight"] = misaligned((n,), offset, torch.float32)
        elif weight == "none":
            inputs["weight"] = None
        assert _trial(dtype).wrong(inputs, "fwd") is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1024, 4096])
def test_any_one_tensor_may_lie_askew(n: int, dtype: torch.dtype) -> None:
    for askew_x, askew_weight in ((1, 0), (0, 1), (2, 3)):
        inputs = _inputs(33, n, 0, dtype)
        inputs["x"] = misaligned((33, n), askew_x, dtype)
        inputs["weight"] = misaligned((n,), askew_weight, dtype)
        assert _trial(dtype).wrong(inputs, "fwd") is None


@pytest.mark.parametrize(("n", "offset"), LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_does_not_know_its_batch(n: int, offset: int, dtype: torch.dtype) -> None:
    inputs = _inputs(41, n, offset, dtype)
    together = fuseline.rms_norm_fp8(**inputs)
    for rows in (slice(0, 1), slice(17, 18), slice(32, 41)):
        alone = fuseline.rms_norm_fp8(**{**inputs, "x": inputs["x"][rows]})
        assert same(together[rows], alone)


@pytest.mark.parametrize("n", [61, 1024, 4096, 140000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_strides_change_no_bit(n: int, dtype: torch.dtype) -> None:
    wide = torch.randn(9, 2 * n + 24, device="cuda", dtype=dtype)
    weight = torch.randn(2 * n, device="cuda", dtype=dtype)[::2]
    scale = torch.tensor([0.5, 0.02], device="cuda")[1:]
    for x in (wide[:, :n], wide[:, 24 : 24 + n], wide[:1, :n].expand(9, n), wide[:, : 2 * n : 2]):
        got = fuseline.rms_norm_fp8(x, weight, scale, 1e-6)
        want = fuseline.rms_norm_fp8(x.contiguous(), weight.contiguous(), scale.clone(), 1e-6)
        assert got.is_contiguous()
        assert same(got, want)


@pytest.mark.parametrize("shape", [(0, 32), (3, 0), (2, 0, 61), (0,)])
def test_empty_tensors_stay_empty(shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape, device="cuda"), torch.randn(shape[-1], device="cuda")
    y = fuseline.rms_norm_fp8(x, weight, torch.ones((), device="cuda"))
    assert y.shape == shape
    assert y.dtype == FP8


@pytest.mark.parametrize(("n", "offset"), LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_out_of_range_beside_rows_within(n: int, offset: int, dtype: torch.dtype) -> None:
    """A power of two changes no bit of the norm; the order of a sum may, by a step of e4m3."""
    inputs = {**_inputs(21, n, offset, dtype), "eps": 0.0}
    plain = fuseline.rms_norm_fp8(**inputs).float()
    small, large, nan = 3, 7, 12
    inputs["x"][small] *= 2.0**-100
    inputs["x"][large] *= 2.0**100
    inputs["x"][nan, n // 2] = torch.nan
    y = fuseline.rms_norm_fp8(**inputs).float()
    assert y[nan].isnan().all()
    plain[nan] = torch.nan
    torch.testing.assert_close(y, plain, rtol=2**-3, atol=2**-9, equal_nan=True)
    assert (y != plain)[[small, large]].float().mean() < 0.01


def test_the_scale_is_read_when_the_kernel_runs() -> None:
    inputs = _inputs(33, 1024, 0, torch.bfloat16)
    fuseline.rms_norm_fp8(**inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fuseline.rms_norm_fp8(**inputs)
    for scale in (0.5, 0.031, -2.0):
        inputs["scale"].fill_(scale)
        graph.replay()
        assert same(y, fuseline.rms_norm_fp8(**inputs))


def test_more_elements_than_an_int32_counts() -> None:
    rows, n = 2**20 + 3, 2048 + 8
    x = torch.randn(rows, n, device="cuda", dtype=torch.bfloat16)
    scale = torch.tensor(0.02, device="cuda")
    whole = fuseline.rms_norm_fp8(x, None, scale)
    assert same(whole[-5:], fuseline.rms_norm_fp8(x[-5:], None, scale))
