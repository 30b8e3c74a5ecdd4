"""What is peculiar to bias_dropout_add: which elements are dropped, and in which memory layout."""

from __future__ import annotations

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
from fuseline.ops.bias_dropout_add import tile_for
from fuseline.ops.bias_dropout_add.op import CONTRACT
from fuseline.primitives import philox

OPS = torch.ops.fuseline
SPEC = table.load()["bias_dropout_add"]
IMPLS = [("cpu", "auto"), pytest.param("cuda", "triton", marks=pytest.mark.gpu)]
WHERE = [*IMPLS, ("cpu", "eager"), pytest.param("cuda", "eager", marks=pytest.mark.gpu)]
SEEDS = (0, 7, -1, 2**40 + 5, 2**63 - 1)

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


def philox_of(seed: int, counter: int) -> list[int]:
    """Philox 4x32-10 as its paper has it, in Python's integers."""
    low = 2**32 - 1
    c, key = [counter & low, counter >> 32, 0, 0], [seed & low, seed >> 32 & low]
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [b >> 32 ^ c[1] ^ key[0], b & low, a >> 32 ^ c[3] ^ key[1], a & low]
        key = [key[0] + 0x9E3779B9 & low, key[1] + 0xBB67AE85 & low]
    return c


def factors(shape: tuple[int, ...], p: float, seed: int, dtype: torch.dtype) -> Tensor:
    """0 or 1 / (1 - p) for every element, from the numbers above."""
    n = torch.Size(shape).numel()
    numbers = [x for i in range((n + 3) // 4) for x in philox_of(seed, i)][:n]
    kept = torch.tensor([x >= int(p * 2**32) for x in numbers]).view(shape)
    return (kept.double() / (1 - p)).to(dtype)


def in_layout(t: Tensor, order: tuple[int, ...], gap: int = 0) -> Tensor:
    """t with its dimensions in memory in this order, with a gap after each run of the last."""
    permuted = t.permute(order)
    held = t.new_full((*permuted.shape[:-1], permuted.shape[-1] + gap), torch.nan)
    view = held[..., : permuted.shape[-1]]
    view.copy_(permuted)
    return view.permute([order.index(d) for d in range(t.dim())])


def check(x: Tensor, bias: Tensor, residual: Tensor, p: float, seed: int | None, impl: str) -> None:
    """Within three roundings of the terms' size, in the layout of the residual, without a copy."""
    copies = native.copies()
    y = fuseline.bias_dropout_add(x, bias, residual, p, seed is not None, seed, impl)
    assert native.copies() == copies
    assert y.stride() == torch.empty_like(residual).stride()
    factor = 1.0 if seed is None else factors(x.shape, p, seed, torch.float64).to(x.device)
    x, bias, residual = x.double(), bias.double(), residual.double()
    size = (x.abs() + bias.abs()) * factor + residual.abs()
    off = (y.double() - residual - (x + bias) * factor).abs()
    assert (off <= 3 * torch.finfo(y.dtype).eps * size).all()


def test_schemas_in_the_binary_are_those_of_the_contract() -> None:
    for name, schema in CONTRACT.schemas().items():
        wanted = torch._C.parse_schema(f"fuseline::{name}{schema}")
        assert getattr(OPS, name).default._schema == wanted


def test_numbers_are_those_of_philox() -> None:
    zero = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]  # Random123's known answer
    assert philox_of(0, 0) == zero
    for seed in SEEDS:
        found = philox.numbers(seed, 42, torch.device("cpu"))
        assert found.tolist() == [x for i in range(11) for x in philox_of(seed, i)][:42]


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("dtype", SPEC.dtypes, ids=str)
def test_what_is_dropped_depends_on_seed_and_place_alone(
    dtype: torch.dtype, device: str, impl: str
) -> None:
    for shape, seed in (((61,), 7), ((3, 130), -1), ((40, 36), 2**40 + 5), ((5, 7, 12), 0)):
        want = factors(shape, 0.3, seed, dtype).to(device)
        one, none = torch.ones_like(want), torch.zeros_like(want)
        for order in permutations(range(len(shape))):
            laid_out = in_layout(one, order)
            for x, residual in ((one, in_layout(none, order)), (laid_out, none)):
                y = fuseline.bias_dropout_add(x, none, residual, 0.3, True, seed, impl)
                assert torch.equal(y, want)
            dy = laid_out.requires_grad_()
            (dx,) = torch.autograd.grad(
                fuseline.bias_dropout_add(dy, none, none, 0.3, True, seed, impl), dy, one
            )
            assert torch.equal(dx, want)


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_as_many_are_dropped_as_should_be(p: float, device: str, impl: str) -> None:
    n = 1 << 20
    one, none = torch.ones(n, device=device), torch.zeros(n, device=device)

    def kept(seed: int) -> Tensor:
        return (fuseline.bias_dropout_add(one, none, none, p, True, seed, impl) > 0).double()

    sigma = (p * (1 - p)) ** 0.5
    first = kept(1)
    assert abs(first.mean() - (1 - p)) < 5 * sigma / n**0.5
    first = (first - (1 - p)) / sigma
    for other in ((kept(2) - (1 - p)) / sigma, *(first.roll(step) for step in (1, 2, 3, 4, 1024))):
        assert abs((first * other).mean()) < 5 / n**0.5


@pytest.mark.parametrize(("device", "impl"), IMPLS)
def test_p_of_0_and_of_1(device: str, impl: str) -> None:
    x, bias, residual = torch.randn(3, 40, 61, device=device)
    call = fuseline.bias_dropout_add
    assert torch.equal(call(x, bias, residual, 0.0, True), call(x, bias, residual, impl=impl))
    assert torch.equal(call(x, bias, residual, 1, True, impl=impl), residual)


@pytest.mark.parametrize(("device", "impl"), IMPLS)
@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("shape", [(64, 130), (129, 64), (3, 5, 36), (2, 3, 4, 5, 6)], ids=str)
def test_any_layout_without_a_copy(
    shape: tuple[int, ...], seed: int | None, device: str, impl: str
) -> None:
    x, bias, residual = (torch.randn(shape, device=device) for _ in range(3))
    there, back = tuple(range(len(shape))), tuple(reversed(range(len(shape))))
    mixed = (*there[1:], 0)
    for of_x, of_bias, of_residual, gap in (
        (there, back, back, 0),
        (back, there, there, 3),
        (back, back, back, 0),
        (mixed, back, there, 1),
        (there, there, mixed, 0),
    ):
        operands = zip((x, bias, residual), (of_x, of_bias, of_residual), strict=True)
        check(*(in_layout(t, order, gap) for t, order in operands), 0.3, seed, impl)
    row = torch.randn(shape[-1], device=device)
    check(x, row, residual, 0.3, seed, impl)
    check(in_layout(x, back), row[:1], in_layout(residual, back), 0.3, seed, impl)
    check(x[..., ::2], row[::2], residual[..., ::2], 0.3, seed, impl)
    check(x[:1].expand(shape), bias, residual[:1].expand(shape), 0.3, seed, impl)


@pytest.mark.parametrize("isa", BUILT)
def test_each_instruction_set(isa: str) -> None:
    code = "import torch; from ops import test_bias_dropout_add as t\n"
    code += "for d in t.SPEC.dtypes:"
    code += " t.test_what_is_dropped_depends_on_seed_and_place_alone(d, 'cpu', 'auto')\n"
    code += "for s in (None, 7): t.test_any_layout_without_a_copy((64, 130), s, 'cpu', 'auto')"
    for_instruction_set(isa, code)


def test_seeds_come_from_torchs_generator() -> None:
    x = torch.ones(1000)
    none = torch.zeros(1000)

    def draw() -> Tensor:
        return fuseline.bias_dropout_add(x, none, none, 0.5, training=True)

    torch.manual_seed(5)
    first, second = draw(), draw()
    torch.manual_seed(5)
    assert torch.equal(draw(), first)
    assert torch.equal(draw(), second)
    assert not torch.equal(first, second)
    before = torch.get_rng_state()
    fuseline.bias_dropout_add(x, none, none)
    fuseline.bias_dropout_add(x, none, none, 0.5, True, 3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("device", "impl"), WHERE)
def test_a_seed_in_a_tensor_is_that_seed(device: str, impl: str) -> None:
    for shape, seed in (((61,), 7), ((3, 130), -1), ((40, 36), 2**40 + 5), ((36, 9), -(2**62))):
        for order in (shape, shape[::-1]):
            x, bias, residual, dy = (torch.randn(order, device=device) for _ in range(4))
            if order != shape:
                x, residual = x.t(), residual.t()
                bias, dy = bias.t(), dy.t()
            found = []
            for given in (seed, torch.tensor(seed, device=device)):
                leaf = x.clone().requires_grad_()
                y = fuseline.bias_dropout_add(leaf, bias, residual, 0.3, True, given, impl)
                found.append((y, *torch.autograd.grad(y, leaf, dy)))
            assert all(map(torch.equal, *found))


def test_a_seed_in_a_tensor_under_every_transform() -> None:
    x, bias, residual = torch.randn(5, 64), torch.randn(64), torch.randn(5, 64)
    seed = torch.tensor(2**40 + 3)

    def call(x: Tensor, seed: Any) -> Tensor:
        return fuseline.bias_dropout_add(x, bias, residual, 0.3, True, seed)

    want = call(x, int(seed))
    compiled = torch.compile(call, fullgraph=True, backend="inductor")
    assert torch.equal(compiled(x, seed), want)
    assert torch.equal(compiled(x, seed + 1), call(x, int(seed) + 1))
    assert torch.equal(torch.fx.symbolic_trace(call)(x, seed), want)
    seeds = torch.tensor([3, -(2**50), int(seed)])
    many = torch.vmap(call, in_dims=(None, 0))(x, seeds)
    for i in range(3):
        torch.testing.assert_close(many[i], call(x, int(seeds[i])))
    (dx,) = torch.autograd.grad(call(x.requires_grad_(), seed).sum(), x)
    grads = torch.vmap(torch.func.grad(lambda s, x: call(x, s).sum(), 1), (0, None))(seeds, x)
    torch.testing.assert_close(grads[2], dx)
    assert torch.equal(torch.func.grad(lambda x: call(x, seed).sum())(x), dx)


def test_backward_draws_again_and_saves_nothing() -> None:
    x, residual = (torch.randn(40, 61, requires_grad=True) for _ in range(2))
    bias = torch.randn(61, requires_grad=True)
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda t: t):
        y = fuseline.bias_dropout_add(x, bias, residual, 0.3, training=True)
    assert not saved
    dropped = y == residual
    dy = torch.randn_like(y)
    dx, dbias, dresidual = torch.autograd.grad(y, (x, bias, residual), dy)
    assert torch.equal(dx == 0, dropped)
    assert torch.allclose(dx[~dropped], dy[~dropped] / 0.7)
    assert torch.allclose(dbias, dx.sum(0))
    assert torch.equal(dresidual, dy)


@pytest.mark.parametrize("training", [False, True])
def test_gradients_of_every_order(training: bool) -> None:
    x, residual = (torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    bias = torch.randn(4, 1, dtype=torch.float64, requires_grad=True)

    def call(*tensors: Tensor) -> Tensor:
        return fuseline.bias_dropout_add(*tensors, 0.3, training, 7)

    assert torch.autograd.gradcheck(call, (x, bias, residual), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, (x, bias, residual))


@pytest.mark.parametrize("shape", [(3, 8), (0, 8), (4, 0), (2, 3, 5)])
@pytest.mark.parametrize("seed", [None, 7])
def test_opcheck(shape: tuple[int, ...], seed: int | None) -> None:
    x = torch.randn(shape, requires_grad=True)
    bias = torch.randn(shape[-1:], requires_grad=True)
    residual = torch.randn(shape[::-1]).permute(*reversed(range(len(shape))))
    for tensors in ((x, bias, residual), (x, x.detach(), residual[..., :1].expand(shape))):
        opcheck(OPS.bias_dropout_add, (*tensors, 0.3, seed is not None, seed))
        key = None if seed is None else torch.tensor(seed)
        opcheck(OPS.bias_dropout_add, (*tensors, 0.3, seed is not None, None, key))
    opcheck(OPS._bias_dropout_add_bwd, (residual, 0.3, 7))
    opcheck(OPS._bias_dropout_add_bwd, (residual, 0.3, None, torch.tensor(7)))


def test_raw_calls_name_what_is_wrong() -> None:
    x = torch.randn(3, 8)
    for args, word in (
        ((x, x[:, :4], x, 0.5, False, None), "bias has shape"),
        ((x, x, x[:2], 0.5, False, None), "residual has shape"),
        ((x, x.double(), x, 0.5, False, None), "bias must have the dtype"),
        ((x, x, x, 1.5, True, 1), "p is 1.5"),
        ((x, x, x, 0.5, True, None), "seed is None"),
    ):
        with pytest.raises(RuntimeError, match=word):
            OPS.bias_dropout_add(*args)
    with pytest.raises(RuntimeError, match="p is nan"):
        OPS._bias_dropout_add_bwd(x, float("nan"), 1)
    with pytest.raises(RuntimeError, match="seed is None"):
        OPS._bias_dropout_add_bwd(x, 0.5, None)
    for key in (torch.ones(1).long(), torch.ones(()), torch.ones((), dtype=torch.int32)):
        with pytest.raises(RuntimeError, match="seed_tensor"):
            OPS.bias_dropout_add(x, x, x, 0.5, True, None, key)
        with pytest.raises(RuntimeError, match="seed_tensor"):
            OPS._bias_dropout_add_bwd(x, 0.5, None, key)


def test_compiled_without_a_break_and_for_any_seed() -> None:
    x, residual = torch.randn(5, 64), torch.randn(64, 5).t()
    bias = torch.randn(64)
    graphs = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    compiled = torch.compile(fuseline.bias_dropout_add, fullgraph=True, backend=graphs)
    for seed in (3, 2**40, 5, 6):
        y = compiled(x, bias, residual, 0.3, True, seed)
        assert torch.equal(y, fuseline.bias_dropout_add(x, bias, residual, 0.3, True, seed))
        assert y.stride() == residual.stride()
    assert graphs.frame_count <= 2  # the second is for all seeds
    torch.manual_seed(5)
    first = compiled(x, bias, residual, 0.3, True)
    assert first.stride() == residual.stride()
    torch.manual_seed(5)
    assert torch.equal(compiled(x, bias, residual, 0.3, True), first)


@pytest.mark.parametrize("training", [False, True])
def test_under_vmap_each_element_is_a_call_of_its_own(training: bool) -> None:
    x, residual = torch.randn(3, 5, 64), torch.randn(5, 3, 64)
    for bias, bias_dim in ((torch.randn(3, 64), 0), (torch.randn(5, 64, 3), 2), (x[0], None)):

        def call(x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
            return fuseline.bias_dropout_add(x, bias, residual, 0.3, training, 7)

        found = torch.vmap(call, in_dims=(0, bias_dim, 1))(x, bias, residual)
        for i in range(3):
            own = bias if bias_dim is None else bias.select(bias_dim, i)
            assert torch.allclose(found[i], call(x[i], own, residual[:, i]), atol=1e-6)
    with pytest.raises(RuntimeError, match="random"):
        torch.vmap(lambda x: fuseline.bias_dropout_add(x, x, x, training=True))(x)


@pytest.mark.parametrize(("device", "impl"), WHERE)
@pytest.mark.parametrize("randomness", ["same", "different"])
def test_under_vmap_without_a_seed_it_drops_as_torch_does(
    randomness: str, device: str, impl: str
) -> None:
    x, none = torch.ones(3, 40, 64, device=device), torch.zeros(40, 64, device=device)

    def call(x: Tensor) -> Tensor:
        return fuseline.bias_dropout_add(x, none[0], none, 0.5, True, impl=impl)

    def of_torch(x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(x, 0.5)

    def gradient(x: Tensor) -> Any:
        return torch.func.grad(lambda x: call(x).sum())(x)

    for f in (call, of_torch):
        torch.manual_seed(4)
        y = torch.vmap(f, randomness=randomness)(x)
        assert torch.equal(y[0], y[1]) == torch.equal(y[1], y[2]) == (randomness == "same")
        assert (y > 0).double().mean(dim=(1, 2)).sub(0.5).abs().max() < 0.06
    torch.manual_seed(4)
    y = torch.vmap(call, randomness=randomness)(x)
    torch.manual_seed(4)
    assert torch.equal(torch.vmap(gradient, randomness=randomness)(x), y)


@pytest.mark.gpu
@pytest.mark.parametrize("impl", ["auto", "triton", "eager"])
def test_each_replay_of_a_graph_drops_other_elements(impl: str) -> None:
    x = torch.ones(61, 256, device="cuda", requires_grad=True)
    none = torch.zeros(61, 256, device="cuda")

    def step() -> tuple[Tensor, Tensor]:
        y = fuseline.bias_dropout_add(x, none[0], none, 0.5, True, impl=impl)
        return y, torch.autograd.grad(y, x, torch.ones_like(y))[0]

    def replays(seed: int) -> list[Tensor]:
        torch.cuda.manual_seed(seed)
        seen = []
        for _ in range(3):
            graph.replay()
            assert torch.equal(dx, y.detach())  # the backward drops what the forward does
            seen.append(y.detach().clone())
        return seen

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, dx = step()
    first, again = replays(3), replays(3)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[1], first[2])
    assert all(0.45 < (t > 0).double().mean() < 0.55 for t in first)


def test_traced_by_fx_it_draws_in_the_graph() -> None:
    class Block(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return fuseline.bias_dropout_add(x, x, x, 0.5, True)

    traced = torch.fx.symbolic_trace(Block())
    x = torch.randn(1000)
    assert not torch.equal(traced(x), traced(x))


def test_the_tile_can_be_asked_for() -> None:
    pytest.importorskip("triton")
    x = torch.empty(4096, 1024)
    crossing = torch.empty(1024, 4096).t()
    assert tile_for(x, crossing, crossing) == "64x32, 4 warps"
    assert tile_for(x, x, x) == "1x1024, 4 warps"
