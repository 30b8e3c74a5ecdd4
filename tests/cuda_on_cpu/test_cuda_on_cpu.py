"""CUDA kernels where there is no GPU: compiled for the CPU, a block at a time (emulator.h).

What this cannot see: most clusters of several blocks and grids that are resident as a whole, and
bulk copies, which are those of GPUs before sm_90 here; and how quick anything is.
"""

from __future__ import annotations

import ctypes
import subprocess
from itertools import product

import numpy as np
import pytest
import torch
from cuda_on_cpu.calls import BF16, F32, F64, NAMES, call, library_fixture, rows, wide
from cuda_on_cpu.sources import CUDA, CXX, HERE, NVCC, SOURCE
from ops.ranges import epsilons, magnitudes
from torch import Tensor

from fuseline.ops.norm_chain.reference import longdouble as chain_of_norms
from fuseline.ops.norm_chain.reference import norm_chain

ROWS = 7  # more than blocks, so that some have several

pytestmark = [
    pytest.mark.usefixtures("seed"),
    pytest.mark.skipif(not CXX, reason="no C++ compiler"),
    pytest.mark.skipif(CUDA is None, reason="no headers of CUDA"),
]


@pytest.fixture
def seed():
    torch.manual_seed(0)


NAMES_OF_LIBRARIES = ("anywhere", "backward", "columns", "grid", "reductions")
anywhere, backward, columns, grid, reductions = map(library_fixture, NAMES_OF_LIBRARIES)


def narrow(a: np.ndarray, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(a.astype(np.float64)).to(dtype)


def normalised(
    x: Tensor, centred: bool, eps: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """xhat, mean and rstd; by differences, which are exact, since x may be all mean."""
    v = wide(x)
    last = v[:, -1:] if centred else 0  # is no outlier
    v = v - last
    rest = v.mean(1, keepdims=True) if centred else 0
    v = v - rest
    with np.errstate(divide="ignore", invalid="ignore"):  # one element has no spread
        rstd = 1 / np.sqrt((v**2).mean(1, keepdims=True) + eps)
        return v * rstd, last + rest, rstd


def gradients(dy: Tensor, x: Tensor, weight: Tensor | None, centred: bool):
    """dx, dweight and dbias in long double, and the scale of each row of dx."""
    d, (xhat, _, rstd) = wide(dy), normalised(x, centred)
    g = d if weight is None else d * wide(weight)
    off = xhat * (g * xhat).mean(1, keepdims=True)
    off += g.mean(1, keepdims=True) if centred else 0
    scale = rstd * abs(g).max(1, keepdims=True)
    return rstd * (g - off), (d * xhat).sum(0), d.sum(0), scale


def run_backward(
    library, dy, x, weight, need=(1, 1, 1), centred=True, eps=0.0
) -> list[Tensor | None]:
    """The gradients that are asked for, which the order of threads may not change."""
    n, own = x.shape[1], F64 if x.dtype == F64 else F32
    _, mean, rstd = normalised(x, centred, eps)
    mean, rstd = narrow(mean, own) if centred else None, narrow(rstd, own)
    wider = x.dtype == BF16 and (weight is None or weight.dtype == F32)
    kind = NAMES[x.dtype] + ("_f32" if wider else "")
    parameter = own if weight is None else weight.dtype
    found = []
    for backwards in (0, 1):
        out = [torch.full(x.shape, float("nan"), dtype=x.dtype)]
        out += [torch.full((n,), float("nan"), dtype=parameter) for _ in range(2)]
        out = [t if wanted else None for t, wanted in zip(out, need, strict=True)]
        tensors = [dy, x, weight, mean, rstd, *out]
        name = f"{'layer' if centred else 'rms'}_norm_{kind}"
        call(library, name, tensors, [len(x), dy.stride(0), x.stride(0), n, backwards])
        found.append(out)
    for a, b in zip(*found, strict=True):
        assert a is None or torch.equal(a, b)
    return found[0]


def assert_gradients(found, dy, x, weight, centred=True, limit=6) -> None:
    *exact, scale = gradients(dy, x, weight, centred)
    scales = [scale, *(abs(e).max() for e in exact[1:])]
    for got, right, size in zip(found, exact, scales, strict=True):
        if got is not None:
            assert (abs(wide(got) - right) / size).max() <= limit * torch.finfo(got.dtype).eps


@pytest.mark.skipif(not NVCC or torch.cuda.is_available(), reason="needs nvcc and no GPU")
def test_the_host_asks_no_device_function(tmp_path) -> None:
    program = tmp_path / "launches"
    command = [NVCC, "-std=c++17", "-gencode=arch=compute_90,code=compute_90", "-Xcicc", "-O0"]
    command += [f"-I{SOURCE / 'primitives/include'}", HERE / "launches.cu", "-o", program]
    subprocess.run(command, check=True)
    assert subprocess.run([program], check=False).returncode == 0


HELD = {F32: [64, 252, 512, 1024, 4096, 8192, 16384], F64: [32, 512, 2048, 8192],
        BF16: [64, 504, 1024, 2048, 16384]}  # fmt: skip
LENGTHS = [(d, n) for d, held in HELD.items() for n in (*held, 20000)]  # all of 16 bytes
ODD = [(F32, n) for n in (2, 3, 16, 17, 61, 131, 255, 1027, 4095, 8191, 20001)]
ODD += [(F64, 61), (F64, 1027), (F64, 4097), (BF16, 1027), (BF16, 8191)]


@pytest.mark.parametrize(("dtype", "n"), LENGTHS + ODD, ids=str)
def test_layer_norms_backward(backward, dtype, n) -> None:
    dy, x = rows((ROWS, n), dtype), rows((ROWS, n), dtype, mean=0.5)
    weight = torch.randn(n, dtype=F64).to(dtype)
    assert_gradients(run_backward(backward, dy, x, weight), dy, x, weight)


@pytest.mark.parametrize("n", [3, 61, 64, 1024, 1027, 16384, 20000, 20001])
@pytest.mark.parametrize(("dtype", "mean"), [(F32, 1e4), (F64, 1e7)])
def test_a_mean_of_ten_million_spreads_costs_no_digits(backward, dtype, mean, n) -> None:
    dy, x = rows((ROWS, n), dtype), rows((ROWS, n), dtype, mean, 1e-3)
    x[:, 1] += 4e-3  # in fp32 all may be equal
    assert_gradients(run_backward(backward, dy, x, None), dy, x, None, limit=8)


@pytest.mark.parametrize("n", [61, 1024, 1027, 20000])
def test_only_what_is_asked_for(backward, n) -> None:
    dy, x = rows((ROWS, n), F32), rows((ROWS, n), F32)
    for weight in (torch.randn(n), None):
        whole = run_backward(backward, dy, x, weight)
        assert_gradients(whole, dy, x, weight)
        for need in product((0, 1), repeat=3):
            some = run_backward(backward, dy, x, weight, need)
            for wanted, a, b in zip(need, some, whole, strict=True):
                assert torch.equal(a, b) if wanted else a is None


@pytest.mark.parametrize(("dtype", "n"), [(F32, 256), (F32, 2048), (BF16, 1024), (F32, 20000)])
def test_misaligned_rows(backward, dtype, n) -> None:
    dy, x = rows((ROWS, n), dtype), rows((ROWS, n), dtype, stride=n + 3)
    weight = torch.randn(n)
    assert_gradients(run_backward(backward, dy, x, weight), dy, x, weight)


@pytest.mark.parametrize("n", [3, 16, 61, 64, 255, 1024, 1101])
def test_more_rows_than_one_sum_takes(backward, n) -> None:
    dy, x, weight = rows((300, n), F32), rows((300, n), F32), torch.randn(n)
    assert_gradients(run_backward(backward, dy, x, weight), dy, x, weight)


@pytest.mark.parametrize(("count", "n"), [(ROWS, 8193), (ROWS, 20000), (50, 257), (50, 1055)])
def test_a_row_among_others_has_the_same_dx(backward, count, n) -> None:
    dy, x, weight = rows((count, n), F32), rows((count, n), F32), torch.randn(n)
    for need, centred in (((1, 1, 0), False), ((1, 1, 1), True)):
        among = run_backward(backward, dy, x, weight, need, centred)[0]
        alone = run_backward(backward, dy[3:4], x[3:4], weight, need, centred)[0]
        assert torch.equal(among[3:4], alone)


@pytest.mark.parametrize("n", [1, 5, 64, 20000])
def test_no_rows_and_rows_of_one_element(backward, n) -> None:
    weight = torch.randn(n)
    for count in {0, 1 if n == 1 else 0}:
        dx, dweight, dbias = run_backward(backward, *torch.ones(2, count, n), weight, eps=1e-5)
        assert not dx.any()
        assert not dweight.any()
        assert torch.equal(dbias, torch.full((n,), float(count)))


@pytest.mark.parametrize(
    ("dtype", "n"), [c for c in LENGTHS + ODD if c[0] == F32 or c == (BF16, 1024)], ids=str
)
def test_rms_norms_backward(backward, dtype, n) -> None:
    dy, x, weight = rows((ROWS, n), dtype), rows((ROWS, n), dtype), torch.randn(n).to(dtype)
    for need in ((1, 1, 0), (1, 0, 0)):
        found = run_backward(backward, dy, x, weight, need, centred=False)
        assert_gradients(found, dy, x, weight, centred=False)


def run_forward(library, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    found = []
    for backwards in (0, 1):
        y = torch.full(x.shape, float("nan"), dtype=x.dtype)
        name = f"layer_norm_fwd_{NAMES[x.dtype]}"
        call(library, name, [x, weight, bias, y, None, None], [*x.shape, 0.0, backwards])
        found.append(y)
    assert torch.equal(*found)
    return found[0]


def assert_norm(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor, limit: float) -> None:
    """In ULP of y or the bias, whichever is larger."""
    right = normalised(x, True)[0] * wide(weight) + wide(bias)
    size = np.maximum(abs(right), abs(wide(bias)))
    ulp = np.ldexp(np.longdouble(torch.finfo(y.dtype).eps), np.frexp(size)[1] - 1)
    assert (abs(wide(y) - right) / ulp).max() <= limit


@pytest.mark.parametrize(("dtype", "n"), LENGTHS + ODD[1:], ids=str)
def test_layer_norms_forward(anywhere, dtype, n) -> None:
    x, weight, bias = (rows(s, dtype)[0] if s[0] == 1 else rows(s, dtype)
                       for s in ((2, n), (1, n), (1, n)))  # fmt: skip
    assert_norm(run_forward(anywhere, x, weight, bias), x, weight, bias, 6)


@pytest.mark.parametrize(("dtype", "scale"), [(F32, 1e8), (F64, 1e12)])
@pytest.mark.parametrize("n", [61, 1024, 4000, 20000, 20001])
def test_an_outliers_square_hides_no_other(anywhere, n, dtype, scale) -> None:
    x = rows((1, n), dtype)
    x[:, 0] = scale
    one, zero = torch.ones(n, dtype=dtype), torch.zeros(n, dtype=dtype)
    assert_norm(run_forward(anywhere, x, one, zero), x, one, zero, 5)


def test_squares_that_are_alike(anywhere) -> None:
    n = 1 << 20
    x = torch.full((1, n), 0.694)  # four squares, 512 times one by one, are off by 64 eps
    x[:, ::2] *= -1
    one, zero = torch.ones(n), torch.zeros(n)
    assert_norm(run_forward(anywhere, x, one, zero), x, one, zero, 3)


@pytest.mark.parametrize("eps", [0.0, 1e-5, 1e30, 1e300])
@pytest.mark.parametrize("n", [61, 5000])
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_layer_norm_at_both_ends_of_the_range(anywhere, dtype, n, eps) -> None:
    """Also mean and rstd, from which the backward goes on."""
    info = torch.finfo(dtype)
    computed = torch.finfo(torch.promote_types(dtype, F32))
    if eps > computed.max:
        pytest.skip("eps is beyond the type that is computed in")
    for size in (info.max / 64, info.tiny * 64):
        x = (rows((2, n), dtype).double() * size).to(dtype)
        y, mean, rstd = (
            torch.empty_like(x),
            *(torch.empty(2, dtype=torch.promote_types(dtype, F32)) for _ in "mr"),
        )
        tensors = [x, torch.ones(n, dtype=dtype), torch.zeros(n, dtype=dtype), y, mean, rstd]
        call(anywhere, f"layer_norm_fwd_{NAMES[dtype]}", tensors, [2, n, eps, 0])
        centre = wide(x).mean(1)
        centred = wide(x) - centre[:, None]
        inverse = 1 / np.sqrt((centred * centred).mean(1) + eps)
        right = centred * inverse[:, None]
        least = 2 * info.tiny * info.eps  # results may underflow
        assert abs(wide(y) - right).max() <= 4 * info.eps * abs(right).max() + least
        assert abs(wide(mean) - centre).max() <= 4 * computed.eps * abs(wide(x)).max()
        if inverse.max() < computed.max:
            assert abs(wide(rstd) / inverse - 1).max() <= 8 * computed.eps


def exponentials(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """exp(x - max), and their sum."""
    e = np.exp(x - x.max(1, keepdims=True))
    return e, e.sum(1, keepdims=True)


@pytest.mark.parametrize("n", [61, 64, 1024, 8192, 20000, 20001, 1 << 20])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "double_softmax"])
def test_softmaxes(anywhere, name, n) -> None:
    """Terms that are all alike are all rounded the same way. Of others x - max has its rounding."""
    x = rows((3, n), F32)
    x[1:] = 0.2707  # 512 of its exponential, one by one, are off by 64 eps
    x[1:, : min(n // 2, 4096)] = 1.0  # each thread's largest
    found = []
    for backwards in (0, 1):
        found.append(torch.full(x.shape, float("nan")))
        call(anywhere, f"{name}_f32", [x, None, found[-1]], [*x.shape, n, backwards])
    assert torch.equal(*found)
    e, total = exponentials(wide(x))
    right = np.log(e) - np.log(total) if name == "log_softmax" else e / total
    if name == "double_softmax":
        right = np.divide(*exponentials(right))
    off = abs(wide(found[0]) / right - 1) / torch.finfo(F32).eps
    assert off[0].max() <= 8
    assert off[1:].max() <= 3


def made(library, name, tensors, shapes, numbers) -> list[Tensor]:
    """Tensors of these shapes as the kernels leave them, which no order of threads may change."""
    found = []
    dtype = tensors[0].dtype
    for backwards in (0, 1):
        out = [None if s is None else torch.full(s, float("nan"), dtype=dtype) for s in shapes]
        call(library, f"{name}_{NAMES[dtype]}", [*tensors, *out], [*numbers, backwards])
        found.append(out)
    for a, b in zip(*found, strict=True):
        assert a is None or torch.equal(a, b)
    return found[0]


def alike(got: Tensor, right: Tensor) -> bool:
    return torch.equal(torch.nan_to_num(got, 7.0), torch.nan_to_num(right, 7.0))


@pytest.mark.parametrize("n", [1, 2, 61, 64, 1024, 20001])
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_norm_chain_of_rows_with_an_infinity(anywhere, dtype, n) -> None:
    """Inf and NaN where the chain, step by step in fp64, has them, gradients too."""
    for sign, one_sign, dy_one_sign in product((1, -1), (True, False), (True, False)):
        x, dy = rows((ROWS, n), dtype, spread=1 / n), rows((ROWS, n), dtype)
        x, dy = (t.abs() if one else t for t, one in ((x, one_sign), (dy, dy_one_sign)))
        x[::2, n // 2] = sign * np.inf
        x[1::2] *= sign
        leaf = x.double().requires_grad_()
        right = norm_chain(leaf)
        (dright,) = torch.autograd.grad(right, leaf, dy.double())
        for backwards in (0, 1):
            y, dx = (torch.full(x.shape, 3.0, dtype=dtype) for _ in range(2))
            sums = torch.zeros(ROWS, dtype=F64)
            call(anywhere, f"norm_chain_fwd_{NAMES[dtype]}", [x, y, sums], [*x.shape, backwards])
            call(
                anywhere, f"norm_chain_bwd_{NAMES[dtype]}", [dy, x, sums, dx], [*x.shape, backwards]
            )
            assert alike(y[::2], right.detach().to(dtype)[::2])
            assert alike(dx[::2], dright.to(dtype)[::2])
            size = dright[1::2].abs().amax() * torch.finfo(dtype).eps
            assert ((dx[1::2].double() - dright[1::2]).abs().max() <= 8 * size).all()


@pytest.mark.parametrize(("dtype", "power"), [(F64, 150), (F64, 515), (F64, 1000), (F32, 120)])
def test_norm_chain_of_rows_that_overflow(anywhere, dtype, power) -> None:
    x, dy = rows((ROWS, 61), dtype, mean=1.0) * 2.0**power, rows((ROWS, 61), dtype)
    sums, y, dx = torch.empty(ROWS, dtype=F64), torch.empty_like(x), torch.empty_like(x)
    call(anywhere, f"norm_chain_fwd_{NAMES[dtype]}", [x, y, sums], [*x.shape, 0])
    call(anywhere, f"norm_chain_bwd_{NAMES[dtype]}", [dy, x, sums, dx], [*x.shape, 0])
    for got, (exact,) in (
        (y, chain_of_norms("fwd", None, wide(x))),
        (dx, chain_of_norms("bwd", wide(dy), wide(x))),
    ):
        with np.errstate(all="ignore"):
            right = torch.from_numpy(exact.astype(np.float64)).to(dtype)
        far = ~right.isfinite()
        assert torch.equal(got[far], right[far])
        size = right[~far].double().abs().amax() if not far.all() else 1.0
        off = (got[~far].double() - right[~far].double()).abs() / size
        assert (off <= 8 * torch.finfo(dtype).eps).all()


@pytest.mark.parametrize("n", [17, 62, 1502, 5003, 8192])
@pytest.mark.parametrize("kernel", ["cluster", "long"])
@pytest.mark.parametrize("name", ["softmax", "softmax_bwd", "norm_chain", "layer_norm", "rms_norm"])
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_kernels_of_clusters_in_one_block(anywhere, dtype, name, kernel, n) -> None:
    """What a block does of a row, from any address: the same bits, and those of other kernels."""
    count, room = 3, 40 // dtype.itemsize
    x, other = rows((count, n), dtype), rows((1 if name.endswith("_norm") else count, n), dtype)
    usual = torch.full((count, n), torch.nan, dtype=dtype)
    call(anywhere, f"{name}_{NAMES[dtype]}", [x, other, usual], [count, n, n, 0])
    found = []
    for before, gap, shift, backwards in ((0, 0, 0, 0), (1, 0, 1, 1), (3, 2, 1, 0)):
        source = torch.full((before + count * (n + gap),), torch.nan, dtype=dtype)
        given = source[before:].as_strided((count, n), (n + gap, 1), before).copy_(x)
        target = torch.full((room + shift + count * n + room,), 7.0, dtype=dtype)
        out = target[room + shift :][: count * n]
        call(anywhere, f"{kernel}_{name}_{NAMES[dtype]}", [given, other, out],
             [count, n, n + gap, backwards])  # fmt: skip
        assert (target[: room + shift] == 7).all()
        assert (target[room + shift + count * n :] == 7).all()
        found.append(out.view(count, n).clone())
    assert all(torch.equal(again, found[0]) for again in found)
    size = usual.double().abs().amax(1, keepdim=True)
    off = (found[0].double() - usual.double()).abs() / size
    orders = 1 if dtype == BF16 else max(1, n // 128)  # of sums whose terms cancel
    assert off.max() <= 8 * orders * torch.finfo(dtype).eps


# How blocks share rows of 32 pieces: cluster, grid, or a grid that reads again; pieces of a block;
# groups. A block of the last sharing but one has one piece where the others have three.
SHARINGS = ((0, 2, 1), (1, 1, 1), (1, 2, 2), (1, 3, 1), (2, 1, 1))
SHARED = ("softmax", "softmax_bwd", "double_softmax", "norm_chain", "layer_norm")


def shared_rows(library, name, given, shape, sharing, backwards=0, dtype=F32) -> list[Tensor]:
    """What blocks that share rows write: y, and for a reduction amax and count."""
    x, other, amax, counts = given
    count, n = shape
    out = torch.full(shape, torch.nan, dtype=dtype)
    amax = torch.full((count,), torch.nan, dtype=dtype) if amax is None else amax
    counts = torch.full((count,), torch.nan, dtype=F64) if counts is None else counts
    how, each, groups = sharing
    call(library, f"{name}_{NAMES[dtype]}", [x, other, out, amax, counts],
         [count, n, x.stride(0), how, 32, each, groups, backwards])  # fmt: skip
    return [out, amax, counts]


@pytest.mark.parametrize("n", [8192, 9001])
@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_a_row_does_not_know_who_shares_it(grid, anywhere, dtype, name, n) -> None:
    """The same bits by clusters and grids, whatever a block has, in any batch, from any address."""
    count = 3
    x, other = rows((count, n), dtype), rows((1 if name == "layer_norm" else count, n), dtype)
    usual = torch.full((count, n), torch.nan, dtype=dtype)
    call(anywhere, f"{name}_{NAMES[dtype]}", [x, other, usual], [count, n, n, 0])
    given = (x, other, None, None)
    found = [
        shared_rows(grid, name, given, x.shape, sharing, order % 2, dtype)[0]
        for order, sharing in enumerate(SHARINGS)
    ]
    *held, again = found
    assert all(torch.equal(other_way, held[0]) for other_way in held)
    if n % (16 // dtype.itemsize) == 0:  # or else those that are held are summed singly
        assert torch.equal(again, held[0])
    for gap, which in ((3, 2), (8, 4)):
        moved = torch.full((count * (n + gap) + 1,), torch.nan, dtype=dtype)
        moved = moved[1:].as_strided((count, n), (n + gap, 1), 1).copy_(x)
        given = (moved, other, None, None)
        (y, *_) = shared_rows(grid, name, given, x.shape, SHARINGS[which], 0, dtype)
        assert torch.equal(y, found[which])
    one = (x[1:], other if len(other) == 1 else other[1:], None, None)
    (alone, *_) = shared_rows(grid, name, one, (1, n), SHARINGS[1], 0, dtype)
    assert torch.equal(alone[0], held[0][1])
    size = usual.double().abs().amax(1, keepdim=True)
    off = (torch.stack(found).double() - usual.double()).abs() / size
    orders = 1 if dtype == BF16 else n // 128  # of sums whose terms cancel
    assert off.max() <= 8 * orders * torch.finfo(dtype).eps


@pytest.mark.parametrize("n", [9002, 8192])
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_shared_rows_that_are_only_reduced(grid, dtype, n) -> None:
    x = rows((3, n), dtype)
    x[:, 5::1000] = 7.0
    x[1, n // 2] = torch.nan
    found = [
        shared_rows(grid, "sum_amax_count", (x, None, None, None), x.shape, sharing, 0, dtype)
        for sharing in SHARINGS
    ]
    for again in found:
        sums = again[0].flatten()[:3]
        right = x.double().sum(1)
        off = (sums.double() - right).abs() / x.double().abs().sum(1)
        assert (off[::2] <= torch.finfo(dtype).eps).all()
        assert sums[1].isnan()
        assert again[1].tolist()[::2] == [7, 7]
        assert again[1][1].isnan()
        assert again[2].tolist() == [len(range(5, n, 1000)), 0, len(range(5, n, 1000))]
        assert alike(again[0].flatten()[:3], found[0][0].flatten()[:3])


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("name", ["layer_norm", "norm_chain"])
def test_shared_rows_that_one_block_repairs(grid, anywhere, name, sharing) -> None:
    """Before others of the group, after them, and alone."""
    x, other = rows((5, 9001), F32, mean=1.0), torch.ones(9001)
    if name == "layer_norm":
        x[1::3] *= 1e25  # has no square in fp32
        x[2] *= 1e25
    else:
        x[1::3, 7] = torch.inf
        x[2] *= 1e3  # seven times
    usual = torch.empty_like(x)
    call(anywhere, f"{name}_f32", [x, other, usual], [5, 9001, 9001, 0])
    (found, *_) = shared_rows(grid, name, (x, other, None, None), x.shape, sharing)
    assert alike(found.isfinite(), usual.isfinite())
    size = torch.nan_to_num(usual, 0, 0, 0).abs().amax(1, keepdim=True) + 1e-30
    assert (torch.nan_to_num((found - usual) / size, 0).abs() <= 1e-5).all()


@pytest.mark.parametrize("sms", [16, 84, 108, 132, 148, 300])
@pytest.mark.parametrize(("name", "width", "inputs"), [("softmax_f32", 4, 1),
                                                       ("softmax_bwd_bf16", 2, 2)])  # fmt: skip
def test_who_shares_rows(grid, name, width, inputs, sms) -> None:
    """Pieces by the length alone; all blocks resident at once, and what they hold in their part."""
    for n in (65536, 65537, 131073, 10**6, 2**20, 3 * 10**6, 5 * 10**6 + 1, 30 * 10**6, 2 * 10**9):
        pieces = set()
        for shared in (104 << 10, 40 << 10):
            for count in (1, 2, 3, 7, 8, 40, 1000):
                found = torch.zeros(6, dtype=torch.int64)
                call(grid, f"plan_{name}", [found], [count, n, sms, shared])
                several, each, piece, held, size, groups = found.tolist()
                pieces.add((several, piece))
                if several <= 16:
                    continue
                assert several % 16 == 0
                assert (several - 1) * piece < n <= several * piece
                assert each <= 13
                assert (size - 1) * each < several <= size * each
                assert 1 <= groups <= count
                assert groups * size <= 2 * sms
                assert held <= shared
                assert held == 0 or held >= each * piece * width * inputs
        assert len(pieces) == 1
        assert (several > 16) == (n > 65536 and n * width * inputs >= 1 << 20)


ANYWHERE = (
    "softmax", "log_softmax", "double_softmax", "softmax_bwd", "norm_chain", "layer_norm",
    "rms_norm",
)  # fmt: skip


@pytest.mark.parametrize("n", [1, 3, 8, 15, 17, 130, 577, 1500, 5003, 20001])
@pytest.mark.parametrize("name", ANYWHERE)
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_a_row_does_not_know_where_it_lies(anywhere, dtype, name, n) -> None:
    """The same bits from any address and stride, in any batch, and nothing written beside them."""
    room, count = 40 // dtype.itemsize, 5
    x, other = rows((count, n), dtype), rows((1 if name.endswith("_norm") else count, n), dtype)
    symbol, found = f"{name}_{NAMES[dtype]}", []
    places = [(0, 0, 0, 0), (1, 0, 2, 1), (3, 5, 1, 0), (16 // dtype.itemsize, 1, 0, 1)]
    for before, gap, shift, backwards in places:
        source = torch.full((before + count * (n + gap),), torch.nan, dtype=dtype)
        given = source[before:].as_strided((count, n), (n + gap, 1), before).copy_(x)
        beside = torch.full((shift + other.numel(),), torch.nan, dtype=dtype)
        beside[shift:] = other.flatten()
        target = torch.full((room + shift + count * n + room,), 7.0, dtype=dtype)
        out = target[room + shift :][: count * n]
        call(anywhere, symbol, [given, beside[shift:], out], [count, n, n + gap, backwards])
        assert (target[: room + shift] == 7).all()
        assert (target[room + shift + count * n :] == 7).all()
        found.append(out.view(count, n).clone())
    call(anywhere, symbol, [x[2:], other if len(other) == 1 else other[2:], out], [1, n, n, 0])
    assert not found[0].isnan().any()
    assert torch.equal(out[:n], found[0][2])
    for again in found[1:]:
        assert torch.equal(again, found[0])


SHORT = ("softmax", "softmax_bwd", "norm_chain", "layer_norm", "rms_norm")


@pytest.mark.parametrize("n", [1, 3, 8, 17, 61, 130, 1500])
@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_a_row_does_not_know_that_its_elements_lie_apart(anywhere, dtype, name, n) -> None:
    count = 600 if n == 61 else 5
    x, other = rows((count, n), dtype), rows((1 if name.endswith("_norm") else count, n), dtype)
    if name.endswith("_norm") and dtype != F64:
        x[3] *= 1e25  # whose squares overflow
    stride = 3 * n + 2
    source = torch.full((count * stride,), torch.nan, dtype=dtype)
    given = source.as_strided((count, n), (stride, 3)).copy_(x)
    dense, apart = (torch.full((count, n), torch.nan, dtype=dtype) for _ in range(2))
    call(anywhere, f"{name}_{NAMES[dtype]}", [x, other, dense], [count, n, n, 0])
    call(anywhere, f"steps_{name}_{NAMES[dtype]}", [given, other, apart], [count, n, stride, 1])
    assert not dense.isnan().any()
    assert torch.equal(apart, dense)


@pytest.mark.parametrize("n", [19, 30, 61])
@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_a_short_row_does_not_know_its_block(anywhere, dtype, name, n) -> None:
    """The same bits in blocks of many rows, and of few; whatever lies between them."""
    count = 500
    x, other = rows((count, n), dtype), rows((1 if name.endswith("_norm") else count, n), dtype)
    if name.endswith("_norm"):
        x[::50] *= 1e25  # whose squares overflow
    usual = torch.full((count, n), torch.nan, dtype=dtype)
    call(anywhere, f"{name}_{NAMES[dtype]}", [x, other, usual], [count, n, n, 0])
    assert not usual.isnan().any()
    for gap, offset in ((0, 0), (0, 1), (3, 3), (n + 7, 2)):
        source = torch.full((offset + count * (n + gap),), torch.nan, dtype=dtype)
        given = source[offset:].as_strided((count, n), (n + gap, 1), offset).copy_(x)
        target = torch.full((offset + count * n + 9,), 7.0, dtype=dtype)
        out = target[offset:]
        call(anywhere, f"tiny_{name}_{NAMES[dtype]}", [given, other, out],
             [count, n, n + gap, offset % 2])  # fmt: skip
        assert torch.equal(out[: count * n].view(count, n), usual), (gap, offset)
        assert (target[:offset] == 7).all()
        assert (out[count * n :] == 7).all()


@pytest.mark.parametrize("n", [1, 3, 8, 61, 257, 1024, 9001])
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_reductions_read_no_gap(reductions, dtype, n) -> None:
    """NaN between rows that start at multiples of 16 bytes, and rows that all are the same one."""
    for gap in (0, 3, -n % 8 + 8, None):
        x = torch.full((ROWS, n + (gap or 0)), torch.nan, dtype=dtype)
        x = x[:1].expand(ROWS, n) if gap is None else x[:, :n]
        x[: 1 if gap is None else None] = rows(x[: 1 if gap is None else None].shape, dtype)
        found = []
        for backwards in (0, 1):
            found.append(torch.full((2, ROWS), torch.nan, dtype=dtype))
            call(reductions, f"sum_and_amax_{NAMES[dtype]}", [x, *found[-1]],
                 [*x.shape, x.stride(0), backwards])  # fmt: skip
        assert torch.equal(*found)
        right, unit = wide(x).sum(1), torch.finfo(dtype).eps
        assert (abs(wide(found[0][0]) - right) <= unit * abs(right) + 1e-30).all()
        assert torch.equal(found[0][1], x.amax(1))


COLUMNS = [(2, 5, 3), (1, 61, 64), (2, 300, 100), (3, 1027, 8), (1, 9001, 33), (5, 1, 7)]


@pytest.mark.parametrize("gap", [0, 3, 8])
@pytest.mark.parametrize(("outer", "n", "inner"), COLUMNS)
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_reductions_of_columns(reductions, dtype, outer, n, inner, gap) -> None:
    """Sums, largest elements with ties and a NaN, cosines."""
    x = torch.full((outer, n * inner + gap), torch.nan, dtype=dtype)[:, : n * inner]
    x = x.view(outer, n, inner).copy_(torch.randn(outer, n, inner).mul(8).round().div(8))
    x[0, n // 2, 0] = torch.nan
    shape, numbers = (outer, inner), [outer, n, inner, gap, 1 if gap else 132]

    def run(name: str, tensors: list[Tensor], out: list[Tensor]) -> list[Tensor]:
        found = []
        for backwards in (0, 1):
            found.append([torch.full_like(t, torch.nan) for t in out])
            arguments = [*tensors, *found[-1]]
            call(reductions, f"columns_{name}_{NAMES[dtype]}", arguments, [*numbers, backwards])
        for a, b in zip(*found, strict=True):
            assert torch.equal(a.nan_to_num(), b.nan_to_num())
        return found[0]

    per_column = torch.empty(shape, dtype=dtype)
    total, amax, count = run("sum_and_amax", [x], [per_column] * 2 + [per_column.double()])
    close(total, x.double().sum(1))
    assert torch.equal(amax.nan_to_num(), x.amax(1).nan_to_num())
    assert torch.equal(count, (x == amax[:, None]).sum(1).double())
    total, cos = run("sum_and_cos", [x], [per_column, x.contiguous()])
    close(total, x.double().sum(1))
    close(cos, x.double().cos())


@pytest.mark.parametrize("order", [(3, 2, 1, 0), (0, 3, 2, 1), (2, 0, 3, 1), (1, 3, 0, 2)])
def test_results_in_another_order_than_columns(reductions, order) -> None:
    for shape in ((2, 3, 4, 61), (5, 1, 7, 3)):
        x = torch.randn([shape[d] for d in order])
        n, inner = shape[3], x[(0,) * (order.index(3) + 1)].numel()
        found = torch.full((2, *shape[:3]), torch.nan)
        strides, leading = found.stride(), [d for d in order if d != 3]
        numbers = [torch.tensor([shape[d] for d in leading[1:]]),
                   torch.tensor([strides[1 + d] for d in leading])]  # fmt: skip
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, *found, *numbers)]
        sizes = map(ctypes.c_int64, (x.numel() // n // inner, n, inner))
        reductions.placed_f32(*pointers[:3], *sizes, *pointers[3:])
        right = x.permute([order.index(d) for d in range(4)])
        torch.testing.assert_close(found[0], right.sum(3))
        assert torch.equal(found[1], right.amax(3))


def softmax(x: np.ndarray) -> np.ndarray:
    return np.divide(*exponentials(x))


def softmaxs_gradient(dy: np.ndarray, y: np.ndarray) -> np.ndarray:
    return y * (dy - (dy * y).sum(1, keepdims=True))


def gradients_of_that(ddx: np.ndarray, dy: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
    a, b = ((t * y).sum(1, keepdims=True) for t in (ddx, dy))
    return y * (ddx - a), ddx * (dy - b) - dy * a


def double_softmaxs_gradient(dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    p = softmax(x)
    return softmaxs_gradient(softmaxs_gradient(dy, softmax(p)), p)


# Operators along dimension 1: inputs, outputs and what these are.
ALONG_COLUMNS = {
    "softmax": (1, 1, lambda x: (softmax(x),)),
    "log_softmax": (1, 1, lambda x: (np.log(softmax(x)),)),
    "double_softmax": (1, 1, lambda x: (softmax(softmax(x)),)),
    "softmax_bwd": (2, 1, lambda dy, y: (softmaxs_gradient(dy, y),)),
    "log_softmax_bwd": (2, 1, lambda dy, y: (dy - np.exp(y) * dy.sum(1, keepdims=True),)),
    "double_softmax_bwd": (2, 1, lambda dy, x: (double_softmaxs_gradient(dy, x),)),
    "softmax_backward_bwd": (3, 2, gradients_of_that),
}


def along_columns(library, name, inputs, sms, stats, backwards=0) -> Tensor:
    """The outputs, side by side."""
    _, outer, n, inner = inputs.shape
    out = inputs.new_full((ALONG_COLUMNS[name][1], outer, n, inner), torch.nan)
    call(library, f"{name}_{NAMES[inputs.dtype]}", [inputs.contiguous(), out, stats],
         [outer, n, inner, sms, backwards])  # fmt: skip
    return out


# Held, by one thread, by few and by many; slices: of one pass and of several, the last one shorter.
@pytest.mark.parametrize(("n", "inner"), [(1, 3), (2, 6), (3, 5), (5, 4), (17, 33), (100, 12),
                                          (499, 5), (499, 8), (4100, 3), (4100, 8), (9001, 3),
                                          (9001, 4)])  # fmt: skip
@pytest.mark.parametrize("name", ALONG_COLUMNS)
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_columns(columns, dtype, name, n, inner) -> None:
    """Right, and the same bits beside any others, wherever rows begin and however many blocks the
    GPU has room for: one with none reads neighbours at once."""
    takes, _, right = ALONG_COLUMNS[name]
    inputs = torch.randn(takes, 2, n, inner, dtype=F64)
    if takes > 1 and name != "double_softmax_bwd":
        y = inputs[-1].log_softmax(1)
        inputs[-1] = y if name == "log_softmax_bwd" else y.exp()
    inputs = inputs.to(dtype)
    own = F64 if dtype == F64 else F32
    stats = torch.full((2 * inner, 3), torch.nan, dtype=own)
    if name == "double_softmax_bwd":
        along_columns(columns, "double_softmax", inputs[1:], 0, stats)
    found = along_columns(columns, name, inputs, 0, stats)
    for mine, exact in zip(found, right(*wide(inputs)), strict=True):
        size = abs(exact).max(1, keepdims=True)
        if n < 17:  # of few terms all may cancel
            size = np.maximum(size, abs(wide(inputs)).max((0, 2))[:, None])
        assert (abs(wide(mine) - exact) <= 8 * torch.finfo(dtype).eps * size).all()
    assert torch.equal(along_columns(columns, name, inputs, 132, stats, 1), found)
    alone = along_columns(columns, name, inputs[:, 1:], 132, stats[inner:])
    assert torch.equal(alone[:, 0], found[:, 1])
    # Of each slice the same columns many times over, which fill a block.
    many = along_columns(columns, name, inputs.repeat(1, 1, 1, 9), 1,
                         stats.view(2, inner, 3).repeat(1, 9, 1))  # fmt: skip
    assert torch.equal(many, found.repeat(1, 1, 1, 9))
    for wider in (1, 2, 4):
        which = torch.arange(inner + -inner % 4 + wider).clamp(max=inner - 1)
        beside = inputs[..., which], 0, stats.view(2, inner, 3)[:, which]
        assert torch.equal(along_columns(columns, name, *beside)[..., :inner], found)


def close(got: Tensor, right: Tensor) -> None:
    """Within some roundings of the largest terms, and NaN where that is."""
    unit = 4 * torch.finfo(got.dtype).eps
    torch.testing.assert_close(got.double(), right, rtol=unit, atol=unit, equal_nan=True)


def root_mean_square(x: Tensor, weight: Tensor, dy: Tensor, eps: float):
    """y, rstd, dx and dweight in long double."""
    v, w, d = wide(x), wide(weight), wide(dy)
    rstd = 1 / np.sqrt((v * v).mean(1, keepdims=True) + np.longdouble(eps))
    xhat, g = v * rstd, d * w
    dx = rstd * (g - xhat * (g * xhat).mean(1, keepdims=True))
    return xhat * w, rstd, dx, (d * xhat).sum(0)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("n", [61, 1024, 1027, 4096, 20001])
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_rms_norm_of_the_whole_range(anywhere, backward, dtype, n, adds) -> None:
    """Every magnitude with each eps; rstd and the gradients where they are numbers of the type."""
    own = F64 if dtype == F64 else F32
    powers = magnitudes(dtype, few=n > 5000)
    for power, eps in product(powers, epsilons({"eps": 1e-6}, dtype)):
        x, other = (rows((3, n), dtype).double().ldexp(torch.tensor(power)).to(dtype) for _ in "ab")
        h = x + other if adds else x
        weight, dy = rows((1, n), dtype)[0], rows((3, n), dtype)
        right, rstd, *grads = root_mean_square(h, weight, dy, eps)
        y, made, got = torch.empty_like(x), torch.empty_like(x), torch.empty(3, dtype=own)
        given = [x, other if adds else None, weight, made, y, got]
        call(anywhere, f"rms_{NAMES[dtype]}", given, [3, n, eps, 0])
        unit, least = torch.finfo(dtype).eps, torch.finfo(dtype).smallest_normal
        off = abs(wide(y) - right) / (abs(right) + least)
        assert off.max() <= (0.51 if dtype == BF16 else 4) * unit, (power, eps)
        if rstd.max() > torch.finfo(own).max:
            continue
        assert (abs(wide(got)[:, None] / rstd - 1)).max() <= 4 * torch.finfo(own).eps
        dx, dweight = torch.empty_like(x), torch.empty_like(weight)
        numbers = [3, n, n, n, 0]
        call(backward, f"rms_norm_{NAMES[dtype]}", [dy, h, weight, None, got, dx, dweight, None],
             numbers)  # fmt: skip
        for result, exact in zip((dx, dweight), grads, strict=True):
            size = abs(exact).max(-1, keepdims=True) + 64 * least
            finite = narrow(exact, dtype).isfinite().numpy()
            gap = np.where(finite, abs(wide(result) - np.where(finite, exact, 0)), 0)
            assert (gap / size).max() <= 8 * unit, (power, eps)
