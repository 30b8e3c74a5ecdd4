"""A layer of self-attention on a CPU: torch's module, and what its parts promise together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops.budgets import keeps_the_budget
from torch import Tensor

import fuseline
from fuseline import table

SPEC = table.load()["multihead_attention"]
IMPLS = ("auto", "flash", "math", "eager")


def layer(dtype: torch.dtype = torch.float32, *, batch: int = 2, rows: int = 19) -> list[Tensor]:
    """Return x, w_qkv, b_qkv, w_out and b_out of 4 heads of 8."""
    shapes = ((batch, rows, 24), (24, 96), (96,), (32, 12), (12,))
    return [(torch.randn(shape) * (0.3 if i else 1.0)).to(dtype) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("impl", IMPLS)
def test_it_is_torchs_module(impl: str) -> None:
    module = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    x = torch.randn(3, 17, 32, requires_grad=True)
    mask = torch.rand(17, 17) > 0.3
    mask[:, 0] = True
    torch.nn.init.normal_(module.in_proj_bias)
    wanted, _ = module(x, x, x, attn_mask=~mask, need_weights=False)
    weights = (module.in_proj_weight.mT, module.in_proj_bias)
    out = (module.out_proj.weight.mT, module.out_proj.bias)
    found = fuseline.multihead_attention(x, *weights, *out, 4, mask=mask, impl=impl)
    torch.testing.assert_close(found, wanted)
    leaves, dy = [x, *module.parameters()], torch.randn_like(wanted)
    grads = [torch.autograd.grad(y, leaves, dy, retain_graph=True) for y in (found, wanted)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("how", [{"causal": True}, {"window": 5, "kv_heads": 1}, {"scale": 0.7},
                                 {"mask": torch.randn(19, 19)}])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_how(dtype: torch.dtype, how: dict[str, Any]) -> None:
    x, w_qkv, b_qkv, w_out, b_out = layer(dtype)
    kept = 8 * (4 + 2 * how.get("kv_heads", 4))
    given = dict(zip(("x", "w_qkv", "b_qkv", "w_out", "b_out"),
                     (x, w_qkv[:, :kept], b_qkv[:kept], w_out, b_out), strict=True))  # fmt: skip
    how = {n: v.to(dtype) if isinstance(v, Tensor) else v for n, v in how.items()}
    if "window" in how:
        how["window"] = (how["window"] - 1,) * 2
    keeps_the_budget(SPEC, "auto", {**given, "heads": 4, **how})


def test_without_biases() -> None:
    x, w_qkv, b_qkv, w_out, b_out = layer()
    found = fuseline.multihead_attention(x, w_qkv, None, w_out, None, 4)
    zeros = (torch.zeros_like(b_qkv), torch.zeros_like(b_out))
    wanted = fuseline.multihead_attention(x, w_qkv, zeros[0], w_out, zeros[1], 4)
    torch.testing.assert_close(found, wanted)


def test_nothing_runs_before_what_is_refused() -> None:
    x, *weights = layer()
    launched: list[str] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            launched.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch(), pytest.raises(ValueError, match=r"mask has shape \(3, 3\)"):
        fuseline.multihead_attention(x, *weights, 4, mask=torch.ones(3, 3) > 0)
    assert not any("mm" in name or "fuseline" in name for name in launched), launched
    with pytest.raises(ValueError, match="multihead_attention: window is 0"):
        fuseline.multihead_attention(x, *weights, 4, window=0)


def test_what_serves_it_is_what_serves_its_attention() -> None:
    x, *weights = layer()
    told = fuseline.explain_choice(fuseline.multihead_attention, x, *weights, 4)
    assert (told.op, told.fwd.impl) == ("attention", "flash")
    told = fuseline.explain_choice(fuseline.multihead_attention, x, *weights, 4, window=3)
    assert told.fwd.impl == "math"


def test_a_seed_drops_the_same_and_none_draws() -> None:
    x, *weights = layer()

    def drawn(**seed: int) -> Tensor:
        return fuseline.multihead_attention(x, *weights, 4, dropout=0.4, **seed)

    assert torch.equal(drawn(seed=3), drawn(seed=3))
    assert not torch.equal(drawn(), drawn())
    state = torch.get_rng_state()
    first = drawn()
    torch.set_rng_state(state)
    assert torch.equal(first, drawn())


def test_compiled_under_autocast_and_vmap() -> None:
    x, *weights = layer()

    def step(x: Tensor) -> Tensor:
        return fuseline.multihead_attention(x, *weights, 4, causal=True)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), step(x))
    with torch.autocast("cpu", torch.bfloat16):
        half = step(x)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), step(x), atol=0.1, rtol=0.1)
    many = torch.stack([x, -x])
    torch.testing.assert_close(torch.vmap(step)(many), torch.stack([step(x), step(-x)]))


def test_a_bias_of_keys_costs_long_sequences_no_digits() -> None:
    """A softmax does not see it; kernels would multiply the rounding of out by it."""
    heads, rows, columns = 2, 600, 32
    x, dy = (torch.randn(1, rows, columns) for _ in range(2))
    w_qkv, w_out = (torch.randn(columns, n) * columns**-0.5 for n in (3 * columns, columns))
    b_qkv, b_out = torch.randn(3 * columns), torch.randn(columns)
    keys = slice(columns, 2 * columns)
    b_qkv[keys] *= 16
    given = [t.bfloat16() for t in (x, w_qkv, b_qkv, w_out, b_out)]

    def gradients(fn: Any, dtype: torch.dtype, **how: Any) -> tuple[Tensor, ...]:
        leaves = [t.detach().to(dtype).requires_grad_() for t in given]
        return torch.autograd.grad(fn(*leaves, heads, **how), leaves, dy.bfloat16().to(dtype))

    exact = gradients(SPEC.reference, torch.float64)
    for impl in ("flash", "math"):
        found = gradients(fuseline.multihead_attention, torch.bfloat16, impl=impl)
        assert not found[2][keys].any()
        for f, e in zip(found, exact, strict=True):
            assert (f.double() - e).abs().max() <= 8 * 2.0**-8 * e.abs().max()
    given[2][columns] = float("nan")
    y = fuseline.multihead_attention(*given, heads)
    assert y.isnan().all()
