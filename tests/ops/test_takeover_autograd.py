"""What stays torch's own where our kernels stand in: autograd, vmap, autocast, torch.compile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from ops.takeovers import MARKS, calls, gradients
from torch import Tensor

import fuseline
from fuseline.takeover import TAKEOVERS

pytestmark = MARKS
Call = Callable[[Tensor], Tensor]


def layer_norm(x: Tensor) -> Tensor:
    scale = torch.linspace(0.5, 2, x.shape[-1], device=x.device, dtype=x.dtype)
    return F.layer_norm(x, x.shape[-1:], scale, scale - 1)


CASES: list[tuple[str, Call]] = [
    ("_softmax", lambda x: F.softmax(x, -1)),
    ("_log_softmax", lambda x: F.log_softmax(x, -1)),
    ("native_layer_norm", layer_norm),
    ("gelu", lambda x: F.gelu(x, approximate="tanh")),
]
BACKWARD = {"native_layer_norm": "native_layer_norm_backward", "gelu": "gelu_backward"}
ON = [
    pytest.param("cuda", *case, marks=pytest.mark.gpu, id=f"{case[0]}-cuda") for case in CASES[:2]
] + [pytest.param("cpu", *case, id=case[0]) for case in CASES]


@pytest.mark.parametrize(("device", "name", "call"), ON)
def test_graphs_outlive_it_and_differentiate_twice(device: str, name: str, call: Call) -> None:
    x = torch.randn(3, 8, device=device, dtype=torch.float64, requires_grad=True)
    backward = BACKWARD.get(name, f"{name}_backward_data")
    outer = call(x)
    with fuseline.enabled(TAKEOVERS):
        y = call(x)
        before = calls(device, backward)
        gradients(outer, x)
        assert calls(device, backward) == before + 1
        assert torch.autograd.gradcheck(call, (x,))
        assert torch.autograd.gradgradcheck(call, (x,))
        dot = torch.func.jvp(call, (x,), (torch.ones_like(x),))[1]
        many = torch.vmap(call, in_dims=1)(x.detach().unsqueeze(1).expand(3, 2, 8))
    torch.testing.assert_close(many[1], call(x))
    torch.testing.assert_close(dot, torch.func.jvp(call, (x,), (torch.ones_like(x),))[1])
    before = calls(device, backward)
    torch.testing.assert_close(gradients(y, x), gradients(call(x), x))
    assert calls(device, backward) == before


@pytest.mark.parametrize(("device", "name", "call"), ON)
def test_it_is_served_under_autocast_and_given_back(device: str, name: str, call: Call) -> None:
    x = torch.randn(5, 4099, device=device, dtype=torch.bfloat16)
    plain = call(x)
    with torch.autocast(device, torch.bfloat16):
        wanted = call(x)
        before = calls(device, name)
        with fuseline.enabled(TAKEOVERS):
            found = call(x)
        assert calls(device, name) == before + 1
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted)
    assert torch.equal(call(x), plain)
    assert calls(device, name) == before + 1


@pytest.mark.parametrize(("device", "name", "call"), ON)
def test_compiled_code_is_not_changed(device: str, name: str, call: Call) -> None:
    x = torch.randn(3, 8, device=device)
    torch._dynamo.reset()
    with fuseline.enabled(TAKEOVERS):
        compiled = torch.compile(call)
        compiled(x)
        before = calls(device, name)
        torch.testing.assert_close(compiled(x), call(x))
        assert calls(device, name) == before + 1, "the eager call"


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "call"), CASES[:2])
def test_a_captured_graph_replays_on_new_contents(name: str, call: Call) -> None:
    x = torch.randn(64, 1027, device="cuda")
    with fuseline.enabled(TAKEOVERS):
        call(x)
        graph = torch.cuda.CUDAGraph()
        before = calls("cuda", name)
        with torch.cuda.graph(graph):
            y = call(x)
        assert calls("cuda", name) == before + 1
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(y, call(x))
