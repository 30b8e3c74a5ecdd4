"""Attention on a CPU: what no other operator promises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from ops.attention_calls import LENGTHS, hold, oracle, problem, results
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import fuseline
from fuseline.ops.attention.op import SELECTOR
from fuseline.primitives import philox

IMPLS = ("auto", "flash", "math")
NAN = float("nan")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
def test_lengths(queries: int, keys: int, causal: bool) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        *tensors, dout = problem(queries, keys, 16, dtype, batch=1)
        for impl in IMPLS if keys > 1 else ("auto", "math"):
            hold(dout, *tensors, causal=causal, impl=impl)


@pytest.mark.parametrize("layout", ["heads first", "heads last", "gaps", "columns"])
@pytest.mark.parametrize("impl", IMPLS)
def test_layouts_of_all_and_of_the_results(layout: str, impl: str) -> None:
    *tensors, dout = problem(9, 19, 8, heads=(4, 2), layout=layout)
    hold(dout, *tensors, impl=impl)
    out, *grads = results(dout, *tensors, impl=impl)
    for t, like in zip((out, *grads), (tensors[0], *tensors), strict=True):
        assert t.stride() == torch.empty_like(like).stride()


def test_heads_that_share_keys_are_as_repeated_ones() -> None:
    q, k, v, dout = problem(7, 19, 8, heads=(6, 2))
    repeated = (t.repeat_interleave(3, 1) for t in (k, v))
    for impl in IMPLS:
        found, wanted = (results(dout, q, *kv, impl=impl) for kv in ((k, v), repeated))
        torch.testing.assert_close(found[:2], wanted[:2])
        for shared, apart in zip(found[2:], wanted[2:], strict=True):
            torch.testing.assert_close(shared, apart.unflatten(1, (2, 3)).sum(2))
        repeated = tuple(t.repeat_interleave(3, 1) for t in (k, v))


@pytest.mark.parametrize("impl", ["auto", "flash", "math", "eager"])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_query_that_sees_nothing_gives_0_and_no_gradient(impl: str, kind: str) -> None:
    *tensors, dout = problem(6, 17, 8)
    mask = torch.rand(2, 2, 6, 17) > 0.3
    mask[:, :, 1::2] = False
    if kind == "float":
        mask = torch.zeros(mask.shape).masked_fill_(~mask, float("-inf"))
    out, *grads = results_without_mask(dout, *tensors, mask, impl=impl)
    assert (out[:, :, 1::2] == 0).all()
    assert (grads[0][:, :, 1::2] == 0).all()
    wanted = oracle(dout, *tensors, mask)[:4]
    torch.testing.assert_close([out, *grads], wanted, check_dtype=False, atol=1e-5, rtol=1e-5)


def results_without_mask(dout: Tensor, *tensors: Any, **options: Any) -> list[Tensor]:
    """Return the results where the mask wants no gradient."""
    *given, mask = tensors
    leaves = [t.detach().requires_grad_() for t in given]
    out = fuseline.attention(*leaves, mask, **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_not_finite_stays_so(impl: str, value: float, dtype: torch.dtype) -> None:
    for keys in (2, 17, 40) if impl != "flash" else (17, 40):
        for i in range(3):
            tensors = [t.clone() for t in problem(3, keys, 8, dtype, batch=1)[:3]]
            tensors[i][0, 1, 1, 3] = value
            wanted = fuseline.attention(*tensors, impl="eager").isfinite()
            found = fuseline.attention(*tensors, impl=impl).isfinite()
            assert torch.equal(found, wanted), (keys, i)


@pytest.mark.parametrize("shape", [(2, 2, 6, 5), (6, 5), (5,), (2, 1, 1, 5), (2, 6, 1), (1, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_a_mask_of_floats_has_a_gradient(shape: tuple[int, ...], causal: bool) -> None:
    *tensors, dout = problem(6, 5, 8)
    hold(dout, *tensors, torch.randn(shape), causal=causal)
    assert results(dout, *tensors, torch.randn(shape))[4].shape == shape


def test_a_mask_of_float32_beside_half_types() -> None:
    *tensors, dout = problem(6, 5, 8, torch.bfloat16)
    mask = torch.randn(6, 5) * 4
    dmask = results(dout, *tensors, mask)[4]
    assert dmask.dtype == torch.float32
    wide = results(dout.double(), *(t.double() for t in tensors), mask.double())[4]
    assert (dmask - wide).abs().max() < 0.02 * wide.abs().max()


@pytest.mark.parametrize(
    "how",
    [
        {"window": 3},
        {"window": (4, -1)},
        {"window": (-1, 2)},
        {"window": (2, 3), "causal": True},
        {"window": (0, 0)},
    ],
)
@pytest.mark.parametrize("impl", ["auto", "math", "eager"])
def test_windows(how: dict[str, Any], impl: str) -> None:
    *tensors, dout = problem(12, 9, 8)
    hold(dout, *tensors, **how, impl=impl)
    if how["window"] == 3:
        wide = torch.randn(2, 2, 4, 8)
        seen = (torch.arange(4)[:, None] - torch.arange(4)).abs() < 3
        found = fuseline.attention(wide, wide, wide, window=3, impl=impl)
        torch.testing.assert_close(found, fuseline.attention(wide, wide, wide, seen, impl=impl))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_any_backward_follows_any_forward(dtype: torch.dtype) -> None:
    q, k, v, dout = problem(7, 17, 8, dtype, heads=(4, 2))
    mask = torch.rand(7, 17) > 0.2
    mask[3] = False
    args = (q, k, v, mask, True, None, -1, -1, 0.0, None, None, False)
    wanted = oracle(dout, q, k, v, mask, causal=True)[1:]
    ops = torch.ops.fuseline
    for first in ("flash", "math"):
        out, lse = getattr(ops, f"_attention_fwd__{first}")(*args)
        assert lse.is_contiguous() and (lse[:, :, 3] == float("-inf")).all()  # noqa: PT018
        for second in ("flash", "math"):
            *grads, none = getattr(ops, f"_attention_bwd__{second}")(dout, out, lse, *args, False)
            assert none.numel() == 0
            for found, exact in zip(grads, wanted, strict=True):
                limit = 16 * torch.finfo(dtype).eps * float(exact.abs().max())
                assert (found.double() - exact).abs().max() < limit


@pytest.mark.parametrize("impl", ["auto", "math", "eager"])
def test_dropout_is_by_seed_and_place_alone(impl: str) -> None:
    *tensors, dout = problem(9, 14, 8)
    how = {"dropout": 0.3, "seed": 5, "impl": impl}
    hold(dout, *tensors, **how)
    first = fuseline.attention(*tensors, **how)
    held = fuseline.attention(*tensors, **{**how, "seed": torch.tensor(5)})
    assert torch.equal(first, held)
    assert not torch.equal(first, fuseline.attention(*tensors, **{**how, "seed": 6}))
    assert torch.equal(fuseline.attention(*tensors, dropout=1.0, seed=5, impl=impl), 0 * first)
    torch.manual_seed(1)
    drawn = [fuseline.attention(*tensors, dropout=0.3, impl=impl) for _ in range(2)]
    torch.manual_seed(1)
    assert torch.equal(drawn[0], fuseline.attention(*tensors, dropout=0.3, impl=impl))
    assert not torch.equal(*drawn)


def test_dropout_keeps_as_many_as_it_says() -> None:
    kept = philox.matrix_dropout_factor(8, 128, 1024, 0.3, 1 << 40, torch.device("cpu")) > 0
    assert abs(float(kept.double().mean()) - 0.7) < 4 * (0.21 / kept.numel()) ** 0.5
    assert abs(float(kept.double().mean((0, 1)).std()) - (0.21 / 1024) ** 0.5) < 2e-3


@pytest.mark.parametrize("batch", ["q", "k", "v", "mask", "all"])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("shape", [(6, 5), (2, 1, 6, 5)])
def test_vmap_over_each_argument(batch: str, dropout: float, shape: tuple[int, ...]) -> None:
    q, k, v, _ = problem(6, 5, 8)
    given = dict(zip(("q", "k", "v", "mask"), (q, k, v, torch.randn(shape)), strict=True))
    over = [name in (batch, "all") or batch == "all" for name in given]
    pairs = zip(given.values(), over, strict=True)
    args = [torch.randn(3, *t.shape) if own else t for t, own in pairs]

    def call(*args: Tensor) -> Tensor:
        return fuseline.attention(*args, dropout=dropout, seed=3)

    found = torch.vmap(call, in_dims=tuple(0 if own else None for own in over))(*args)
    for i in range(3):
        one = [t[i] if own else t for t, own in zip(args, over, strict=True)]
        torch.testing.assert_close(found[i], call(*one))


def test_under_vmap_each_draws_what_its_seed_says() -> None:
    q, k, v, _ = problem(6, 5, 8)
    seeds = torch.tensor([4, 5])
    found = torch.vmap(lambda s: fuseline.attention(q, k, v, dropout=0.4, seed=s))(seeds)
    for i, seed in enumerate(seeds):
        torch.testing.assert_close(found[i], fuseline.attention(q, k, v, dropout=0.4, seed=seed))


def test_nothing_of_the_size_of_the_scores_is_saved() -> None:
    q, k, v, _ = problem(64, 64, 8)
    kept: list[int] = []

    def keep(t: Tensor) -> Tensor:
        kept.append(t.numel())
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        fuseline.attention(*(t.requires_grad_() for t in (q, k, v)))
    assert sum(kept) == 4 * q.numel() + q[..., 0].numel()


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0), (0, 0)])
def test_no_queries_or_no_keys(queries: int, keys: int) -> None:
    *tensors, dout = problem(queries, keys, 8, heads=(4, 2))
    for impl in ("auto", "math"):
        for t, like in zip(results(dout, *tensors, impl=impl), (tensors[0], *tensors), strict=True):
            assert t.shape == like.shape
            assert not t.any()


def test_autocast_lowers_the_arguments_as_torchs_attention_does() -> None:
    *tensors, dout = problem(6, 5, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = results(dout.bfloat16(), *tensors, torch.randn(6, 5))
    assert [t.dtype for t in found] == [torch.bfloat16, *[torch.float32] * 4]


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def fake(*shape: int, dtype: torch.dtype = torch.bfloat16, step: int = 0) -> Tensor:
    """Return a tensor on a GPU that need not be there; step: of rows, if not their length."""
    *lead, last = shape
    t = torch.empty(*lead, step or last, dtype=dtype, device="meta")[..., :last]
    return FakeTensor(FakeTensorMode(), t, torch.device("cuda"))


def why_not(impl: str, direction: str, *tensors: Tensor, **options: Any) -> str | None:
    """Return why an implementation does not serve a call on a GPU, which need not be there."""
    from fuseline.core.selection.select import asked

    args = asked(fuseline.attention, *tensors, **options).call
    return SELECTOR.choice(impl).unsupported(direction, *args)


def test_reasons_on_a_gpu() -> None:
    q = fake(2, 4, 64, 64)
    for impl in ("cudnn", "triton", "flash", "fa4"):
        assert [why_not(impl, d, q, q, q, causal=True) for d in ("fwd", "bwd")] == [None, None]
    one, mask = fake(2, 4, 1, 64), fake(64, 64)
    assert why_not("cudnn", "fwd", one, q, q) is None
    for impl, direction, tensors, options, words in (
        ("cudnn", "bwd", (one, q, q), {}, "cudnn-frontend/issues/1072"),
        ("cudnn", "bwd", (q, q, q, mask), {}, "pytorch/issues/196678"),
        ("cudnn", "bwd", (q, q, q), {}, "keys % 128 is 64"),
        ("cudnn", "bwd", (fake(2, 4, 65, 64), q, q), {"causal": True}, "keys % 128 is 64"),
        ("cudnn", "fwd", (q, one, one), {}, "single key"),
        ("cudnn", "bwd", (q, q, q), {"deterministic": True}, "fixed order"),
        ("cudnn", "fwd", (q, q, q), {"window": 8}, "window"),
        ("cudnn", "fwd", (q, q, q), {"dropout": 0.1, "seed": 1}, "dropout"),
        ("cudnn", "fwd", (fake(2, 4, 64, 60),) * 3, {}, "multiple of 8"),
        ("cudnn", "fwd", (fake(2, 4, 64, 136),) * 3, {}, "at most 128"),
        ("cudnn", "fwd", (fake(2, 4, 64, 64, step=67),) * 3, {}, "16 bytes"),
        ("flash", "fwd", (one, q, q), {"causal": True}, "last query"),
        ("flash", "bwd", (q, q, q), {"deterministic": True}, "fixed order"),
        ("triton", "fwd", (fake(2, 4, 64, 264),) * 3, {}, "at most 256"),
        ("triton", "fwd", (fake(2, 4, 64, 64, dtype=torch.float64),) * 3, {}, "float64"),
    ):  # fmt: skip
        reason = why_not(impl, direction, *tensors, **options)
        assert reason and words in reason, (impl, direction, reason)  # noqa: PT018
    assert why_not("cudnn", "fwd", q, q, q, deterministic=True) is None


@pytest.mark.usefixtures("deterministic")
def test_torchs_switch_wants_determinism() -> None:
    q = fake(2, 4, 64, 64)
    assert "fixed order" in (why_not("cudnn", "bwd", q, q, q) or "")


def test_what_does_not_serve_a_call_says_so_by_name() -> None:
    q, k, v, _ = problem(4, 16, 8)
    with pytest.raises(
        RuntimeError, match="attention: impl 'flash' cannot run here: it has no win"
    ):
        fuseline.attention(q, k, v, window=2, impl="flash")
    mask = torch.zeros(4, 16, requires_grad=True)
    with pytest.raises(RuntimeError, match="it gives a mask no gradient"):
        fuseline.attention(q, k, v, mask, impl="flash")
    told = fuseline.explain_choice(fuseline.attention, q, k, v, mask)
    assert (told.fwd.impl, told.bwd.impl) == ("flash", "math")


def test_a_compiled_graph_holds_what_was_picked() -> None:
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs: list[str] = []

    def keep(graph: torch.fx.GraphModule, example: object) -> Any:
        graphs.append(graph.code)
        return make_boxed_func(graph.forward)

    q, k, v, dout = problem(6, 17, 8)
    call = torch.compile(fuseline.attention, backend=aot_autograd(fw_compiler=keep), fullgraph=True)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    out = call(*leaves, causal=True)
    grads = torch.autograd.grad(out, leaves, dout)
    assert "_attention_fwd__flash" in graphs[0]
    assert "_attention_bwd__flash" in graphs[1]
    for found, wanted in zip((out, *grads), results(dout, q, k, v, causal=True), strict=True):
        assert torch.equal(found, wanted)
    # Each call of a compiled graph draws anew.
    dropped = torch.compile(lambda: fuseline.attention(q, k, v, dropout=0.5), backend="aot_eager")
    assert not torch.equal(dropped(), dropped())


def test_an_exported_program_keeps_the_operator() -> None:
    class Block(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return fuseline.attention(q, k, v, causal=True)

    args = problem(6, 5, 8)[:3]
    program = torch.export.export(Block(), args)
    assert "fuseline.attention.default" in str(program.graph)
    torch.testing.assert_close(program.module()(*args), Block()(*args))


def test_a_model_in_torch_fx_is_traced_through() -> None:
    def block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return fuseline.attention(q, k, v, window=2, scale=0.5)

    traced, args = torch.fx.symbolic_trace(block), problem(6, 5, 8)[:3]
    torch.testing.assert_close(traced(*args), block(*args))
