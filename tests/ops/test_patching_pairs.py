"""fuseline.patch on modules that follow one another: Conv2d + BatchNorm2d + ReLU, Linear + GELU."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from ops import pair_models
from ops.pair_models import REFUSED, SERVED, UNCHAINED, BasicBlock, C, Functional, Mlp
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils._python_dispatch import TorchDispatchMode

import fuseline


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads cost more than they give here, and wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Seen(TorchDispatchMode):
    """Notes the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


def randomised(module: nn.Module) -> nn.Module:
    """Return a module whose norms have other parameters and statistics than ones and zeros."""
    for m in module.modules():
        if isinstance(m, nn.BatchNorm2d):
            for t in (m.weight, m.running_var):
                t is None or nn.init.uniform_(t, 0.5, 2.0)
            for t in (m.bias, m.running_mean):
                t is None or nn.init.normal_(t)
    return module


def patched(module: nn.Module, impl: str = "aten") -> tuple[nn.Module, nn.Module]:
    """Return a patched module and a copy that is not."""
    own = copy.deepcopy(randomised(module))
    fuseline.patch(module, impl)
    return module, own


def served(module: nn.Module) -> int:
    return sum(calls.served for calls in fuseline.patch_status(module).modules)


def step(net: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the result, all gradients and the statistics of a training step."""
    x = x.clone().requires_grad_()
    net.zero_grad()
    torch.manual_seed(3)
    y = net(x)
    y.square().mean().backward()
    return [y.detach(), x.grad, *(p.grad for p in net.parameters()), *net.buffers()]


def close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("impl", ["aten", "eager"])
@pytest.mark.parametrize("name", SERVED)
def test_served_models_give_the_same_in_both_modes(name: str, impl: str) -> None:
    make, shape, firsts = SERVED[name]
    net = randomised(make())
    own = copy.deepcopy(net)
    report = fuseline.patch(net, impl)
    assert {where for where, _ in report.replaced} == firsts, str(report)
    for _ in range(2):  # statistics go on from where they are
        x = torch.randn(shape)
        close(step(net, x), step(own, x))
    assert served(net) == 2 * len(firsts), str(fuseline.patch_status(net))
    net.eval(), own.eval()
    with torch.no_grad():
        torch.testing.assert_close(net(x), own(x), rtol=1e-5, atol=1e-5)
    assert served(net) == 3 * len(firsts), str(fuseline.patch_status(net))
    assert fuseline.unpatch(net) > 0
    own.load_state_dict(net.state_dict())
    assert torch.equal(net(x), own(x))


def test_what_is_served_runs_on_our_operators() -> None:
    net, own = patched(Functional().eval())
    x = torch.randn(2, C, 5, 6)
    for module, ours in ((net, True), (own, False)):
        with torch.no_grad(), Seen() as seen:
            module(x)
        assert any("batch_norm" in name for name in seen.names) != ours, seen.names


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: body.__name__)
def test_forwards_that_are_not_what_they_seem_are_left_alone(body: Callable[..., Any]) -> None:
    net = pair_models.Bad(body)
    report = fuseline.patch(net, "aten")
    assert not report.replaced
    assert REFUSED[body] in str(report)


@pytest.mark.parametrize("body", UNCHAINED, ids=lambda body: body.__name__)
def test_a_result_that_is_read_elsewhere_ends_a_chain(body: Callable[..., Any]) -> None:
    net, own = patched(pair_models.Bad(body))
    assert len(fuseline.patch_status(net).modules) == UNCHAINED[body]
    x = torch.randn(2, C, 5, 6)
    for mode in (True, False):
        net.train(mode), own.train(mode)
        torch.testing.assert_close(net(x), own(x), rtol=1e-5, atol=1e-5)


def test_another_activation_is_not_gelu() -> None:
    report = fuseline.patch(Mlp(pair_models.QuickGELU()), "eager")
    assert not report.replaced
    assert "the error of its result" in str(report)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["BasicBlock", "functional", "Mlp"])
def test_other_dtypes_and_memory_formats(name: str, dtype: torch.dtype) -> None:
    make, shape, firsts = SERVED[name]
    net, own = patched(make().to(dtype=dtype, memory_format=torch.channels_last))
    exact, x = copy.deepcopy(own).double(), torch.randn(shape).to(dtype)
    found = [step(m, t)[:2] for m, t in ((net, x), (own, x), (exact, x.double()))]
    assert served(net) == len(firsts), str(fuseline.patch_status(net))
    for ours, theirs, right in zip(*found, strict=True):
        assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
        mean = [(t.double() - right).abs().mean() for t in (ours, theirs)]
        assert mean[0] <= 2 * mean[1] + 8 * torch.finfo(dtype).eps * right.abs().max()


@pytest.mark.parametrize("name", ["Bottleneck", "Net"])
def test_channels_last_is_served_as_contiguous_tensors_are(name: str) -> None:
    make, shape, firsts = SERVED[name]
    net, own = patched(make().to(memory_format=torch.channels_last))
    assert {calls.name for calls in fuseline.patch_status(net).modules} == firsts
    for form in (torch.channels_last, torch.contiguous_format):  # of x
        found = [step(m, torch.randn(shape).to(memory_format=form)) for m in (net, own)]
        assert found[0][0].stride() == found[1][0].stride()
    assert served(net) == 2 * len(firsts), str(fuseline.patch_status(net))


BEFORE: dict[str, Callable[[], nn.Module]] = {
    "a convolution of another kind": lambda: nn.Conv2d(4, C, 3, padding="same"),
    "one in a child": lambda: nn.Sequential(nn.ReLU(), nn.Conv2d(4, C, 1)),
    "a norm before one": lambda: nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, C, 1)),
}


@pytest.mark.parametrize("name", BEFORE)
def test_a_chain_need_not_take_what_its_holder_takes(name: str) -> None:
    class Later(Functional):
        def __init__(self) -> None:
            super().__init__()
            self.before = BEFORE[name]()

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.before(x)) * 2

    net, own = patched(Later())
    x = torch.randn(2, 4, 5, 6)
    close(step(net, x), step(own, x))
    assert served(net) == 1, str(fuseline.patch_status(net))


UNFIT: dict[str, Callable[[], nn.Module]] = {
    "its padding_mode is 'reflect'": lambda: nn.Conv2d(C, 5, 3, padding=1, padding_mode="reflect"),
    "its padding is 'same'": lambda: nn.Conv2d(C, 5, 3, padding="same"),
    "its weight is empty": lambda: nn.Conv2d(C, 0, 3),
    "not a parameter of its own": lambda: prune.l1_unstructured(nn.Conv2d(C, 5, 3), "weight", 0.5),
    "expected one of: float64": lambda: nn.Conv2d(C, 5, 3).to(torch.complex64),
    "got meta": lambda: nn.Conv2d(C, 5, 3, device="meta"),
}


@pytest.mark.filterwarnings(
    "ignore:Complex modules", "ignore:Casting complex", "ignore:Initializing zero-element"
)
@pytest.mark.parametrize("why", UNFIT)
def test_convolutions_that_our_operator_does_not_take(why: str) -> None:
    conv = UNFIT[why]()
    report = fuseline.patch(nn.Sequential(conv, nn.BatchNorm2d(conv.out_channels)), "aten")
    assert not report.replaced
    assert why in str(report)


def test_hooks_on_inner_modules_see_what_they_saw() -> None:
    net, own = patched(BasicBlock().eval())
    x, seen = torch.randn(2, C, 5, 6), []
    handles = [m.bn1.register_forward_hook(lambda *args: seen.append(args[2])) for m in (net, own)]
    with torch.no_grad():
        net(x), own(x)
        assert torch.equal(*seen)
        assert "its BatchNorm2d has hooks" in str(fuseline.patch_status(net))
        assert served(net) == 1  # conv2 and bn2
        handles[0].remove()
        net(x)
    assert served(net) == 3


CHANGES: dict[str, Callable[[Any], Any]] = {
    "eps": lambda m: setattr(m.bn1, "eps", 0.5),
    "momentum": lambda m: setattr(m.bn1, "momentum", 0.9),
    "dilation": lambda m: vars(m.conv1).update(dilation=(2, 2), padding=(2, 2)),
    "norm": lambda m: setattr(m, "bn1", nn.Identity()),
    "activation": lambda m: setattr(m, "relu", nn.Tanh()),
    "weight": lambda m: setattr(m.bn1, "weight", None),
    "own forward": lambda m: setattr(m.conv1, "forward", lambda x: 2 * x),
    "holder's forward": lambda m: setattr(m, "stride", 7),
    "parametrization": lambda m: nn.utils.parametrizations.weight_norm(m.conv1),
    "hidden norm": lambda m: setattr(m, "bn3", nn.BatchNorm2d(3)),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("training", [True, False])
def test_a_change_after_patch_is_seen(name: str, training: bool) -> None:
    net, own = patched(BasicBlock())
    CHANGES[name](net)
    CHANGES[name](own)
    own.load_state_dict(net.state_dict())
    x = torch.randn(2, C, 5, 6)
    net.train(training), own.train(training)
    torch.testing.assert_close(net(x), own(x), rtol=1e-5, atol=1e-5)
    calls = fuseline.patch_status(net).modules
    assert any("after patch" in why or "replaced" in why for c in calls for why in c.own), calls


def test_a_class_changed_after_patch_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    net, own = patched(Functional().eval())
    monkeypatch.setattr(nn.Conv2d, "forward", lambda self, x: x[:, :5] * 3)
    x = torch.randn(2, C, 5, 6)
    assert torch.equal(net(x), own(x))


def unpickled(module: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(module))  # noqa: S301  it is ours


@pytest.mark.parametrize("again", [copy.deepcopy, unpickled])
def test_copies_are_served_and_names_stay(again: Callable[[Any], Any]) -> None:
    net, own = patched(BasicBlock(8, 2))
    made, x = again(net), torch.randn(2, C, 5, 6)
    close(step(made, x), step(own, x))
    assert served(made) == 3
    assert served(net) == 0
    assert isinstance(made, BasicBlock)
    assert list(net.state_dict()) == list(own.state_dict()) == list(made.state_dict())
    assert "already" in str(fuseline.patch(net, "aten"))
    assert fuseline.unpatch(made) == 2
    assert type(made) is BasicBlock


@pytest.mark.parametrize("training", [True, False])
def test_autocast_and_norms_that_are_frozen(training: bool) -> None:
    net, own = patched(BasicBlock().train(training))
    net.bn1.eval(), own.bn1.eval()
    x = torch.randn(2, C, 5, 6)
    close(step(net, x), step(own, x))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        ours, theirs = net(x), own(x)
    assert ours.dtype is theirs.dtype
    exact = copy.deepcopy(own).double()(x.double())
    error = [(y.double() - exact).abs().max() for y in (ours, theirs)]
    assert error[0] <= 2 * error[1]


def test_other_kinds_of_x_go_to_the_own_forward() -> None:
    class Sub(Tensor):
        pass

    net, own = patched(Functional().eval())
    for x in (
        torch.randn(0, C, 5, 6),
        torch.randn(2, C, 5, 6).as_subclass(Sub),
    ):
        torch.testing.assert_close(net(x), own(x))
    with pytest.raises(RuntimeError, match="channels"):
        net(torch.randn(2, C + 1, 5, 6))
    net.double(), own.double()
    x = torch.randn(2, C, 5, 6, dtype=torch.float64)
    assert torch.equal(net(x), own(x))
    assert served(net) == 0
    assert sum(sum(c.own.values()) for c in fuseline.patch_status(net).modules) == 4


def test_auto_on_a_cpu_leaves_to_torch_what_is_as_fast_there() -> None:
    report = fuseline.patch(nn.Sequential(Functional(), Mlp()))
    assert [kind for _, kind in report.replaced] == ["Linear + GELU"]
    assert "Conv2d + BatchNorm2d + relu: 0.conv: torch's own are as fast on a cpu" in str(report)
    net = nn.Sequential(nn.Linear(512, 512), nn.GELU("tanh"))
    fuseline.patch(net)
    with torch.no_grad():
        net(torch.randn(256, 512)), net(torch.randn(3, 512))
    net(torch.randn(256, 512)), net(torch.randn(256, 512, requires_grad=True))
    (calls,) = fuseline.patch_status(net).modules
    assert calls.served == 1
    assert sorted(calls.own.values()) == [1, 2]


def test_compiled_models_and_blocks_at_two_sites() -> None:
    block = BasicBlock().eval()
    net, own = patched(nn.Sequential(block, block))
    x = torch.randn(2, C, 5, 6)
    torch.testing.assert_close(net(x), own(x), rtol=1e-5, atol=1e-5)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), own(x), rtol=1e-5, atol=1e-5)


def test_torchvision_resnet() -> None:
    models = pytest.importorskip("torchvision").models
    net, own = patched(models.resnet50(num_classes=10))
    assert len(fuseline.patch_status(net).modules) == 53
    net.eval(), own.eval()
    with torch.no_grad():
        x = torch.randn(1, 3, 64, 64)
        torch.testing.assert_close(net(x), own(x), rtol=1e-4, atol=1e-4)
    assert served(net) == 53


def test_transformers_bert() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    net = transformers.BertModel(transformers.BertConfig(num_hidden_layers=2, **sizes)).eval()
    own, ids = copy.deepcopy(net), torch.randint(1, 99, (2, 7))
    report = fuseline.patch(net, "eager")
    assert [kind for _, kind in report.replaced].count("Linear + GELUActivation") == 2
    torch.testing.assert_close(net(ids)[0], own(ids)[0])
