"""fuseline.patch of a language model's loss: what it proves, serves and leaves alone, and back."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from ops.test_patching import DEVICES, FAMILIES, model, tokens
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fuseline
from fuseline.core import native

CLASSES = 48
PLACE = "loss_function"

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


def next_token_loss(
    logits: Tensor,
    labels: Any,
    vocab_size: int,
    num_items_in_batch: Any = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """The loss of a causal language model as transformers writes it."""
    logits = logits.float()
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:].contiguous()
    reduction = "mean" if num_items_in_batch is None else "sum"
    rows, target = logits.view(-1, vocab_size), shift_labels.view(-1)
    loss = F.cross_entropy(rows, target, ignore_index=ignore_index, reduction=reduction)
    return loss if num_items_in_batch is None else loss / num_items_in_batch


def masked_loss(logits: Tensor, labels: Any, vocab_size: int, num_items_in_batch: Any = None,
                ignore_index: int = -100, **kwargs: Any) -> Tensor:  # fmt: skip
    """The loss of a masked language model as transformers writes it."""
    return next_token_loss(logits, None, vocab_size, num_items_in_batch, ignore_index, labels)


class Head(nn.Module):
    """A model whose loss function is kept as transformers keeps it."""

    def __init__(self, own: Callable[..., Tensor] = next_token_loss, kind: Any = "head") -> None:
        super().__init__()
        self.loss_type, self.default = kind, own
        self.lm_head = nn.Linear(12, CLASSES, bias=False)

    @property
    def loss_function(self) -> Any:
        return vars(self).get("_loss_function", self.default)

    @loss_function.setter
    def loss_function(self, value: Any) -> None:
        self._loss_function = value

    def forward(self, x: Tensor, labels: Tensor, **how: Any) -> Tensor:
        logits = self.lm_head(x)
        loss: Tensor = self.loss_function(logits=logits, labels=labels, vocab_size=CLASSES, **how)
        return loss


def given(device: str = "cpu", dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    labels = torch.randint(CLASSES, (3, 9), device=device)
    labels[0, :5] = -100
    return torch.randn(3, 9, 12, device=device, dtype=dtype), labels


def traced(net: nn.Module) -> tuple[Callable[..., Tensor], set[str]]:
    """Return a model compiled to one graph, and the set that gets its operators."""
    operators: set[str] = set()

    def keep(graph: Any, _: Any) -> Any:
        operators.update(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=keep)
    return torch.compile(net, backend=backend, fullgraph=True), operators


def status(net: nn.Module) -> tuple[int, dict[str, int]]:
    (found,) = (m for m in fuseline.patch_status(net).modules if m.name == PLACE)
    return found.served, found.own


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "gpt2"] + ["phi3"])
def test_families(family: str, dtype: torch.dtype, device: str) -> None:
    net = model(family, device, dtype)
    ids = tokens(device)
    labels = ids.masked_fill(torch.rand(ids.shape, device=device) < 0.2, -100)
    logits = net(ids).logits.detach().requires_grad_()
    call: Any = {"labels": labels, "vocab_size": logits.shape[-1]}
    wanted = net.loss_function(logits=logits, **call)
    report = fuseline.patch(net)
    assert (PLACE, "ForCausalLMLoss") in report.replaced, str(report)
    found = net.loss_function(logits=logits, **call)
    torch.testing.assert_close(found, wanted)
    grads = [torch.autograd.grad(loss, logits)[0] for loss in (found, wanted)]
    torch.testing.assert_close(*grads, rtol=2 * torch.finfo(dtype).eps, atol=1e-7)
    net(ids, labels=labels).loss.backward()
    assert status(net) == (2, {})
    fuseline.unpatch(net)
    assert net.loss_function.__name__ == "ForCausalLMLoss"
    assert not any("loss" in m.name for m in fuseline.patch_status(net).modules)


HOWS: list[dict[str, Any]] = [{}, {"num_items_in_batch": 7}, {"ignore_index": 3},
                              {"num_items_in_batch": torch.tensor(7)}]  # fmt: skip
SHIFTED = {"shift_labels": torch.randint(CLASSES, (3, 9))}


@pytest.mark.parametrize(
    ("own", "how"),
    [*product((next_token_loss, masked_loss), HOWS), (next_token_loss, SHIFTED)],
)
def test_what_is_served_is_the_models_own(own: Any, how: dict[str, Any]) -> None:
    net, (x, labels) = Head(own), given()
    if "ignore_index" in how:
        labels = labels.masked_fill(labels == -100, 3)
    weight = net.lm_head.weight
    wanted = net(x, labels, **how)
    fuseline.patch(net)
    found = net(x, labels, **how)
    torch.testing.assert_close(found, wanted)
    grads = [torch.autograd.grad(loss, weight)[0] for loss in (found, wanted)]
    torch.testing.assert_close(*grads)
    assert status(net) == (1, {})


def test_positions_are_names() -> None:
    net, (x, labels) = Head(), given()
    logits = net.lm_head(x).detach()
    fuseline.patch(net)
    wanted = next_token_loss(logits, labels, CLASSES, 5)
    torch.testing.assert_close(net.loss_function(logits, labels, CLASSES, 5), wanted)
    assert status(net) == (1, {})


def test_half_types_are_not_copied_to_fp32() -> None:
    shapes: set[Any] = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            found = func(*args, **(kwargs or {}))
            leaves = [t for t in tree_leaves(found) if isinstance(t, Tensor)]
            shapes.update((t.numel(), t.dtype) for t in leaves)
            return found

    net, (x, labels) = Head().bfloat16(), given(dtype=torch.bfloat16)
    for served in (False, True):
        shapes.clear()
        if served:
            fuseline.patch(net)
        with Watch():
            net(x, labels).backward()
        assert ((27 * CLASSES, torch.float32) in shapes) is not served


def test_other_calls_go_to_the_models_own() -> None:
    net, (x, labels) = Head(), given()
    fuseline.patch(net)
    logits = net.lm_head(x).detach()
    loss = net.loss_function
    call: Any = {"logits": logits, "labels": labels, "vocab_size": CLASSES}
    wanted = next_token_loss(**call)
    assert loss(**call, cu_seq_lens_q=labels) == wanted
    loss(**call | {"logits": logits.double()})
    loss(**call | {"logits": logits[0], "labels": labels[0]})
    loss(**call | {"logits": logits.as_subclass(nn.Parameter).requires_grad_(False)})
    with pytest.raises(RuntimeError, match="Int"):
        loss(**call | {"labels": labels.int()})
    with pytest.raises(TypeError, match="vocab_size"):
        loss(logits, labels)
    with pytest.raises(TypeError, match="multiple values"):
        loss(logits, **call)
    served, own = status(net)
    assert (served, sum(own.values())) == (2, 5), own
    assert "called with cu_seq_lens_q" in own
    assert "not proven: logits of 3 dimensions, torch.float64" in own
    assert "labels is torch.int32 of shape (3, 9)" in own


def test_a_masked_models_loss() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(vocab_size=CLASSES, hidden_size=16, num_hidden_layers=1,
                        num_attention_heads=2, intermediate_size=24)  # fmt: skip
    net = transformers.BertForMaskedLM(config).eval()
    ids = tokens("cpu").remainder(CLASSES)
    labels = ids.masked_fill(torch.rand(ids.shape) < 0.8, -100)
    labels[0, 0] = 1  # one at least is no NaN
    logits = net(ids).logits.detach()
    call: Any = {"logits": logits, "labels": labels, "vocab_size": CLASSES}
    wanted = net.loss_function(**call)
    report = fuseline.patch(net)
    assert (PLACE, "ForMaskedLMLoss") in report.replaced, str(report)
    torch.testing.assert_close(net.loss_function(**call), wanted)
    torch.testing.assert_close(net.loss_function(**call, shift_labels=labels.flip(0)), wanted)
    assert status(net) == (1, {"called with shift_labels": 1})


def masked_but_shifted(logits: Tensor, labels: Any, vocab_size: int, num_items_in_batch: Any = None,
                       ignore_index: int = -100) -> Tensor:  # fmt: skip
    return next_token_loss(logits, labels, vocab_size, num_items_in_batch, ignore_index)


def unshifted(logits: Tensor, labels: Any, vocab_size: int, num_items_in_batch: Any = None,
              ignore_index: int = -100, shift_labels: Any = None) -> Tensor:  # fmt: skip
    target = labels if shift_labels is None else shift_labels
    return next_token_loss(logits, None, vocab_size, num_items_in_batch, ignore_index, target)


def smoothed(logits: Tensor, labels: Any, vocab_size: int, num_items_in_batch: Any = None,
             ignore_index: int = -100, shift_labels: Any = None) -> Tensor:  # fmt: skip
    own = next_token_loss(
        logits, labels, vocab_size, num_items_in_batch, ignore_index, shift_labels
    )
    return own + 1e-4 * logits.float().logsumexp(-1).square().mean()


def never_nan(logits: Tensor, labels: Any, vocab_size: int, num_items_in_batch: Any = None,
              ignore_index: int = -100, shift_labels: Any = None) -> Tensor:  # fmt: skip
    own = next_token_loss(
        logits, labels, vocab_size, num_items_in_batch, ignore_index, shift_labels
    )
    return own.nan_to_num()


def detached(logits: Tensor, labels: Any, vocab_size: int, num_items_in_batch: Any = None,
             ignore_index: int = -100, shift_labels: Any = None) -> Tensor:  # fmt: skip
    given = (labels, vocab_size, num_items_in_batch, ignore_index, shift_labels)
    return next_token_loss(logits, *given) + next_token_loss(2 * logits, *given).detach() * 0.01


def of_two(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)


def with_state(logits: Tensor, labels: Tensor) -> Callable[..., Tensor]:
    return lambda *args: next_token_loss(logits, labels, *args)


class Callee:
    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return next_token_loss(*args, **kwargs)


@pytest.mark.parametrize(("own", "why"), [
    (unshifted, "times what rounding explains"),
    (masked_but_shifted, "times what rounding explains"),
    (smoothed, "times what rounding explains"),
    (never_nan, "times what rounding explains"),
    (detached, "times what rounding explains"),
    (of_two, "its parameters are logits, labels"),
    (Callee(), "its loss function is a Callee"),
    (with_state(torch.ones(2), torch.ones(2)), "on whose state results may depend"),
])  # fmt: skip
def test_another_loss_is_left_alone(own: Any, why: str) -> None:
    net = Head(own)
    (kept,) = fuseline.patch(net).kept
    assert kept[0] == PLACE
    assert why in kept[2], kept
    assert net.loss_function is own


def test_a_model_without_a_loss_is_not_asked_for_one() -> None:
    class Silent(Head):
        @property
        def loss_function(self) -> Any:
            raise AssertionError("asked")

        @loss_function.setter
        def loss_function(self, value: Any) -> None:
            raise AssertionError("set")

        def forward(self, x: Tensor) -> Tensor:
            return x

    assert not fuseline.patch(Silent(kind=None)).kept


def test_one_that_was_set_comes_back() -> None:
    net = Head(unshifted)
    net.loss_function = next_token_loss
    assert fuseline.patch(net).replaced == ((PLACE, "next_token_loss"),)
    assert fuseline.patch(net).kept == ((PLACE, "next_token_loss", "it runs on fuseline already"),)
    assert fuseline.unpatch(net) == 1
    assert net.loss_function is next_token_loss
    fuseline.patch(net)
    net.loss_function = unshifted
    assert fuseline.unpatch(net) == 0
    assert net.loss_function is unshifted


def test_unpatch_leaves_nothing() -> None:
    net = Head()
    before = dict(vars(net))
    fuseline.patch(net)
    fuseline.unpatch(net)
    assert vars(net) == before


def test_copies_and_files() -> None:
    net, (x, labels) = Head(), given()
    fuseline.patch(net)
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(net), torch.load(buffer, weights_only=False)):
        torch.testing.assert_close(other(x, labels), net(x, labels))
        assert status(other) == (1, {})
        assert fuseline.unpatch(other) == 1
    assert status(net) == (2, {})


@pytest.mark.parametrize("items", [None, 7, torch.tensor(7)], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_compiled_calls_are_served(device: str, items: Any) -> None:
    torch._dynamo.reset()
    net, (x, labels) = Head().to(device), [t.to(device) for t in given()]
    x.requires_grad_()
    own = net(x, labels, num_items_in_batch=items)
    wanted = own, *torch.autograd.grad(own, [x, *net.parameters()])
    fuseline.patch(net)
    compiled, operators = traced(net)
    loss = compiled(x, labels, num_items_in_batch=items)
    found = loss, *torch.autograd.grad(loss, [x, *net.parameters()])
    torch.testing.assert_close(found, wanted)
    assert "fuseline._cross_entropy_fwd.default" in operators
    assert status(net) == (0, {})  # compiled calls are not counted


def test_compiled_calls_that_are_not_proven_are_the_models_own() -> None:
    torch._dynamo.reset()
    net, (x, labels) = Head(), given()
    wanted = net(x, labels, cu_seq_lens=3)
    fuseline.patch(net)
    compiled, operators = traced(net)
    torch.testing.assert_close(compiled(x, labels, cu_seq_lens=3), wanted)
    assert operators
    assert not any("fuseline" in name for name in operators)


def test_an_implementation_that_it_has_not() -> None:
    (kept,) = fuseline.patch(Head(), impl="triton").kept
    assert kept == (PLACE, "next_token_loss", "cross_entropy has no implementation 'triton'")
    assert fuseline.patch(Head(), impl="cpu").replaced
