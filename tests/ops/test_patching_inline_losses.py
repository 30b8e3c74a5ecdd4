"""fuseline.patch of models whose forward calls torch's cross_entropy: it goes without logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ops.test_patching import DEVICES
from ops.test_patching_logits import as_near_to_fp64
from torch import Tensor, nn

import fuseline
from fuseline.core import native
from fuseline.ops.linear_cross_entropy import op
from fuseline.patching.logits import Logits, deferred

CLASSES, ROWS = 61, (3, 200)

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


@pytest.fixture(autouse=True)
def none_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have linear_cross_entropy go by chunks, as with the logits of a real model."""
    monkeypatch.setattr(op, "_FEW", 0)


def target(device: str = "cpu") -> Tensor:
    t = torch.randint(CLASSES, (600,), device=device)
    return t.masked_fill(torch.rand(600, device=device) < 0.2, -100)


def rows(z: Tensor) -> Tensor:
    return z.view(-1, CLASSES)


WITHOUT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a module": lambda z, t: nn.CrossEntropyLoss()(rows(z), t),
    "sum": lambda z, t: F.cross_entropy(z.flatten(0, 1), t, reduction="sum"),
    "none": lambda z, t: F.cross_entropy(z.reshape(-1, CLASSES), t, reduction="none"),
    "smoothed": lambda z, t: F.cross_entropy(rows(z), t, label_smoothing=0.1),
    "another index": lambda z, t: F.cross_entropy(rows(z), t.abs() % 7, ignore_index=3),
    "in fp32": lambda z, t: F.cross_entropy(rows(z.float()), t),
    "rows in fp32": lambda z, t: F.cross_entropy(rows(z).float(), t),
    "nothing counted": lambda z, t: F.cross_entropy(rows(z), torch.full_like(t, -100)),
}
WITH: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "weights": lambda z, t: F.cross_entropy(rows(z), t, torch.ones(CLASSES, dtype=z.dtype)),
    "probabilities": lambda z, t: F.cross_entropy(rows(z), torch.ones_like(rows(z)) / CLASSES),
    "classes first": lambda z, t: F.cross_entropy(z.mT, t.view(ROWS)),
    "as before": lambda z, t: F.cross_entropy(rows(z), t, size_average=False),
    "once read": lambda z, t: (z.sum(), F.cross_entropy(rows(z), t))[1],
}


def found(
    layer: Any, loss: Any, dtype: torch.dtype, leaves: Any, t: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Return loss and gradients, and the logits."""
    inputs = [one.to(dtype).requires_grad_() for one in leaves]
    z = layer(*inputs)
    y = loss(z, t)
    return [y, *torch.autograd.grad(y.sum(), inputs)], z


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", WITHOUT | WITH)
def test_cross_entropy(name: str, dtype: torch.dtype) -> None:
    # Multiples that no dtype rounds, nor their products.
    leaves = [torch.randint(-1, 2, (*ROWS, 16)), torch.randint(-4, 5, (CLASSES, 16)) / 4,
              torch.randint(-4, 5, (CLASSES,)) / 4]  # fmt: skip
    loss, t = (WITHOUT | WITH)[name], target()
    exact, _ = found(F.linear, loss, torch.float64, leaves, t)
    theirs, _ = found(F.linear, loss, dtype, leaves, t)
    ours, z = found(deferred, loss, dtype, leaves, t)
    assert (z.value is None) is (name in WITHOUT)
    for a, b, e in zip(ours, theirs, exact, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        limit = 8 * torch.finfo(dtype).eps * e.abs().nan_to_num().max()
        torch.testing.assert_close(a.double(), e.double(), atol=float(limit), rtol=0,
                                   equal_nan=True)  # fmt: skip


def test_under_autocast_a_loss_is_fp32() -> None:
    z = deferred(*(torch.randn(4, 4, dtype=torch.bfloat16, requires_grad=True) for _ in range(2)))
    with torch.autocast("cpu", torch.bfloat16):
        wide = F.cross_entropy(z, torch.arange(4))
    assert (wide.dtype, F.cross_entropy(z, torch.arange(4)).dtype) == (torch.float32, z.dtype)


def test_a_view_of_no_dimension_is_a_reading() -> None:
    z = deferred(torch.ones(1, 4, requires_grad=True), torch.ones(1, 4))
    assert z.view(()).item() == 4


SIZES: Any = {"vocab_size": CLASSES, "hidden_size": 32, "num_hidden_layers": 1,
              "num_attention_heads": 2, "intermediate_size": 48}  # fmt: skip


def bert() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        **SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    return transformers.BertForMaskedLM(config)


def t5() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=CLASSES, d_model=32, d_kv=16, d_ff=48, num_layers=1, num_heads=2,
        dropout_rate=0.0, decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("made", [bert, t5])
def test_models(made: Callable[[], Any], device: str) -> None:
    own = made().to(device).train()
    net = made().to(device).train()
    net.load_state_dict(own.state_dict())
    fuseline.patch(net)
    ids = torch.randint(1, CLASSES, ROWS, device=device)
    given = {"input_ids": ids, "labels": target(device).view(ROWS)}
    out = net(**given)
    assert type(out.logits) is Logits
    assert out.logits.unread
    as_near_to_fp64(own, net, lambda m: m(**given).loss)
    out.loss.backward()
    with pytest.raises(RuntimeError, match="after backward"):
        out.logits.argmax(-1)
