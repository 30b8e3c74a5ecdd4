"""fuseline.patch of gated layers: which it finds, what it proves and serves, and back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ops.test_patching import DEVICES, FAMILIES, model
from torch import Tensor, nn

import fuseline
from fuseline.core import native

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


class Config:
    mlp_bias = False


class Function(nn.Module):
    """An activation as transformers writes some: an attribute is what it does."""

    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x)


class Gated(nn.Module):
    """A layer as in Llama, which keeps its config and does not read it."""

    def __init__(self, act: nn.Module | None = None) -> None:
        super().__init__()
        self.config = Config()
        self.gate, self.up, self.down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)
        self.act = nn.SiLU() if act is None else act

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


class Flipped(Gated):
    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x) * self.act(self.gate(x)))


class Packed(nn.Module):
    """As in Phi-3."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.down, self.act = nn.Linear(8, 24), nn.Linear(12, 8), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.both(x).chunk(2, dim=-1)
        return self.down(up * self.act(gate))


class Reading(Gated):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if not self.config.mlp_bias else x


class Twice(Gated):
    def forward(self, x: Tensor) -> Tensor:
        gate = self.act(self.gate(x))
        return self.down(gate * self.up(x)) + gate.sum()


class Own(Gated):
    """The gate of its own input, after something that may write to it."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Sequential(nn.Linear(8, 12))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


GATES: list[Any] = [
    *(Gated, Flipped, Packed, partial(Gated, nn.GELU()), partial(Gated, nn.GELU("tanh"))),
    partial(Gated, Function(F.silu)),
    partial(Gated, Function(partial(F.gelu, approximate="tanh"))),
]


def counts(net: nn.Module) -> tuple[int, dict[str, int]]:
    (found,) = fuseline.patch_status(net).modules
    return found.served, found.own


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "gpt2"] + ["phi3"])
def test_families(family: str, device: str) -> None:
    net = model(family, device)
    mlp = net.model.layers[0].mlp
    x = torch.randn(2, 7, 32, device=device, requires_grad=True)
    leaves = [x, *mlp.parameters()]
    wanted = mlp(x)
    dy = torch.randn_like(wanted)
    grads = torch.autograd.grad(wanted, leaves, dy)
    report = fuseline.patch(net)
    found = [kind for name, kind in report.replaced if name.endswith(".mlp")]
    assert len(found) == 2, str(report)
    y = mlp(x)
    torch.testing.assert_close(y, wanted)
    torch.testing.assert_close(torch.autograd.grad(y, leaves, dy), grads)
    served = {m.name: m.served for m in fuseline.patch_status(net).modules}
    assert served["model.layers.0.mlp"] == 1
    again = [name for name, *_ in fuseline.patch(net).kept if name.endswith(".mlp")]
    assert len(again) == 2
    fuseline.unpatch(net)
    assert type(mlp).__name__ == found[0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("made", GATES)
def test_gates(made: Any, dtype: torch.dtype, device: str) -> None:
    net = made().to(device, dtype)
    x = torch.randn(3, 5, 8, device=device, dtype=dtype)
    wide = copy.deepcopy(net).double()
    assert fuseline.patch(net).replaced == (("", type(wide).__name__),)
    y, exact = net(x), wide(x.double())
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), exact, rtol=8 * eps, atol=16 * eps)
    with torch.autocast(device, torch.bfloat16):
        assert net(x).dtype == (torch.float64 if dtype == torch.float64 else torch.bfloat16)
    assert counts(net) == (2, {})


@pytest.mark.parametrize("made", [Reading, Twice, Own, partial(Gated, nn.Linear(12, 12))])
def test_what_has_no_gate_that_is_alone_is_not_touched(made: Any) -> None:
    net = made()
    report = fuseline.patch(net)
    assert not report.replaced, str(report)


@pytest.mark.parametrize("act", [nn.ReLU(), nn.Hardswish(), nn.Dropout(0.5),
                                 Function(lambda x: x * torch.sigmoid(1.702 * x)),
                                 Function(lambda x: F.silu(x).clamp(max=20.0)),
                                 Function(lambda x: F.silu(x) + 1e-4)])  # fmt: skip
def test_another_activation_is_left_alone(act: nn.Module) -> None:
    (kept,) = fuseline.patch(Gated(act)).kept
    assert kept[:2] == ("", "Gated")
    assert "differ" in kept[2] or "rounding" in kept[2], kept


def test_an_activation_that_changes_with_training_is_none() -> None:
    class Train(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.silu(x) if self.training else F.relu(x)

    assert not fuseline.patch(Gated(Train())).replaced


def test_what_a_proof_rests_on_is_watched() -> None:
    net, x = Gated(), torch.randn(3, 8)
    fuseline.patch(net)
    wanted = net(x)
    seen: list[Any] = []
    hook = net.act.register_forward_hook(lambda *given: seen.append(given))
    torch.testing.assert_close(net(x), wanted)
    assert len(seen) == 1
    hook.remove()
    net.act = Function(F.relu)
    with torch.no_grad():
        assert torch.equal(net(x), net.down(F.relu(net.gate(x)) * net.up(x)))
    net.act = nn.SiLU()
    net.up = nn.Sequential(net.up)
    torch.testing.assert_close(net(x), wanted)
    served, own = counts(net)
    assert served == 1
    assert own == {"its SiLU has hooks": 1, "its children were changed after patch": 2}


def test_an_attribute_of_the_activation_is_watched() -> None:
    net, x = Gated(Function(F.silu)), torch.randn(3, 8)
    fuseline.patch(net)
    net.act.act = F.relu
    assert torch.equal(net(x), net.down(F.relu(net.gate(x)) * net.up(x)))
    assert counts(net) == (0, {"its activation was changed after patch": 1})


def test_hooks_of_the_layers_see_their_calls() -> None:
    net, x = Gated(), torch.randn(3, 8)
    fuseline.patch(net)
    seen: list[Any] = []
    for child in (net.gate, net.up, net.down):
        child.register_forward_hook(lambda m, a, y: seen.append(m))
    net(x)
    assert seen == [net.gate, net.up, net.down]
    assert counts(net) == (1, {})


def test_compiled_calls_are_the_modules_own() -> None:
    net, x = Gated(), torch.randn(3, 8)
    wanted = net(x)
    fuseline.patch(net)
    torch.testing.assert_close(torch.compile(net, backend="aot_eager")(x), wanted)
    assert counts(net) == (0, {})
    torch._dynamo.reset()


def test_copies_unpatch_and_implementations() -> None:
    net, x = Gated(), torch.randn(3, 8)
    fuseline.patch(net, impl="cpu")
    other = copy.deepcopy(net)
    torch.testing.assert_close(other(x), net(x))
    assert fuseline.unpatch(other) == 1
    assert type(other) is Gated
    torch.testing.assert_close(other(x), net(x))
    (kept,) = fuseline.patch(other, impl="triton").kept
    assert "no implementation 'triton'" in kept[2]
