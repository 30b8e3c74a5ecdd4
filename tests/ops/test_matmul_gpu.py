"""Products on a GPU: cuBLASLt's epilogues, that they ran, and torch's switches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from ops.on_a_gpu import kernels
from ops.products import OPS, arguments, error, oracle, results
from torch import Tensor

import fuseline
from fuseline.core.selection.select import asked

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
HALVES = (torch.float16, torch.bfloat16)
DTYPES = (torch.float64, torch.float32, *HALVES)
# M, N, K: a row, odd, as large as a tile and one more, long sums.
SIZES = ((1, 7, 9), (3, 5, 7), (64, 64, 64), (129, 257, 65), (33, 8, 4099), (1000, 72, 24))


@pytest.fixture
def ieee() -> Iterator[None]:
    """Leave torch's switch for TF32 as it was."""
    before = torch.backends.cuda.matmul.fp32_precision
    yield
    torch.backends.cuda.matmul.fp32_precision = before


def random(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def laid_out(t: Tensor, how: str) -> Tensor:
    """Return the matrix's elements in another layout."""
    if how == "transposed":
        return t.mT.contiguous().mT
    if how == "gaps":
        wide = t.new_empty(*t.shape[:-1], t.shape[-1] + 3)[..., 1 : t.shape[-1] + 1]
        return wide.copy_(t)
    if how == "steps":
        return t.repeat_interleave(2, -1)[..., ::2]
    return t


# In eps of the largest element: sums come in another order than eager's, and fp64 is the oracle's
# own type.
FLOOR = {torch.float64: 16.0, torch.float32: 8.0, torch.float16: 2.0, torch.bfloat16: 2.0}


def is_served(op: str, impl: str, args: list[object]) -> bool:
    call = asked(getattr(fuseline, op), *args)
    return impl == "auto" or call.selector.refusal(impl, "fwd", "cuda", *call.call) is None


def hold(op: str, impl: str, args: list[object], dy: Tensor) -> None:
    """Require the results to be as near to fp64's as twice eager's are."""
    if "relu" in op:  # whose slope jumps where a rounding decides the sign
        h = oracle("matmul_add", [*args, args[0].new_zeros(dy.shape[-1])][:3], dy)[0]
        dy = torch.where(h.abs() < 0.02 * h.abs().max(), torch.zeros_like(dy), dy)
    wanted, eager = oracle(op, args, dy), results(op, args, dy, impl="eager")
    for f, e, w in zip(results(op, args, dy, impl=impl), eager, wanted, strict=True):
        assert error(f, w) <= max(2 * error(e, w), FLOOR[f.dtype]), (impl, f.shape)


@pytest.mark.parametrize("impl", ["auto", "aten", "cublaslt", "triton"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_digits(op: str, dtype: torch.dtype, impl: str) -> None:
    served = 0
    for m, n, k in SIZES:
        for how in ("plain", "transposed", "gaps", "steps"):
            a = laid_out(random(m, k, dtype=dtype), how)
            b = laid_out(random(k, n, dtype=dtype) * k**-0.5, how)
            args = arguments(op, a, b, random(n, dtype=dtype))
            if is_served(op, impl, args):
                hold(op, impl, args, laid_out(random(m, n, dtype=dtype), how))
                served += 1
    nothing = {"cublaslt": op != "matmul_add" and dtype not in HALVES, "triton": dtype == DTYPES[0]}
    assert served or nothing[impl]


@pytest.mark.parametrize("impl", ["cublaslt", "triton"])
@pytest.mark.parametrize("op", OPS)
def test_batches(op: str, impl: str) -> None:
    for batch in ((3,), (2, 3)):
        for shared in (False, True):
            a = random(*batch, 20, 24, dtype=torch.bfloat16)
            b = random(*(() if shared else batch), 24, 40, dtype=torch.bfloat16)
            args = arguments(op, a, b, random(40, dtype=torch.bfloat16))
            hold(op, impl, args, random(*batch, 20, 40, dtype=torch.bfloat16))


@pytest.mark.parametrize("impl", ["auto", "triton"])
@pytest.mark.parametrize("op", OPS)
def test_the_forward_is_one_kernel(op: str, impl: str) -> None:
    args = arguments(
        op, *(random(*s, dtype=torch.bfloat16) for s in ((512, 512), (512, 512), (512,)))
    )
    fuseline_op = getattr(fuseline, op)
    ran = [name for name in kernels(lambda: fuseline_op(*args, impl=impl)) if "_" in name]
    assert len(ran) == 1, ran


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(op: str, value: float) -> None:
    for dtype, n in product(DTYPES, (64, 66, 512)):
        a, b, bias = (random(*s, dtype=dtype) for s in ((64, 64), (64, n), (n,)))
        a[3, 5] = value
        args = arguments(op, a, b, bias)
        wanted = getattr(fuseline, op)(*args, impl="eager")
        for impl in ("auto", "triton"):
            if is_served(op, impl, args):
                found = getattr(fuseline, op)(*args, impl=impl)
                assert torch.equal(found.isnan(), wanted.isnan()), (dtype, impl)
                assert torch.equal(found.isinf(), wanted.isinf()), (dtype, impl)


@pytest.mark.usefixtures("ieee")
@pytest.mark.parametrize("impl", ["cublaslt", "triton"])
def test_float32_is_tf32_where_torchs_switch_says_so(impl: str) -> None:
    a, b, bias = (random(*s, dtype=torch.float32) for s in ((512, 512), (512, 512), (512,)))
    wanted = a.double() @ b.double() + bias.double()
    for precision, least, most in (("ieee", 0, 64), ("tf32", 256, 1 << 16)):
        torch.backends.cuda.matmul.fp32_precision = precision
        assert least < error(fuseline.matmul_add(a, b, bias, impl=impl), wanted) < most


@pytest.mark.parametrize("impl", ["auto", "triton"])
def test_a_cuda_graph_holds_the_product(impl: str) -> None:
    a, b, bias = (random(*s, dtype=torch.bfloat16) for s in ((256, 256), (256, 256), (256,)))
    fuseline.matmul_add_gelu(a, b, bias, impl=impl)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fuseline.matmul_add_gelu(a, b, bias, impl=impl)
    a.normal_()
    graph.replay()
    torch.testing.assert_close(y, fuseline.matmul_add_gelu(a, b, bias, impl=impl))


@pytest.mark.parametrize("impl", ["auto", "triton"])
@pytest.mark.parametrize("op", OPS)
def test_compiled(op: str, impl: str) -> None:
    args = arguments(op, *(random(*s, dtype=torch.bfloat16) for s in ((64, 48), (48, 40), (40,))))
    dy = random(64, 40, dtype=torch.bfloat16)
    eager = results(op, args, dy, impl=impl)
    leaves = [t.requires_grad_() if isinstance(t, Tensor) else t for t in args]
    y = torch.compile(getattr(fuseline, op), fullgraph=True)(*leaves, impl=impl)
    tensors = [t for t in leaves if isinstance(t, Tensor)]
    for found, wanted in zip([y, *torch.autograd.grad(y, tensors, dy)], eager, strict=True):
        torch.testing.assert_close(found, wanted)
