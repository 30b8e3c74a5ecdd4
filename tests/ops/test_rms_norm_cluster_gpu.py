"""RMSNorm of rows that a cluster of blocks holds: which, how exact, the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops.on_a_gpu import askew, kernels

import fuseline
from fuseline import table
from fuseline.testing.trial import Trial, same_bits

OPS = torch.ops.fuseline
SPEC = table.load()["rms_norm"]
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Accesses of 16 bytes in a row: as many as clusters of 1, 2, 4, 8 and 16 blocks hold, or nearly.
PACKS = (2049, 4096, 4097, 5000, 8192, 8193, 16384, 16385, 32767, 32769, 65535, 65536, 65537)
REGIMES = ("BwdShape", "bwd_cluster_kernel", "bwd_long_dx_kernel")

pytestmark = pytest.mark.gpu


def _trial(dtype: torch.dtype) -> Trial:
    return Trial(SPEC, SPEC.implementation("cuda"), SPEC.cases[0], dtype, torch.device("cuda"))


def _weight(kind: str, n: int, dtype: torch.dtype) -> torch.Tensor | None:
    if kind == "none":
        return None
    return askew((n,), 0, torch.float32 if kind == "float32" else dtype)


def _forward_inputs(op: str, packs: int, dtype: torch.dtype) -> dict[str, Any]:
    n = packs * 16 // dtype.itemsize
    names = ("x", "residual") if op == "add_rms_norm" else ("x",)
    rows = {name: askew((41, n), 0, dtype) for name in names}
    return {**rows, "weight": _weight("same", n, dtype), "eps": 1e-6}


def _tuple(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


@pytest.mark.parametrize("weight", ["same", "float32", "none"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("packs", PACKS)
def test_clusters_keep_the_budget(packs: int, dtype: torch.dtype, weight: str) -> None:
    """Of one row, of fewer than the GPU holds clusters, and of more than it holds large ones."""
    n = packs * 16 // dtype.itemsize
    for rows in (1, 2, 41):
        inputs = {
            "x": askew((rows, n), 0, dtype),
            "weight": _weight(weight, n, dtype),
            "eps": 1e-6,
        }
        assert _trial(dtype).wrong(inputs, "bwd", (askew((rows, n), 0, dtype),)) is None


@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("packs", PACKS)
def test_forward_clusters_keep_the_budget(packs: int, dtype: torch.dtype, op: str) -> None:
    """And know not the batch."""
    inputs, spec = _forward_inputs(op, packs, dtype), table.load()[op]
    trial = Trial(spec, spec.implementation("cuda"), spec.cases[0], dtype, torch.device("cuda"))
    assert trial.wrong(inputs, "fwd") is None
    call = getattr(fuseline, op)
    names = kernels(lambda: call(**inputs, impl="cuda"))
    assert any("fwd_cluster" in k for k in names) == (4096 < packs <= 65536), names
    whole = call(**inputs, impl="cuda")
    for rows in (slice(0, 1), slice(17, 19)):
        part = {k: v[rows] for k, v in inputs.items() if k in ("x", "residual")}
        alone = call(**(inputs | part), impl="cuda")
        for all_rows, some in zip(_tuple(whole), _tuple(alone), strict=True):
            assert same_bits(some, all_rows[rows])


@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("packs", [4097, 16385, 65536])
def test_forward_clusters_look_twice_at_rows_out_of_range(
    packs: int, dtype: torch.dtype, op: str
) -> None:
    inputs, call = _forward_inputs(op, packs, dtype), getattr(fuseline, op)
    h = _tuple(call(**inputs, impl="cuda"))[-1] if op == "add_rms_norm" else inputs["x"]
    row = h[17].double()
    expected = row * (row.square().mean().rsqrt()) * inputs["weight"].double()
    for name in inputs.keys() & {"x", "residual"}:
        inputs[name][17] *= 2.0 ** (530 if dtype == torch.float64 else 80)
    y = _tuple(call(**inputs, impl="cuda"))[0]
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y[17].double(), expected, rtol=4 * eps, atol=0)
    assert y.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("packs", PACKS)
def test_clusters_hold_rows_that_no_block_holds(packs: int, dtype: torch.dtype) -> None:
    """And know neither the batch nor which gradients are asked for."""
    n = packs * 16 // dtype.itemsize
    x, dy, weight = (askew(shape, 0, dtype) for shape in ((41, n), (41, n), (n,)))
    _, rstd = OPS._rms_norm_fwd(x, weight, 1e-6)
    dx, dweight = OPS._rms_norm_bwd(dy, x, weight, rstd, True, True)
    names = kernels(lambda: OPS._rms_norm_bwd(dy, x, weight, rstd, True, True))
    held_by_block = packs <= (2048 if dtype.itemsize == 2 else 4096)
    held_by_cluster = packs <= 65536
    expected = REGIMES[0 if held_by_block else 1 if held_by_cluster else 2]
    assert [r for r in REGIMES if any(r in k for k in names)] == [expected], names
    for rows in (slice(0, 1), slice(17, 18), slice(32, 41)):
        alone, _ = OPS._rms_norm_bwd(dy[rows], x[rows], weight, rstd[rows], True, True)
        assert same_bits(alone, dx[rows])
    assert same_bits(OPS._rms_norm_bwd(dy, x, weight, rstd, True, False)[0], dx)
    assert same_bits(OPS._rms_norm_bwd(dy, x, weight, rstd, False, True)[1], dweight)


@pytest.mark.parametrize(
    ("size", "dtype"),
    [(1, torch.bfloat16), (2, torch.bfloat16), (16, torch.float16), (2, torch.float32),
     (16, torch.float32), (4, torch.float64)],
)  # fmt: skip
def test_clusters_write_several_parts_of_dweight(size: int, dtype: torch.dtype) -> None:
    """Of more rows than all clusters of so many blocks add up before they write a part."""
    rows = torch.cuda.get_device_properties(0).multi_processor_count // size * 64 + 5
    n = (4096 * size - 1) * 16 // dtype.itemsize
    inputs = {"x": askew((rows, n), 0, dtype), "weight": _weight("same", n, dtype), "eps": 1e-6}
    assert _trial(dtype).wrong(inputs, "bwd", (askew((rows, n), 0, dtype),)) is None


def test_clusters_run_in_a_captured_graph() -> None:
    n = 100000
    x, dy, weight = (askew(shape, 0, torch.bfloat16) for shape in ((33, n), (33, n), (n,)))
    args = (dy, x, weight, OPS._rms_norm_fwd(x, weight, 1e-6)[1], True, True)
    OPS._rms_norm_bwd(*args)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = OPS._rms_norm_bwd(*args)
    for _ in range(3):
        dy.normal_()
        graph.replay()
        for got, want in zip(captured, OPS._rms_norm_bwd(*args), strict=True):
            assert same_bits(got, want)
