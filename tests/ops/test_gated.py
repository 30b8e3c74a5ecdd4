"""What is peculiar to gated operators: two inputs in one, both gradients of one pass, far gates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import permutations
from typing import Any

import pytest
import torch
from ops.instruction_sets import BUILT, for_instruction_set
from torch import Tensor
from torch.library import opcheck

import fuseline
from fuseline import table
from fuseline.core import native
from fuseline.ops.geglu.op import CONTRACT as GEGLU
from fuseline.ops.swiglu.op import CONTRACT as SWIGLU
from fuseline.testing.oracle.accuracy import errors

OPS = torch.ops.fuseline
CONTRACTS = {"swiglu": SWIGLU, "geglu": GEGLU}
# Each with the arguments behind a and b.
GATES: dict[str, tuple[str, dict[str, Any]]] = {
    "swiglu": ("swiglu", {}),
    "geglu": ("geglu", {"approximate": "tanh"}),
    "geglu-none": ("geglu", {"approximate": "none"}),
}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

pytestmark = [
    pytest.mark.skipif(
        native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
    ),
]
each_gate = pytest.mark.parametrize("name", GATES)


def gate(name: str) -> Callable[..., Tensor]:
    op, options = GATES[name]
    return partial(getattr(fuseline, op), **options)


def raw(name: str, prefix: str = "", suffix: str = "") -> Callable[..., Any]:
    """Return a raw operator of a gate, called with tensors alone."""
    op, options = GATES[name]
    packet = getattr(OPS, f"{prefix}{op}{suffix}")
    return lambda *tensors: packet(*tensors, *options.values())


@pytest.mark.parametrize("op", CONTRACTS)
def test_schemas_in_the_binary_are_those_of_the_contract(op: str) -> None:
    for name, schema in CONTRACTS[op].schemas().items():
        wanted = torch._C.parse_schema(f"fuseline::{name}{schema}")
        assert getattr(OPS, name).default._schema == wanted


@each_gate
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(2,), (3, 10), (2, 0), (0, 4), (5, 2, 66), (33, 4096)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_packed_is_apart_bit_for_bit(
    name: str, dtype: torch.dtype, shape: tuple[int, ...], device: str
) -> None:
    ab = torch.randn(shape, dtype=dtype, device=device, requires_grad=True)
    a, b = (t.detach().clone().requires_grad_() for t in ab.chunk(2, -1))
    y, want = gate(name)(ab), gate(name)(a, b)
    assert torch.equal(y, want)
    dy = torch.randn_like(y)
    (dab,) = torch.autograd.grad(y, ab, dy)
    da, db = torch.autograd.grad(want, (a, b), dy)
    assert torch.equal(dab, torch.cat((da, db), -1))


@each_gate
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gap", [0, 3])
@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_results_lie_as_a(name: str, order: tuple[int, ...], gap: int, device: str) -> None:
    """In every order of dimensions, with and without gaps, whatever that of b."""
    a = torch.randn(4, 6, 14 + gap, device=device)[..., :14].permute(order).requires_grad_()
    own, b = a.detach().clone(memory_format=torch.contiguous_format), torch.randn_like(a.detach())
    b = b.contiguous().requires_grad_()
    y, dy = gate(name)(a, b), torch.randn(a.shape, device=device)
    grads = torch.autograd.grad(y, (a, b), dy)
    for t in (y, *grads):
        assert t.stride() == torch.empty_like(a).stride()
    dense = own.requires_grad_()
    want = gate(name)(dense, b)
    assert torch.equal(y, want)
    assert all(map(torch.equal, grads, torch.autograd.grad(want, (dense, b), dy)))
    y, want = gate(name)(a), gate(name)(dense)
    assert y.is_contiguous()
    assert torch.equal(y, want)
    pairs = ((y, a), (want, dense))
    (da,), (dense_da,) = (torch.autograd.grad(t, x, dy[..., ::2]) for t, x in pairs)
    assert da.stride() == torch.empty_like(a).stride()
    assert torch.equal(da, dense_da)


@each_gate
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_gates_that_are_far_open_or_shut(name: str, dtype: torch.dtype, device: str) -> None:
    """From where the exponential has no digits f is a, or 0 with the sign of a."""
    op, options = GATES[name]
    least, single, on_gpu = (-80, 4.0, 6.0) if op == "swiglu" else (-9, 8.0, 12.0)
    near = torch.linspace(least, 80, 4001, dtype=torch.float64, device=device).to(dtype)
    inputs = {"a": near, "b": torch.ones_like(near)}
    results = {"out0": gate(name)(**inputs)}
    most = errors(table.load()[op], inputs | options, "fwd", results)["out0"].max_ulp
    limits = {torch.float64: 8.0, torch.float32: single if device == "cpu" else on_gpu}
    assert most <= limits.get(dtype, 0.51)
    far = torch.tensor([1000.0, 6e4, -1000.0, -6e4, torch.inf], dtype=dtype, device=device)
    far.requires_grad_()
    y = gate(name)(far, torch.ones_like(far))
    assert torch.equal(y, far.clamp(min=0))
    (da,) = torch.autograd.grad(y[:4].sum(), far)
    assert torch.equal(da[:4], (far > 0)[:4].to(dtype))


@each_gate
def test_one_gradient_alone(name: str) -> None:
    a, b = torch.randn(3, 8), torch.randn(3, 8)
    both = torch.autograd.grad(gate(name)(a.requires_grad_(), b.requires_grad_()).sum(), (a, b))
    for k, leaf in enumerate((a, b)):
        given = [t if t is leaf else t.detach() for t in (a, b)]
        (alone,) = torch.autograd.grad(gate(name)(*given).sum(), leaf)
        assert torch.equal(alone, both[k])


@each_gate
def test_gradients_of_every_order(name: str) -> None:
    a, b = (torch.randn(3, 6, dtype=torch.float64, requires_grad=True) for _ in "ab")
    for given in ((a, b), (a,)):
        assert torch.autograd.gradcheck(gate(name), given, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(gate(name), given)


@each_gate
@pytest.mark.parametrize("shape", [(8,), (3, 8), (0, 8), (2, 3, 6)], ids=str)
def test_opcheck(name: str, shape: tuple[int, ...]) -> None:
    a, b = torch.randn(shape), torch.randn(shape)
    op, options = GATES[name]
    forward, backward = getattr(OPS, op), getattr(OPS, f"_{op}_bwd")
    rest = tuple(options.values())
    opcheck(forward, (a.clone().requires_grad_(), b.clone().requires_grad_(), *rest))
    opcheck(forward, (a.clone().requires_grad_(), None, *rest))
    opcheck(backward, (torch.randn(shape), a, b, *rest))
    opcheck(backward, (torch.randn(shape)[..., ::2], a, None, *rest))


@each_gate
def test_raw_operators_name_what_is_wrong(name: str) -> None:
    a, op = torch.randn(3, 8), GATES[name][0]
    for first, b, words in (
        (a, a[:2], r"b has shape \[2, 8\]"),
        (a[:, :7], None, "even last dimension"),
        (a[0, 0], None, "even last dimension"),
    ):
        with pytest.raises(RuntimeError, match=f"{op}: .*{words}"):
            raw(name, "_")(first, b)
    for b in (a, None):
        with pytest.raises(RuntimeError, match="dy has shape"):
            raw(name, "_", "_bwd")(a[:, :3], a, b)


def test_raw_geglu_names_a_strange_formula() -> None:
    a = torch.randn(3, 8)
    for call in (partial(OPS._geglu, a), partial(OPS._geglu_bwd, a, a)):
        with pytest.raises(RuntimeError, match="geglu: approximate is 'erf', expected"):
            call(a, "erf")


@each_gate
def test_compiled_without_a_break_and_under_vmap(name: str) -> None:
    a, b = torch.randn(5, 3, 64), torch.randn(5, 3, 64)
    for given in ((a, b), (a,)):
        want = gate(name)(*given)
        assert torch.equal(torch.compile(gate(name), fullgraph=True)(*given), want)
        assert torch.equal(torch.vmap(gate(name), in_dims=1, out_dims=1)(*given), want)
    each = torch.vmap(gate(name), in_dims=(0, None))(a, b[0])
    assert torch.equal(each, gate(name)(a, b[:1].expand_as(a)))


@each_gate
@pytest.mark.parametrize("isa", BUILT)
def test_each_instruction_set_keeps_the_budget(name: str, isa: str) -> None:
    code = "import torch, ops.test_gated as t\n"
    code += "for dtype in t.table.load()['swiglu'].dtypes:\n"
    code += f"    t.test_gates_that_are_far_open_or_shut({name!r}, dtype, 'cpu')\n"
    code += f"    t.test_packed_is_apart_bit_for_bit({name!r}, dtype, (5, 2, 66), 'cpu')\n"
    for_instruction_set(isa, code)
