"""fuseline.patch of gated layers: the product is computed again in backward, and not kept."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from ops.test_patching import DEVICES
from ops.test_patching_gates import GATES, Gated, counts
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

import fuseline
from fuseline.core import native

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)
kept = partial(saved_tensors_hooks, lambda t: t, lambda t: t)
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def patched(made: Any = Gated, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Any:
    net = made().to(device, dtype)
    assert fuseline.patch(net).replaced
    return net


def input_of(net: Any, rows: int = 15) -> Tensor:
    like = next(net.parameters())
    return torch.randn(rows, 8, dtype=like.dtype, device=like.device, requires_grad=True)


def gradients(net: Any, x: Tensor, y: Tensor, graph: bool = False) -> tuple[Tensor, ...]:
    leaves = [x, *(p for p in net.parameters() if p.requires_grad)]
    return torch.autograd.grad(y.float().square().sum(), leaves, create_graph=graph)


def held(net: Any, x: Tensor) -> int:
    """Return the bytes that a forward leaves allocated."""
    net(x)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        y = net(x)
    assert y.requires_grad
    return sum(event.self_cpu_memory_usage for event in found.key_averages())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("made", GATES)
def test_gradients_are_the_same_bit_by_bit(made: Any, dtype: torch.dtype, device: str) -> None:
    net = patched(made, dtype, device)
    x = input_of(net)
    found = gradients(net, x, net(x))
    with torch.autocast(device, torch.bfloat16):
        mixed = gradients(net, x, net(x))
    with kept():
        assert all(map(torch.equal, found, gradients(net, x, net(x))))
        with torch.autocast(device, torch.bfloat16):
            assert all(map(torch.equal, mixed, gradients(net, x, net(x))))


@pytest.mark.parametrize("made", GATES)
def test_the_product_is_not_kept(made: Any) -> None:
    net = patched(made)
    x = input_of(net, 1000)
    with kept():
        before = held(net, x)
    assert before - held(net, x) == 1000 * 12 * 4


def test_nothing_is_kept_for_a_layer_that_is_frozen() -> None:
    net = patched()
    net.down.requires_grad_(False)
    x = input_of(net, 1000)
    with kept():
        before = held(net, x)
    assert held(net, x) == before


def test_gradients_of_gradients() -> None:
    net = patched(dtype=torch.float64)
    own = copy.deepcopy(net)
    fuseline.unpatch(own)
    x = input_of(net)
    twice = []
    for one in (net, own):
        first = gradients(one, x, one(x), graph=True)
        twice.append(gradients(one, x, sum(g.square().sum() for g in first)))  # type: ignore[arg-type]
    torch.testing.assert_close(*twice)


def test_backward_twice() -> None:
    net = patched()
    x = input_of(net)
    y = net(x)
    y.sum().backward(retain_graph=True)
    once = net.down.weight.grad.clone()
    y.sum().backward()
    assert torch.equal(net.down.weight.grad, 2 * once)


@pytest.mark.parametrize("what", ["input", "weight"])
def test_what_was_written_to_is_refused(what: str) -> None:
    net = patched()
    factors = []
    net.gate.register_forward_hook(lambda module, args, y: factors.append(y))
    y = net(input_of(net))
    assert counts(net) == (1, {})
    with torch.no_grad():
        (net.down.weight if what == "weight" else factors[0]).mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("reentrant", [True, False])
def test_under_a_checkpoint(reentrant: bool) -> None:
    net = patched()
    x = input_of(net)
    wanted = gradients(net, x, net(x))
    checkpoint(net, x, use_reentrant=reentrant).square().sum().backward()
    found = [x.grad, *(p.grad for p in net.parameters())]
    assert all(map(torch.equal, found, wanted))


def test_under_transforms() -> None:
    net = patched()
    x = input_of(net).detach()
    parameters = dict(net.named_parameters())

    def loss(given: Any, x: Tensor) -> Tensor:
        return torch.func.functional_call(net, given, (x,)).square().sum()  # type: ignore[no-any-return]

    found = torch.func.grad(loss)(parameters, x)
    wanted = torch.autograd.grad(net(x).square().sum(), list(parameters.values()))
    torch.testing.assert_close(tuple(found.values()), wanted)
    rows = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    torch.testing.assert_close(tuple(r.sum(0) for r in rows.values()), wanted)


class Twice(Gated):
    """A layer whose product another step takes, too."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.gate(x)) * self.up(x)
        return self.down(y) + y[..., :8]  # type: ignore[no-any-return]


def test_a_product_that_is_read_twice_is_kept() -> None:
    net = patched(Twice)
    x = input_of(net, 1000)
    with kept():
        before = held(net, x)
    assert held(net, x) == before
