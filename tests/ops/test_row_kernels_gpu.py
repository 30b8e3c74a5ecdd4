"""The CUDA kernels that operators on rows share: each length's, how exact, the same bits."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from ops.on_a_gpu import kernels, misaligned

from fuseline import table
from fuseline.core.specs.spec import Case, OpSpec
from fuseline.testing.oracle.accuracy import as_tuple
from fuseline.testing.trial import Trial

OPS = (
    "add_rms_norm", "double_softmax", "horizontal_reduction_pointwise",
    "horizontal_reduction_reduction", "layer_norm", "log_softmax", "masked_softmax", "norm_chain",
    "rms_norm", "softmax", "softmax_backward",
)  # fmt: skip
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# Rows of a thread, part of a warp, of one, of blocks, clusters, and longer; whole 16-byte accesses
# and not.
LENGTHS = (1, 3, 7, 9, 15, 17, 61, 64, 77, 100, 128, 197, 256, 510, 512, 520, 577, 1001, 1024, 1500,
           1027, 2048, 4096, 4104)  # fmt: skip
LONG = (8192, 8200, 9001, 16384, 20000, 30522, 32768, 40001, 50257, 65536, 70000, 151655, 2000003)
HALF = (torch.float16, torch.bfloat16)
STREAMED = {  # where rows are long and many
    "add_rms_norm": (*HALF, torch.float32),
    "double_softmax": HALF,
    "horizontal_reduction_pointwise": HALF,
    "layer_norm": (*HALF, torch.float32),
    "rms_norm": (*HALF, torch.float32),
    "softmax": HALF,
}

pytestmark = pytest.mark.gpu


def _inputs(
    spec: OpSpec, shape: tuple[int, int], dtype: torch.dtype, offset: int
) -> dict[str, Any]:
    """Those of a spec, `offset` elements behind an aligned address."""
    case = next(c for c in spec.cases if "check" in c.suites)
    generator = torch.Generator("cuda").manual_seed(sum(shape))
    args = dict(case.args) | {"shape": shape}
    made = spec.make_inputs(Case("rows", args), dtype, torch.device("cuda"), generator)
    return {
        name: misaligned(tuple(t.shape), offset, t.dtype).copy_(t)
        if isinstance(t, torch.Tensor)
        else t
        for name, t in made.items()
    }


def _held(spec: OpSpec, n: int, dtype: torch.dtype) -> int:
    """Return the bytes that a row of n has of what kernels hold: a mask is read again."""
    return n * dtype.itemsize * sum(name != "mask" for name in spec.row_inputs)


def _wrong(op: str, shape: tuple[int, int], dtype: torch.dtype, offset: int) -> Any:
    spec = table.load()[op]
    trial = Trial(spec, spec.implementation("cuda"), spec.cases[0], dtype, torch.device("cuda"))
    inputs = _inputs(spec, shape, dtype, offset)
    outputs = as_tuple(spec.reference(**inputs))
    dys = tuple(misaligned(tuple(y.shape), offset, dtype) for y in outputs)
    if shape[1] == 1 and "rms" in op:  # dx is what 1 - xhat^2 leaves: no formula has a digit of it
        return trial.wrong(inputs, "fwd")
    return trial.wrong(inputs, "fwd") or trial.wrong(inputs, "bwd", dys)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_rows_keep_the_budget(op: str, dtype: torch.dtype) -> None:
    for n in LENGTHS + LONG:
        # So few that long double is the oracle of fp64.
        for rows in (1, 5, max(7, min(259, 2**16 // n))) if n in LENGTHS else (1,):
            assert _wrong(op, (rows, n), dtype, 0) is None, (rows, n)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_rows_at_odd_addresses_keep_the_budget(op: str, dtype: torch.dtype) -> None:
    for n in (5, 64, 577, 1024, 8192, 65536, 70000):
        assert _wrong(op, (3, n), dtype, 1) is None, n  # so few that long double is the oracle


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_a_row_does_not_know_where_it_lies(op: str, dtype: torch.dtype) -> None:
    """The same bits from any address and any stride."""
    spec = table.load()[op]
    call = spec.implementation("cuda").fn
    for n in (1, 3, 16, 61, 197, 512, 577, 1500, 4096, 9001, 20000, 40001, 70000, 131071):
        inputs = _inputs(spec, (5, n), dtype, 0)
        right = as_tuple(call(**inputs))
        for gap, offset in ((0, 1), (3, 0), (8, 3)):
            moved = dict(inputs)
            for name in spec.row_inputs:
                place = misaligned((5, n + gap), offset, dtype)[:, :n]
                moved[name] = place.copy_(inputs[name])
            assert all(map(torch.equal, as_tuple(call(**moved)), right)), (n, gap, offset)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_a_row_does_not_know_its_batch(op: str, dtype: torch.dtype) -> None:
    """One kernel a call, the same bits for any number of rows."""
    spec = table.load()[op]
    call = spec.implementation("cuda").fn
    single = dtype == torch.float64  # elements, wherever rows begin
    cluster = "row_long" if op == "masked_softmax" else "row_cluster"
    for n, rows_at_once, kind in (
        (128, 67, "row_short" if single else "row_kernel"),
        (4096, 67, "row_short" if single else "row_kernel"),
        (65536, 5, cluster),
        (65536, 301, "row_stream" if dtype in STREAMED.get(op, ()) else cluster),
        (13, 300, "row_short"),
        (29, 300, "row_short"),
        (29, 100_000, "row_short" if single else "row_tiny"),
        (577, 67, "row_short"),
        (40001, 67, cluster if single else "row_long"),
        (70000, 67, "row_grid" if _held(spec, 70000, dtype) >= 2**20 else "row_long"),
        (70001, 5, "row_grid" if _held(spec, 70001, dtype) >= 2**20 else "row_long"),
        (3000000, 3, "row_grid"),
    ):
        inputs = _inputs(spec, (rows_at_once, n), dtype, 0)
        whole = as_tuple(call(**inputs))
        assert all(map(torch.equal, whole, as_tuple(call(**inputs))))
        names = kernels(lambda inputs=inputs: call(**inputs))
        assert [kind in name for name in names if "rows::" in name] == [True], names
        for rows in (slice(0, 1), slice(rows_at_once - 4, rows_at_once - 1)):
            part = {k: v[rows] if k in spec.row_inputs else v for k, v in inputs.items()}
            cut = [t[rows] for t in whole]
            assert all(map(torch.equal, as_tuple(call(**part)), cut)), (n, rows)


LENGTHS_IN_TURN = """
import torch, fuseline
for n in (1 << 20, 100000, 1 << 20, 200000, 1600000):
    x = torch.randn(3, n, device="cuda", dtype=torch.bfloat16)
    y = fuseline.softmax(x)
    torch.testing.assert_close(y, torch.softmax(x.double(), -1).to(x.dtype))
"""


def test_a_length_takes_no_shared_memory_from_another() -> None:
    """What a kernel may have is asked once a size: in a process that has not asked."""
    subprocess.run([sys.executable, "-c", LENGTHS_IN_TURN], check=True, timeout=100)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parameters_at_odd_addresses(dtype: torch.dtype) -> None:
    """Of aligned rows, and of the other dtype than these."""
    spec = table.load()["layer_norm"]
    trial = Trial(spec, spec.implementation("cuda"), spec.cases[0], dtype, torch.device("cuda"))
    other = dtype if dtype == torch.float64 else torch.float32
    for n in (256, 2048, 32768):
        inputs = _inputs(spec, (5, n), dtype, 0)
        for offset, kind in ((1, dtype), (0, other), (3, other)):
            for name in ("weight", "bias"):
                odd = misaligned((n,), offset, kind)
                assert trial.wrong(inputs | {name: odd}, "fwd") is None, (n, name, offset)


@pytest.mark.parametrize(
    ("op", "dtype"), [(op, d) for op, dtypes in STREAMED.items() for d in dtypes]
)
@pytest.mark.parametrize("n", [20000, 32768, 65536])
def test_rows_that_clusters_take_in_turn(op: str, dtype: torch.dtype, n: int) -> None:
    """Each cluster several; the bits, of rows that are to be repaired as well, are those of few."""
    spec = table.load()[op]
    trial = Trial(spec, spec.implementation("cuda"), spec.cases[0], dtype, torch.device("cuda"))
    inputs = _inputs(spec, (2**24 // n + 1, n), dtype, 0)
    assert any("row_stream" in name for name in kernels(lambda: trial.impl.fn(**inputs)))
    assert trial.wrong(inputs, "fwd") is None
    if op == "layer_norm" and dtype != torch.float16:
        inputs["x"][3::7] *= 1e25  # has no square in fp32
    whole = as_tuple(trial.impl.fn(**inputs))
    for rows in (slice(0, 5), slice(-5, None)):
        part = {name: inputs[name][rows] for name in spec.row_inputs}
        few = as_tuple(trial.impl.fn(**inputs | part))
        assert all(map(torch.equal, few, [t[rows] for t in whole]))


FEW = [(1, 2**20), (3, 1000003), (7, 600000), (12, 2 * 10**6), (2, 5_000_000), (1, 30_000_001)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", OPS)
def test_few_long_rows(op: str, dtype: torch.dtype) -> None:
    """By blocks of the whole GPU: within the budget, and repeatedly the same bits."""
    spec = table.load()[op]
    call = spec.implementation("cuda").fn
    for shape in FEW:
        inputs = _inputs(spec, shape, dtype, 0)
        right = as_tuple(call(**inputs))
        for _ in range(20):
            assert all(map(torch.equal, as_tuple(call(**inputs)), right)), shape
        names = [name for name in kernels(lambda inputs=inputs: call(**inputs)) if "rows::" in name]
        held = _held(spec, shape[1], dtype)
        if held >= 2**20 and (shape[0] < 8 or held > 16 * 208 << 10):
            assert all("row_grid" in name for name in names), (shape, names)
        assert _wrong(op, shape, dtype, 0) is None, shape


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_a_long_row_does_not_know_who_shares_it(op: str, dtype: torch.dtype) -> None:
    """Few rows by a grid, many by clusters or again by a grid: the same bits, from any address."""
    spec = table.load()[op]
    call = spec.implementation("cuda").fn
    for n in (2**18, 300001, 10**6, 1000003, 5_000_000):
        inputs = _inputs(spec, (24, n), dtype, 0)
        whole = as_tuple(call(**inputs))
        for first, last in ((0, 1), (21, 24), (3, 10)):
            part = {k: v[first:last] if k in spec.row_inputs else v for k, v in inputs.items()}
            cut = [t[first:last] for t in whole]
            assert all(map(torch.equal, as_tuple(call(**part)), cut)), (n, first)
            for name in spec.row_inputs:
                place = misaligned((last - first, n + 5), 1, dtype)[:, :n]
                part[name] = place.copy_(part[name])
            assert all(map(torch.equal, as_tuple(call(**part)), cut)), (n, first)


@pytest.mark.parametrize("op", ["softmax", "double_softmax", "layer_norm"])
def test_few_long_rows_in_a_graph(op: str) -> None:
    """Replays, between which others write to the memory that blocks exchange through."""
    spec = table.load()[op]
    call = spec.implementation("cuda").fn
    inputs = _inputs(spec, (3, 1000003), torch.float32, 0)
    right = as_tuple(call(**inputs))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first, second = as_tuple(call(**inputs)), as_tuple(call(**inputs))
    for _ in range(10):
        for t in (*first, *second):
            t.fill_(torch.nan)
        graph.replay()
        assert all(map(torch.equal, first, right))
        assert all(map(torch.equal, second, right))


def test_few_long_rows_on_two_streams() -> None:
    """Grids that are resident as a whole, at once or one after the other."""
    x = torch.randn(3, 1000003, device="cuda")
    call = table.load()["softmax"].implementation("cuda").fn
    right = call(x)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(4)]
    found = []
    for turn in range(40):
        with torch.cuda.stream(streams[turn % 4]):
            found.append(call(x))
    torch.cuda.synchronize()
    assert all(torch.equal(y, right) for y in found)
