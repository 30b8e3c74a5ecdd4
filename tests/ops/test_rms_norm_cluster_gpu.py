"""RMSNorm's backward of rows that a cluster of blocks holds: which, how exact, the same bits."""

from __future__ import annotations

import pytest
import torch
from ops.on_a_gpu import askew, kernels

from fuseline import table
from fuseline.testing.trial import Trial, same_bits

OPS = torch.ops.fuseline
SPEC = table.load()["rms_norm"]
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Accesses of 16 bytes in a row: as many as clusters of 1 and 2 blocks hold, or nearly, and one more
# than is left to them.
PACKS = (2049, 4096, 4097, 5000, 8191, 8192, 8193)
REGIMES = ("BwdShape", "bwd_cluster_kernel", "bwd_grid_kernel")

pytestmark = pytest.mark.gpu


def _trial(dtype: torch.dtype) -> Trial:
    return Trial(SPEC, SPEC.implementation("cuda"), SPEC.cases[0], dtype, torch.device("cuda"))


def _weight(kind: str, n: int, dtype: torch.dtype) -> torch.Tensor | None:
    if kind == "none":
        return None
    return askew((n,), 0, torch.float32 if kind == "float32" else dtype)


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
    held_by_cluster = packs <= 8192
    expected = REGIMES[0 if held_by_block else 1 if held_by_cluster else 2]
    assert [r for r in REGIMES if any(r in k for k in names)] == [expected], names
    for rows in (slice(0, 1), slice(17, 18), slice(32, 41)):
        alone, _ = OPS._rms_norm_bwd(dy[rows], x[rows], weight, rstd[rows], True, True)
        assert same_bits(alone, dx[rows])
    assert same_bits(OPS._rms_norm_bwd(dy, x, weight, rstd, True, False)[0], dx)
    assert same_bits(OPS._rms_norm_bwd(dy, x, weight, rstd, False, True)[1], dweight)


@pytest.mark.parametrize(
    ("size", "dtype"),
    [(1, torch.bfloat16), (2, torch.bfloat16), (2, torch.float16), (2, torch.float32),
     (2, torch.float64)],
)  # fmt: skip
def test_clusters_write_several_parts_of_dweight(size: int, dtype: torch.dtype) -> None:
    """Of more rows than all clusters of so many blocks add up before they write a part."""
    rows = torch.cuda.get_device_properties(0).multi_processor_count // size * 64 + 5
    n = (4096 * size - 1) * 16 // dtype.itemsize
    inputs = {"x": askew((rows, n), 0, dtype), "weight": _weight("same", n, dtype), "eps": 1e-6}
    assert _trial(dtype).wrong(inputs, "bwd", (askew((rows, n), 0, dtype),)) is None


def test_clusters_run_in_a_captured_graph() -> None:
    n = 60000
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
