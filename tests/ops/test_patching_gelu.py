"""fuseline.patch of activations that spell GELU out, and of GPT-2, which has one."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from ops.test_patching import DEVICES
from torch import Tensor, nn

import fuseline
from fuseline.core import native

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


class Tanh(nn.Module):
    """As transformers' NewGELUActivation."""

    def forward(self, x: Tensor) -> Tensor:
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class Erf(nn.Module):
    def __init__(self, half: float = 0.5) -> None:
        super().__init__()
        self.half = half

    def forward(self, x: Tensor) -> Tensor:
        return x * self.half * (1.0 + torch.erf(x / math.sqrt(2.0)))


class Quick(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Writes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.last = 1
        return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


class Trains(nn.Module):
    """Another function in training."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))
        return 2 * y if self.training else y


class Unlike(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("called")


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)
        self.act = Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


def counts(net: nn.Module) -> tuple[int, int]:
    """Calls that were served, and that the modules' own forward had."""
    modules = fuseline.patch_status(net).modules
    return sum(m.served for m in modules), sum(sum(m.own.values()) for m in modules)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("own", [Tanh, Erf])
def test_a_formula_runs_in_one_kernel_and_gives_the_same(own, dtype, device):
    plain = nn.Sequential(nn.Linear(8, 64), own()).to(device, dtype)
    patched = copy.deepcopy(plain)
    assert fuseline.patch(patched).replaced == (("1", own.__name__),)
    x = torch.randn(5, 8, device=device, dtype=dtype)
    ys = [net(x) for net in (plain, patched)]
    assert type(ys[1].grad_fn).__name__ == "GeluBackward0"
    assert ys[0].dtype == ys[1].dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(ys[1], ys[0], rtol=0, atol=64 * eps)
    dy = torch.randn_like(ys[0])
    gradients = [
        torch.autograd.grad(y, list(net.parameters()), dy)
        for y, net in zip(ys, (plain, patched), strict=True)
    ]
    for ours, theirs in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=256 * eps)
    assert counts(patched) == (1, 0)
    assert fuseline.unpatch(patched) == 1
    assert type(patched[1]) is own


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16])
def test_autocast_gives_the_modules_own_dtype(to, device):
    plain, patched = (nn.Sequential(nn.Linear(8, 64), Tanh()).to(device) for _ in range(2))
    patched.load_state_dict(plain.state_dict())
    fuseline.patch(patched)
    x = torch.randn(5, 8, device=device)
    with torch.autocast(device, dtype=to):
        ours, theirs = patched(x), plain(x)
    assert counts(patched) == (1, 0)
    assert ours.dtype == theirs.dtype  # on a GPU float32, in which pow is computed
    eps = torch.finfo(theirs.dtype).eps
    torch.testing.assert_close(ours, theirs, rtol=0, atol=64 * eps)


@pytest.mark.parametrize(
    "act",
    [
        Quick(),
        Erf(0.5001),
        Writes(),
        Trains(),
        Unlike(),
        nn.GELU(),
        nn.GELU("tanh"),
        nn.ReLU(),
        nn.Tanh(),
    ],
)
def test_others_stay_as_they_are(act):
    net = nn.Sequential(act)
    assert fuseline.patch(net).replaced == ()
    assert net[0] is act


def test_a_proof_draws_no_number_and_calls_no_hook():
    net = nn.Sequential(Tanh(), nn.Dropout(0.5))
    called = []
    net[0].register_forward_hook(lambda *_: called.append(1))
    before = torch.get_rng_state()
    fuseline.patch(net)
    assert torch.equal(torch.get_rng_state(), before)
    assert not called
    net(torch.randn(4, 8))
    assert called == [1]
    assert counts(net) == (1, 0)


def test_the_activation_of_a_gated_layer_is_the_layers():
    net = Gated()
    assert fuseline.patch(net).replaced == (("", "Gated"),)
    assert type(net.act) is Tanh


def test_what_changes_after_patch_is_the_modules_own():
    net = nn.Sequential(Erf())
    fuseline.patch(net)
    net[0].half = 0.25
    x = torch.randn(4, 8)
    torch.testing.assert_close(net(x), Erf(0.25)(x), rtol=0, atol=0)
    assert counts(net) == (0, 1)
    net[0].half = 0.5
    assert net(x).shape == x.shape
    assert counts(net) == (1, 1)


def test_a_subclass_of_tensor_and_another_device_are_the_modules_own():
    net = nn.Sequential(Tanh())
    fuseline.patch(net)
    assert net(nn.Parameter(torch.randn(3))).shape == (3,)
    assert net(torch.randn(3, device="meta")).shape == (3,)
    assert counts(net) == (1, 1)


def test_twice_is_once_and_compiled_code_has_its_own_formula():
    net = nn.Sequential(Tanh())
    assert len(fuseline.patch(net).replaced) == 1
    assert fuseline.patch(net).replaced == ()
    x = torch.randn(4, 8)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), Tanh()(x), rtol=0, atol=0)
    assert counts(net) == (0, 0)


@pytest.mark.parametrize("device", DEVICES)
def test_gpt2_has_its_activations_and_its_loss_served(device):
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(
        "gpt2", n_embd=64, n_layer=2, n_head=4, n_inner=128, vocab_size=512, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    plain = transformers.AutoModelForCausalLM.from_config(config).to(device).train()
    patched = copy.deepcopy(plain)
    kinds = [kind for _, kind in fuseline.patch(patched).replaced]
    assert kinds.count("NewGELUActivation") == 2
    assert kinds.count("ForCausalLMLoss") == 1
    x = torch.randint(0, 512, (2, 16), device=device)
    losses = [net(input_ids=x, labels=x).loss for net in (plain, patched)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=0)
    for loss in losses:
        loss.backward()
    for ours, theirs in zip(patched.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)
