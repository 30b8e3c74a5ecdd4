"""fuseline.patch of the rotary embedding in attention: what it proves, serves and leaves alone."""

from __future__ import annotations

import copy
import functools
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fuseline
from fuseline.core import native
from fuseline.patching.rotary import FUNCTION, prove

HEADS, D = 3, 16
SCALE = 1.0

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


def rotate_half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def apply_rotary_pos_emb(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """The rotation as transformers' Llama writes it."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def neighbours(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    """As Cohere's."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)

    def turned(x: Tensor) -> Tensor:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)

    return q * cos + turned(q) * sin, k * cos + turned(k) * sin


def contiguous(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    q, k = neighbours(q, k, cos, sin, unsqueeze_dim)
    return q.contiguous(), k.contiguous()


def without_signs(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + rotate_half(q).abs() * sin, k * cos + rotate_half(k).abs() * sin


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(8, HEADS * D), nn.Linear(8, D)

    def forward(self, x: Tensor, position_embeddings: Any = None, *, dim: int = 1) -> Tensor:
        q, k = (p(x).unflatten(-1, (-1, D)).transpose(1, 2) for p in (self.q_proj, self.k_proj))
        cos, sin = position_embeddings
        q, k = apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=dim)
        return SCALE * (q @ k.mT)


def tables(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Halves differ, as those of no model do."""
    return torch.randn(2, 5, D).to(dtype), torch.randn(2, 5, D).to(dtype)


def status(net: nn.Module) -> tuple[int, dict[str, int]]:
    (found,) = fuseline.patch_status(net).modules
    return found.served, found.own


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_forward_and_gradients_are_the_modules(dtype: torch.dtype) -> None:
    net, x, by = Attention().to(dtype), torch.randn(2, 5, 8, dtype=dtype), tables(dtype)
    exact = copy.deepcopy(net).double()
    report = fuseline.patch(net)
    assert report.replaced == (("", "Attention"),), str(report)
    wide = [t.double() for t in by]
    dy = torch.randn(2, HEADS, 5, 5)
    results = []
    for model, given, at in ((net, x, by), (exact, x.double(), wide)):
        y = model(given, position_embeddings=at)
        results.append((y, *torch.autograd.grad(y, [*model.parameters()], dy.to(y.dtype))))
    for got, wanted in zip(*results, strict=True):
        eps = 64 * torch.finfo(dtype).eps
        torch.testing.assert_close(
            got.double(), wanted, rtol=eps, atol=eps * float(wanted.detach().std())
        )
    assert status(net) == (1, {})
    assert fuseline.unpatch(net) == 1
    assert type(net) is Attention


@pytest.mark.parametrize(
    ("function", "form"), [(apply_rotary_pos_emb, "halves"), (neighbours, "neighbours")]
)
def test_forms_that_are_proven(function: Any, form: str) -> None:
    found, cells = prove(function, "auto", torch.device("cpu"))
    assert found == form
    assert cells == {(t, t) for t in (torch.float32, torch.bfloat16, torch.float16)}


def test_another_function_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(function: Any) -> str:
        monkeypatch.setitem(globals(), FUNCTION, function)
        report = fuseline.patch(Attention())
        ((name, kind, why),) = report.kept
        assert (report.replaced, name, kind) == ((), "", "Attention")
        return why

    assert "times what rounding explains" in reason(without_signs)
    assert "lie in memory" in reason(contiguous)
    assert "a partial, on whose state" in reason(functools.partial(apply_rotary_pos_emb))
    assert "takes x, cos" in reason(_of_one)
    assert "raises ValueError on a probe" in reason(_raising)


def _of_one(x: Tensor, cos: Tensor) -> Tensor:
    return x * cos


def _raising(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> tuple[Tensor, Tensor]:
    raise ValueError("no")


def test_what_changes_after_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, by = Attention(), torch.randn(2, 5, 8), tables()
    before = net(x, by)
    fuseline.patch(net)
    monkeypatch.setitem(globals(), "SCALE", 2.0)  # other globals are read as they are
    torch.testing.assert_close(net(x, by), 2 * before)
    assert status(net) == (1, {})
    monkeypatch.setitem(globals(), FUNCTION, without_signs)
    assert not torch.allclose(net(x, by), 2 * before)
    assert status(net)[1] == {f"{FUNCTION} was replaced after patch": 1}
    monkeypatch.undo()
    monkeypatch.setattr(Attention, "forward", lambda self, x, by: x)
    assert net(x, by) is x


def test_calls_that_were_not_proven_are_the_functions_own() -> None:
    net, x = Attention(), torch.randn(2, 5, 8)
    fuseline.patch(net)
    exact = Attention()
    exact.load_state_dict(net.state_dict())
    for dtype, dim in ((torch.float64, 1), (torch.bfloat16, 1), (torch.float32, -3)):
        by = tables(dtype)
        assert torch.equal(net(x, by, dim=dim), exact(x, by, dim=dim))
    by = tables()  # of two, where there is one row of heads
    assert torch.equal(net(x[:1], by), exact(x[:1], by))
    served, own = status(net)
    assert (served, list(own.values())) == (0, [1, 1, 1, 1]), own


def test_compiled_calls_are_the_modules_own() -> None:
    net, x, by = Attention(), torch.randn(2, 5, 8), tables()
    before = net(x, by)
    fuseline.patch(net)
    run: Callable[..., Tensor] = torch.compile(net, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(run(x, by), before)
    assert status(net) == (0, {})


def test_copies_count_for_themselves() -> None:
    net, x, by = Attention(), torch.randn(2, 5, 8), tables()
    fuseline.patch(net)
    assert [why for *_, why in fuseline.patch(net).kept] == ["it runs on fuseline already"]
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    for other in (copy.deepcopy(net), torch.load(file, weights_only=False)):
        torch.testing.assert_close(other(x, by), net(x, by))
        assert status(other) == (1, {})
    assert status(net) == (2, {})


def test_a_decorated_forward_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def decorated(forward: Any) -> Any:
        return functools.wraps(forward)(lambda *args, **kwargs: forward(*args, **kwargs))

    monkeypatch.setattr(Attention, "forward", decorated(Attention.forward))
    assert "wrapped in a decorator" in str(fuseline.patch(Attention()))
