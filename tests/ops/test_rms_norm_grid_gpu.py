"""RMSNorm of rows that blocks of one resident grid share: which, how exact, the same bits."""

from __future__ import annotations

import pytest
import torch
from ops.on_a_gpu import kernels, misaligned

from fuseline import table
from fuseline.testing.trial import Trial, same_bits

OPS = torch.ops.fuseline
SPEC = table.load()["rms_norm"]
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Accesses of 16 bytes in a row: slices of full lines, of a line begun, and the longest rows.
PACKS = (2049, 4096, 4097, 8200, 12001, 16384, 16385, 33333, 65537, 131072)
RINGS = 300  # rows: more than all groups hold in shared memory

pytestmark = pytest.mark.gpu


def _trial(dtype: torch.dtype) -> Trial:
    return Trial(SPEC, SPEC.implementation("cuda"), SPEC.cases[0], dtype, torch.device("cuda"))


def _length(packs: int, dtype: torch.dtype) -> int:
    return packs * 16 // dtype.itemsize


@pytest.mark.parametrize("weight", ["same", "float32", "none"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("packs", PACKS)
def test_shared_rows_keep_the_budget(packs: int, dtype: torch.dtype, weight: str) -> None:
    """Of one row, of a few for each group of blocks, and of more than these hold at once."""
    n = _length(packs, dtype)
    kind = torch.float32 if weight == "float32" else dtype
    for rows in (1, 41, RINGS) if packs < 20000 else (1, 2, 41):
        inputs = {
            "x": misaligned((rows, n), 0, dtype),
            "weight": None if weight == "none" else misaligned((n,), 0, kind),
            "eps": 1e-6,
        }
        assert _trial(dtype).wrong(inputs, "fwd") is None
        assert _trial(dtype).wrong(inputs, "bwd", (misaligned((rows, n), 0, dtype),)) is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("packs", PACKS)
def test_shared_rows_know_neither_batch_nor_gradients(packs: int, dtype: torch.dtype) -> None:
    n = _length(packs, dtype)
    x, dy, weight = (misaligned(shape, 0, dtype) for shape in ((41, n), (41, n), (n,)))
    y, rstd = OPS._rms_norm_fwd(x, weight, 1e-6)
    dx, dweight = OPS._rms_norm_bwd(dy, x, weight, rstd, True, True)
    names = kernels(lambda: OPS._rms_norm_bwd(dy, x, weight, rstd, True, True))
    held_by_block = packs <= (2048 if dtype.itemsize == 2 else 4096)
    assert any("bwd_grid_kernel" in k for k in names) != held_by_block, names
    for rows in (slice(0, 1), slice(17, 18), slice(32, 41)):
        parts = OPS._rms_norm_fwd(x[rows], weight, 1e-6)
        alone, _ = OPS._rms_norm_bwd(dy[rows], x[rows], weight, rstd[rows], True, True)
        for whole, part in zip((y, rstd, dx), (*parts, alone), strict=True):
            assert same_bits(whole[rows], part)
    assert same_bits(OPS._rms_norm_bwd(dy, x, weight, rstd, True, False)[0], dx)
    assert same_bits(OPS._rms_norm_bwd(dy, x, weight, rstd, False, True)[1], dweight)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_out_of_range_disturbs_no_other(dtype: torch.dtype) -> None:
    """Squares that overflow, vanish, or are NaN or Inf, in the midst of rows that have none."""
    n = _length(20000, dtype)
    x, weight = misaligned((RINGS, n), 0, dtype), misaligned((n,), 0, dtype)
    plain, plain_rstd = OPS._rms_norm_fwd(x, weight, 0.0)
    info = torch.finfo(dtype)
    odd = {3: info.max / 8, 4: info.tiny, 150: torch.inf, 299: torch.nan}
    for row, scale in odd.items():
        x[row] *= scale
    y, rstd = OPS._rms_norm_fwd(x, weight, 0.0)
    others = [row for row in range(RINGS) if row not in odd]
    assert same_bits(y[others], plain[others])
    assert same_bits(rstd[others], plain_rstd[others])
    assert y[[150, 299]].isnan().all()
    for row in (slice(3, 4), slice(4, 5)):
        inputs = {"x": x[row].clone(), "weight": weight, "eps": 0.0}
        assert _trial(dtype).wrong(inputs, "fwd") is None
        assert same_bits(OPS._rms_norm_fwd(inputs["x"], weight, 0.0)[0], y[row])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_groups_write_several_parts_of_dweight(dtype: torch.dtype) -> None:
    """Of more rows than all groups add up before they write a part."""
    rows = torch.cuda.get_device_properties(0).multi_processor_count // 8 * 64 + 5
    n = _length(8193, dtype)
    inputs = {
        "x": misaligned((rows, n), 0, dtype),
        "weight": misaligned((n,), 0, dtype),
        "eps": 1e-6,
    }
    assert _trial(dtype).wrong(inputs, "bwd", (misaligned((rows, n), 0, dtype),)) is None


def test_shared_rows_run_in_a_captured_graph() -> None:
    """Sums of the replay before are not taken for those of this one."""
    n = 200000
    x, dy, weight = (misaligned(shape, 0, torch.bfloat16) for shape in ((33, n), (33, n), (n,)))

    def both() -> tuple[torch.Tensor, ...]:
        y, rstd = OPS._rms_norm_fwd(x, weight, 1e-6)
        return y, rstd, *OPS._rms_norm_bwd(dy, x, weight, rstd, True, True)

    both()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both()
    for _ in range(3):
        x.normal_()
        dy.normal_()
        graph.replay()
        for got, want in zip(captured, both(), strict=True):
            assert same_bits(got, want)


def test_two_streams_share_rows_at_once() -> None:
    """Each waits until the GPU holds all its blocks, not for the other's."""
    n = 1 << 18
    xs = [misaligned((200, n), 0, torch.bfloat16) for _ in range(2)]
    expected = [OPS.rms_norm(x, None, 1e-6) for x in xs]
    streams = [torch.cuda.Stream() for _ in xs]
    torch.cuda.synchronize()
    got = []
    for _ in range(5):
        for x, stream in zip(xs, streams, strict=True):
            with torch.cuda.stream(stream):
                got.append(OPS.rms_norm(x, None, 1e-6))
    torch.cuda.synchronize()
    assert all(same_bits(y, expected[i % 2]) for i, y in enumerate(got))
