"""fuseline.patch: what it finds in models, what it proves, what it leaves alone, and back."""

from __future__ import annotations

import copy
import io
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._python_dispatch import TorchDispatchMode

import fuseline
from fuseline.core import native
from fuseline.patching import Patched

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
TINY = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
}  # fmt: skip
# Family: class of its norms, and how many of them two layers have.
FAMILIES = {
    "llama": ("LlamaRMSNorm", 5),
    "mistral": ("MistralRMSNorm", 5),
    "qwen2": ("Qwen2RMSNorm", 5),
    "qwen3": ("Qwen3RMSNorm", 9),
    "gemma": ("GemmaRMSNorm", 5),
    "gemma2": ("Gemma2RMSNorm", 9),
    "gemma3_text": ("Gemma3RMSNorm", 13),
    "gpt2": ("LayerNorm", 5),
}

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


def model(family: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(family, **TINY)
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "norm" in name or "ln_" in name:  # ones and zeros say nothing of their use
                weight.copy_(torch.rand_like(weight) + 0.5)
    return made.to(device, dtype).eval()


def impl_on(device: str) -> str:
    """Return what serves a layer norm there: on a CPU "auto" leaves its calls to torch."""
    return "cpu" if device == "cpu" else "auto"


def tokens(device: str) -> Tensor:
    return torch.randint(1, TINY["vocab_size"], (2, 7), device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", FAMILIES)
def test_families_forward_backward_generate(family: str, device: str) -> None:
    net, ids = model(family, device), tokens(device)

    def everything() -> tuple[Tensor, dict[str, Tensor], Tensor]:
        net.zero_grad()
        logits = net(ids).logits
        logits.square().mean().backward()
        grads = {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}
        words = net.generate(ids, max_new_tokens=5, do_sample=False, use_cache=True)
        return logits.detach(), grads, words

    before, state = everything(), {n: t.clone() for n, t in net.state_dict().items()}
    report = fuseline.patch(net, impl_on(device))
    own, count = FAMILIES[family]
    gated = {own.replace("RMSNorm", "MLP"): 2, own.replace("RMSNorm", "Attention"): 2}
    others = {"NewGELUActivation": 2} if family == "gpt2" else gated
    others["ForCausalLMLoss"] = 1
    if impl_on(device) == "auto":  # linear_cross_entropy has no "cpu"
        others["Linear"] = 1
    found = Counter(name for _, name in report.replaced)
    assert found == {own: count} | others, str(report)
    assert not report.kept, str(report)
    modules = sum(many for name, many in found.items() if "Loss" not in name)
    assert sum(isinstance(m, Patched) for m in net.modules()) == modules
    after = everything()
    torch.testing.assert_close(after[0], before[0], rtol=1e-4, atol=1e-5)
    assert after[1].keys() == before[1].keys()
    for name, grad in after[1].items():
        torch.testing.assert_close(grad, before[1][name], rtol=1e-3, atol=1e-6)
    assert torch.equal(after[2], before[2])
    assert net.state_dict().keys() == state.keys()
    assert all(torch.equal(t, state[n]) for n, t in net.state_dict().items())
    assert fuseline.unpatch(net) == len(report.replaced)
    assert torch.equal(net(ids).logits, before[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_compiles_without_a_new_graph_break(family: str, device: str) -> None:
    net, ids = model(family, device), tokens(device)
    before = torch._dynamo.explain(net)(ids)
    fuseline.patch(net)
    torch._dynamo.reset()
    after = torch._dynamo.explain(net)(ids)
    assert after.graph_break_count <= before.graph_break_count
    operators = {str(n.target) for g in after.graphs for n in g.graph.nodes}
    assert not any("fuseline" in name for name in operators), operators
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes_of_a_whole_model(dtype: torch.dtype) -> None:
    for family in ("llama", "gemma"):
        net, ids = model(family, dtype=dtype), tokens("cpu")
        before = net(ids).logits
        # Norms, gates, attention, the loss and what makes its logits.
        assert len(fuseline.patch(net).replaced) == 5 + 2 + 2 + 1 + 1
        eps = torch.finfo(dtype if dtype != torch.float64 else torch.float32).eps
        torch.testing.assert_close(net(ids).logits, before, rtol=16 * eps, atol=16 * eps)


class Seen(TorchDispatchMode):
    """The operators that a call runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_the_offset_of_gemma_is_added_in_the_kernel() -> None:
    net, x = model("gemma").model.norm, torch.randn(3, 32)
    fuseline.patch(net)
    with torch.no_grad(), Seen() as seen:
        net(x)
    assert set(seen.names) - {"aten::alias", "aten::view"} == {"fuseline::rms_norm"}


def test_what_is_mixed_goes_to_the_module_itself() -> None:
    net = model("llama").model.norm
    x = torch.randn(3, 32, dtype=torch.bfloat16)
    wanted = net(x)
    assert wanted.dtype == torch.float32, "Llama's own promotion"
    fuseline.patch(net)
    assert torch.equal(net(x), wanted)
    assert torch.equal(net(hidden_states=x.float()), type(net).__mro__[2].forward(net, x.float()))


class Half(torch.nn.Module):
    """Half of the norm, which no rounding explains."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(8)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * torch.nn.functional.rms_norm(x, (8,), self.weight, self.eps)


class IgnoresWeight(Half):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(x, (8,), None, self.eps)


class IgnoresEps(Half):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(x, (8,), self.weight, 1e-8)


class Detached(Half):
    def forward(self, x: Tensor) -> Tensor:
        h = x * torch.rsqrt(x.square().mean(-1, True) + self.eps).detach()
        return h * self.weight


class Gated(Half):
    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(x * gate, (8,), self.weight, self.eps)


class Flagged(torch.nn.Module):
    """The norm, in whose class `bias` says that there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps, self.bias = torch.nn.Parameter(torch.ones(8)), 1e-6, False

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(x, (8,), self.weight, self.eps)


def test_a_bias_that_is_a_flag() -> None:
    norm, x = Flagged(), torch.randn(3, 8)
    wanted = norm(x)
    assert len(fuseline.patch(norm).replaced) == 1
    torch.testing.assert_close(norm(x), wanted)


class Unbiased(torch.nn.Module):
    """A layer norm by the variance of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(8)), 1e-6
        self.bias = torch.nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        h = (x - x.mean(-1, True)) * torch.rsqrt(x.var(-1, keepdim=True) + self.eps)
        return h * self.weight + self.bias


class NoMean(Unbiased):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(x, (8,), self.weight, self.eps) + self.bias


class BiasOfTheWeight(Unbiased):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, (8,), self.weight, self.weight, self.eps)


def with_forward_of_its_own() -> Module:
    norm = torch.nn.RMSNorm(8)
    norm.forward = lambda x: x  # type: ignore[method-assign]
    return norm


@pytest.mark.parametrize(
    ("norm", "why"),
    [
        (Half(), "differ"),
        (IgnoresWeight(), "differ"),
        (IgnoresEps(), "differ"),
        (Detached(), "differ"),
        (Gated(), "raises TypeError"),
        (with_forward_of_its_own(), "on the instance"),
        (Unbiased(), "differ"),
        (NoMean(), "differ"),
        (BiasOfTheWeight(), "differ"),
        (torch.nn.GroupNorm(2, 8), "differ"),
        (torch.nn.LayerNorm(8, device="meta"), "meta"),
        (torch.nn.BatchNorm1d(8), "buffers"),
        (torch.nn.RMSNorm(8, device="meta"), "meta"),
        (torch.nn.RMSNorm(8).to(torch.complex64), "complex64"),
        (fuseline.nn.RMSNorm(8), "already"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Module) else None,
)
def test_what_is_not_the_norm_is_left_alone_and_named(norm: Module, why: str) -> None:
    own = type(norm)
    report = fuseline.patch(torch.nn.Sequential(norm))
    assert type(norm) is own
    assert not report.replaced
    ((name, kind, reason),) = report.kept
    assert (name, kind) == ("0", own.__name__)
    assert why in reason
    assert reason in str(report)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "norm",
    [
        torch.nn.RMSNorm(8),
        torch.nn.RMSNorm((3, 8), eps=1e-3),
        torch.nn.RMSNorm(8, elementwise_affine=False),
        torch.nn.RMSNorm(8, dtype=torch.bfloat16),
        torch.nn.RMSNorm(8, dtype=torch.float64),
        torch.nn.LayerNorm(8),
        torch.nn.LayerNorm((3, 8), eps=1e-3),
        torch.nn.LayerNorm(8, bias=False),
        torch.nn.LayerNorm(8, elementwise_affine=False),
        torch.nn.LayerNorm(8, dtype=torch.bfloat16),
        torch.nn.LayerNorm(8, dtype=torch.float64),
    ],
    ids=str,
)
def test_torchs_own_module(norm: Any, device: str) -> None:
    norm = copy.deepcopy(norm).to(device)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.uniform_(0.5, 1.5)
    dtype = torch.float32 if norm.weight is None else norm.weight.dtype
    x = torch.randn(2, 3, 8, device=device, dtype=dtype)
    wanted = norm(x)
    assert len(fuseline.patch(norm, impl_on(device)).replaced) == 1
    eps = torch.finfo(dtype).eps
    cancels = isinstance(norm, torch.nn.LayerNorm)  # a mean, then perhaps a bias
    torch.testing.assert_close(norm(x), wanted, rtol=4 * eps, atol=8 * eps if cancels else eps)
    assert fuseline.patch_status(norm).modules[0].served == 1
    with pytest.raises(RuntimeError, match="expected input with shape"):
        norm(x[..., :7])
    ((why, times),) = fuseline.patch_status(norm).modules[0].own.items()
    assert (why, times) == ("x of another shape than was proven", 1)


def test_auto_leaves_the_calls_of_a_layer_norm_on_a_cpu_to_torch() -> None:
    norm, x = torch.nn.LayerNorm(8), torch.randn(3, 8)
    wanted = norm(x)
    why = "torch's layer norm is faster on a cpu; impl='cpu' takes ours"
    report = fuseline.patch(norm)
    assert report.replaced == (("", "LayerNorm"),)
    assert report.partly == (("", "LayerNorm", why),)
    assert torch.equal(norm(x), wanted)
    (calls,) = fuseline.patch_status(norm).modules
    assert (calls.served, calls.own) == (0, {why: 1})
    report = fuseline.patch(norm, impl="cpu")
    assert len(report.replaced) == 1, str(report)
    assert not report.partly
    torch.testing.assert_close(norm(x), wanted)
    (calls,) = fuseline.patch_status(norm).modules
    assert (calls.served, calls.own) == (1, {})
    assert fuseline.unpatch(norm) == 1
    assert type(norm) is torch.nn.LayerNorm


def test_copies_pickles_hooks_and_moves_survive() -> None:
    norm = torch.nn.Sequential(torch.nn.RMSNorm(8, eps=1e-6))
    seen: list[Any] = []
    norm[0].register_forward_hook(lambda *_: seen.append(1))
    fuseline.patch(norm)
    assert isinstance(norm[0], torch.nn.RMSNorm)
    assert type(norm[0]).__name__ == "FuselineRMSNorm"
    x = torch.randn(2, 8)
    y = norm(x)
    assert seen == [1]
    assert torch.equal(copy.deepcopy(norm)(x), y)
    norm[0]._forward_hooks.clear()
    file = io.BytesIO()
    torch.save(norm, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert isinstance(loaded[0], Patched)
    assert torch.equal(loaded(x), y)
    assert norm.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16
    assert str(fuseline.patch(norm)).endswith("RMSNorm: 0: it runs on fuseline already")


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(TypeError, match=r"model: got a list, expected a torch\.nn\.Module"):
        fuseline.patch([torch.nn.RMSNorm(8)])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="impl is 'fast', expected one of"):
        fuseline.patch(torch.nn.RMSNorm(8), impl="fast")
    (kept,) = fuseline.patch(torch.nn.RMSNorm(8), impl="cuda").kept
    assert "it needs x on cuda" in kept[2]
