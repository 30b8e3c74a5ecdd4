"""fuseline.patch of the layer before a loss: logits that are computed when they are read."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ops.test_patching import DEVICES, FAMILIES, model
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fuseline
from fuseline.core import native
from fuseline.ops.linear_cross_entropy import op
from fuseline.patching.logits import Logits, deferred

CLASSES, ROWS = 64, (2, 300)  # of more rows than linear_cross_entropy takes at once
OWN = [f for f in FAMILIES if f != "gpt2"]  # whose loss transformers knows

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


@pytest.fixture(autouse=True)
def none_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have linear_cross_entropy go by chunks, as with the logits of a real model."""
    monkeypatch.setattr(op, "_FEW", 0)


def batch(device: str = "cpu") -> dict[str, Tensor]:
    ids = torch.randint(1, CLASSES, ROWS, device=device)
    return {
        "input_ids": ids,
        "labels": ids.masked_fill(torch.rand(ids.shape, device=device) < 0.2, -100),
    }


def pair(family: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Return a model in training and a patched copy."""
    own = model(family, device, dtype).train()
    net = copy.deepcopy(own)
    fuseline.patch(net)
    return own, net


def gradients(net: Any, loss: Tensor) -> list[Tensor]:
    net.zero_grad()
    loss.backward()
    return [p.grad for p in net.parameters() if p.grad is not None]


def as_near_to_fp64(own: Any, net: Any, loss: Callable[[Any], Tensor]) -> None:
    """Compare loss and gradients of a patched model with fp64, as those of the model itself."""
    found = []
    for m in (copy.deepcopy(own).double(), own, net):
        made = loss(m)
        found.append([t.double() for t in (made.detach(), *gradients(m, made))])
    exact, *both = found
    theirs, ours = (
        max(float((t - e).norm() / e.norm()) for t, e in zip(one, exact, strict=True))
        for one in both
    )
    assert ours <= 2 * theirs + 1e-5, f"{ours} of fp64's gradients, the model itself {theirs}"


class Sizes(TorchDispatchMode):
    """Notes how many elements the tensors have that operators give."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        sizes = [t.numel() for t in tree_leaves(found) if isinstance(t, Tensor)]
        self.most = max(self.most, *sizes, 0)
        return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", OWN)
def test_families(family: str, dtype: torch.dtype, device: str) -> None:
    (own, net), given = pair(family, device, dtype), batch(device)
    as_near_to_fp64(own, net, lambda m: m(**given).loss)
    calls = {m.name: m.served for m in fuseline.patch_status(net).modules}
    assert (calls["lm_head"], calls["loss_function"]) == (1, 1)


def test_there_are_no_logits() -> None:
    net, labels = pair("llama")[1], batch()["labels"]
    x = torch.randn(*ROWS, 32, requires_grad=True)
    for keep in (False, True):
        with Sizes() as sizes:
            logits = net.lm_head(x)
            logits = logits.read() if keep else logits
            net.loss_function(logits=logits, labels=labels, vocab_size=CLASSES)
        assert (sizes.most >= ROWS[0] * ROWS[1] * CLASSES) is keep


def saved(z: Tensor) -> Tensor:
    buffer = io.BytesIO()
    torch.save(z, buffer)
    buffer.seek(0)
    return torch.load(buffer)


READS: dict[str, Callable[[Tensor], Any]] = {
    "sum": lambda z: z.sum(),
    "a cast": lambda z: z.float().square(),
    "casts": lambda z: z.double().half().float(),
    "the same twice": lambda z: (z * z.exp(), z.softmax(-1)),
    "rows": lambda z: z[:, 1:].reshape(-1, CLASSES),
    "iteration": lambda z: list(z),
    "in place": lambda z: z.masked_fill_(z.detach() < 0, 0.5).square(),
    "an element": lambda z: F.pad(z, (1, 1)).index_fill(0, torch.tensor([1]), 2.0),
    "a view in place": lambda z: (z[:, 1:].mul_(2), z.square())[1],
    "written": lambda z: (z.__setitem__((slice(None), 3), 2.0), z.exp())[1],
    "out": lambda z: torch.add(z.detach(), 1, out=torch.empty(0)),
    "a list": lambda z: torch.tensor(z.tolist()),
    "memory": lambda z: torch.from_numpy(z.detach().float().numpy()),  # it has no bfloat16
    "dlpack": lambda z: torch.from_dlpack(z.detach()),
    "a file": saved,
    "a cast, then in place": lambda z: (z.float(), z.mul_(2))[0],
    "rows in place": lambda z: (z.view(-1, CLASSES).mul_(2), z.square())[1],
    "all rows": lambda z: z.view(600, CLASSES).view(3, 200, -1).exp(),
    "our loss": lambda z: fuseline.cross_entropy(z, torch.arange(600).view(ROWS) % CLASSES),
    "our softmax": lambda z: fuseline.softmax(z, -1),
    "compiled": lambda z: torch.compile(lambda t: t.sin() * 2, backend="aot_eager")(z),
    "words": lambda z: torch.tensor([ord(c) for c in repr(z.detach())]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", READS)
def test_what_reads_them_finds_what_was_there(name: str, dtype: torch.dtype) -> None:
    leaves = [torch.randn(*ROWS, 32), torch.randn(CLASSES, 32), torch.randn(CLASSES)]
    found = []
    for layer in (F.linear, deferred):
        inputs = [t.to(dtype).requires_grad_() for t in leaves]
        made = tree_leaves(READS[name](layer(*inputs)))
        scalars = [t.double().square().sum() for t in made]
        if scalars[0].requires_grad:
            made += torch.autograd.grad(sum(scalars), inputs, allow_unused=True)
        found.append(made)
    assert not any(isinstance(t, Logits) and t.unread for t in found[1])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)
    assert torch.equal(found[0][0], found[1][0])


def test_memory_is_theirs() -> None:
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4)
    z = deferred(x, weight)
    assert z.data_ptr() == z.read().data_ptr() == z.untyped_storage().data_ptr() != 0
    assert (z.shape, z.stride(), z.is_leaf, z.requires_grad) == ((3, 5), (5, 1), False, True)
    for call in (Tensor.numpy, copy.deepcopy):
        for t in (F.linear(x, weight), z):
            with pytest.raises(RuntimeError):
                call(t)


def test_second_derivatives() -> None:
    found = []
    leaves = [torch.randn(3, 4).double(), torch.randn(5, 4).double()]
    for layer in (F.linear, deferred):
        inputs = [t.clone().requires_grad_() for t in leaves]
        first = torch.autograd.grad(layer(*inputs).pow(3).sum(), inputs, create_graph=True)
        found.append(torch.autograd.grad(sum(t.square().sum() for t in first), inputs))
    torch.testing.assert_close(found[0], found[1])


def test_a_loss_beside_ours() -> None:
    (own, net), given = pair("qwen3"), batch()
    found = []
    for m in (own, net):
        out = m(**given)
        found.append(
            gradients(m, out.loss + 0.1 * out.logits.float().logsumexp(-1).square().mean())
        )
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_too_late_is_an_error_that_says_what_to_do() -> None:
    (_, net), given = pair("llama"), batch()
    out = net(**given)
    wanted = out.logits.sum()
    out.loss.backward()
    assert out.logits.sum() == wanted  # read in time
    out = net(**given)
    out.loss.backward()
    with pytest.raises(RuntimeError, match=r"logits: read .* after backward.*keep_logits=True"):
        out.logits.sum()
    out = net(**given)
    with torch.no_grad():
        net.lm_head.weight.add_(1)
    with pytest.raises(RuntimeError, match="after a change of the weight"):
        out.logits.argmax(-1)
    fuseline.patch(net, keep_logits=True)
    out = net(**given)
    out.loss.backward()
    assert type(out.logits) is Tensor
    assert not fuseline.patch(net, keep_logits=True).replaced
    assert fuseline.patch(net).replaced == (("lm_head", "Linear"),)


def test_a_cast_is_no_reading() -> None:
    (own, net), given = pair("llama", dtype=torch.bfloat16), batch()
    out = net(**given)
    wide = out.logits.float()  # as accelerate's convert_outputs_to_fp32
    assert type(wide) is Logits
    assert wide.unread
    wanted = own(**given).logits.float()
    torch.testing.assert_close(wide.read(), wanted, rtol=0.05, atol=0.05)
    assert torch.equal(wide, out.logits.float())


@pytest.mark.parametrize("device", DEVICES)
def test_autocast(device: str) -> None:
    (own, net), given = pair("llama", device), batch(device)

    def loss(m: Any) -> Tensor:
        wide = m.lm_head.weight.dtype == torch.float64
        with torch.autocast(device, torch.bfloat16, enabled=not wide):
            out = m(**given)
        if m is net:
            assert (type(out.logits), out.logits.dtype) == (Logits, torch.bfloat16)
        made: Tensor = out.loss
        return made

    as_near_to_fp64(own, net, loss)


def other_calls() -> dict[str, Callable[[Any], Any]]:
    def hooked(net: Any) -> None:
        net.lm_head.register_forward_hook(lambda *_: None)

    def parametrized(net: Any) -> None:
        nn.utils.parametrizations.weight_norm(net.lm_head)

    def of_two(net: Any) -> None:
        net.lm_head.weight = nn.Parameter(net.lm_head.weight.double())
        net.lm_head.register_forward_pre_hook(lambda _, args: args[0].double())

    return {
        "eval": lambda net: net.eval(),
        "hooked": hooked,
        "parametrized": parametrized,
        "of another dtype": of_two,
        "frozen": lambda net: net.requires_grad_(False),
        "unpatched": fuseline.unpatch,
        "of one implementation": lambda net: fuseline.patch(net, impl="cpu"),
    }


@pytest.mark.parametrize("name", other_calls())
def test_other_calls_have_logits(name: str) -> None:
    (own, net), given = pair("llama"), batch()
    for m in (own, net):
        other_calls()[name](m)
    found, wanted = net(**given), own(**given)
    assert type(found.logits) is Tensor
    torch.testing.assert_close(found.logits, wanted.logits)
    torch.testing.assert_close(found.loss, wanted.loss)


def test_transforms_and_compiled_code_have_logits() -> None:
    (own, net), given = pair("llama"), batch()

    def loss(m: Any) -> Callable[..., Tensor]:
        def call(state: dict[str, Tensor]) -> Tensor:
            made: Tensor = torch.func.functional_call(m, state, (), given).loss
            return made

        return torch.func.grad(call)({n: p.detach() for n, p in m.named_parameters()})

    torch.testing.assert_close(loss(net), loss(own), rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()
    out = torch.compile(net, backend="aot_eager")(**given)
    assert type(out.logits) is Tensor
    torch.testing.assert_close(out.loss, own(**given).loss)


def test_labels_that_the_loss_does_not_take() -> None:
    (own, net), given = pair("llama"), batch()
    given["cu_seq_lens_q"] = None
    torch.testing.assert_close(net(**given).loss, own(**given).loss)
    given["labels"] = given["labels"].int()
    for m in (own, net):
        with pytest.raises(RuntimeError, match="Int"):
            m(**given)


def test_copies_and_files() -> None:
    (_, net), given = pair("llama"), batch()
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(net), torch.load(buffer, weights_only=False)):
        out = other(**given)
        assert type(out.logits) is Logits
        torch.testing.assert_close(out.loss, net(**given).loss)
    assert fuseline.unpatch(net) > 1
    assert type(net.lm_head) is nn.Linear
