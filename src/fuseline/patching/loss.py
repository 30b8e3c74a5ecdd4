"""The loss function of a language model: a proof that it is cross_entropy, and its calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from itertools import product
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.compiler import is_compiling

from fuseline.core.registration.operator import PLAIN
from fuseline.ops import cross_entropy
from fuseline.ops.cross_entropy.op import SELECTOR
from fuseline.patching.logits import Head, Logits, deferred
from fuseline.patching.probe import Differs, Unlike, autocast, neutral
from fuseline.patching.serving import Watched, names_read

# What transformers' losses take, in this order, and where a model keeps one that was set. Those of
# masked tokens have no shift_labels: a label is that of its own place.
NAMES = ("logits", "labels", "vocab_size", "num_items_in_batch", "ignore_index", "shift_labels")
PLACE = "_loss_function"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = (((2, 7, 33), (1, 65, 130)), ((9, 40),))
# Most that a result is off: in eps of its dtype, of the value and of the largest gradient.
LOSS_EPS, GRADIENT_EPS = 16, 8

Cell = tuple[torch.dtype, int]
_NUMBERS = (type(None), int, Tensor)
_tracing = torch._C._get_tracing_state


class Loss(Watched):
    """What a model calls in the place of its loss function.

    own     that function, which serves what was not proven
    device  the kind that the proof was made on
    names   of its arguments
    cells   dtypes of logits and numbers of their dimensions in which it is cross_entropy
    heads   those in which linear_cross_entropy is the loss and the layer before it
    """

    def __init__(
        self, impl: str, own: FunctionType, device: str, cells: frozenset[Cell],
        heads: frozenset[Cell],
    ) -> None:  # fmt: skip
        super().__init__(impl, ())
        self.own_function, self.device, self.cells, self.heads = own, device, cells, heads
        self.names = names_of(own)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(self.names, args, strict=False))
        why = self._unknown(args, given, kwargs) or self._refusal(**given, **kwargs)
        if not is_compiling():
            self.count(why)
        if why is not None:
            return self.own_function(*args, **kwargs)
        given |= kwargs
        del given["vocab_size"]
        return compute(self.impl, self.names, **given)

    def still(self, other: Loss) -> bool:
        """Whether another one serves the same."""
        names = ("impl", "own_function", "device", "cells", "heads")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def head(self, layer: nn.Linear) -> Head | None:
        """Return what serves the layer that makes the logits, if they need not be there."""
        return Head(layer, self.device, self.heads) if self.heads else None

    def _unknown(self, args: Any, given: Any, kwargs: Any) -> str | None:
        """Return what about the names of a call's arguments is not as was proven, or None."""
        names = set(given) | set(kwargs)
        if len(args) > len(self.names) or set(given) & set(kwargs):
            return "called with more arguments than it has"
        if more := sorted(names - set(self.names)):
            return f"called with {', '.join(more)}"
        return None if names.issuperset(NAMES[:3]) else "called with fewer arguments than it needs"

    def _refusal(
        self,
        logits: Any,
        labels: Any,
        vocab_size: Any,
        num_items_in_batch: Any = None,
        ignore_index: Any = -100,
        shift_labels: Any = None,
    ) -> str | None:
        """Return why a call is left to the model's own function, or None."""
        target = labels if shift_labels is None else shift_labels
        for name, t in (("logits", logits), ("labels", target)):
            if (type(t) not in PLAIN and type(t) is not Logits) or t.is_nested:
                return f"{name} is a {type(t).__name__}"
        if logits.device.type != self.device:
            return f"logits is on {logits.device.type}, proven on {self.device}: patch again"
        if (logits.dtype, logits.dim()) not in self.cells:
            return f"not proven: logits of {logits.dim()} dimensions, {logits.dtype}"
        if target.dtype != torch.int64 or target.shape != logits.shape[:-1]:
            return f"labels is {target.dtype} of shape {tuple(target.shape)}"
        if logits.shape[-1] != vocab_size or not logits.is_contiguous():
            return "logits has not vocab_size columns, or is not contiguous"
        if type(ignore_index) is not int or type(num_items_in_batch) not in _NUMBERS:
            return "ignore_index or num_items_in_batch is no number"
        return "torch.jit traces" if not is_compiling() and _tracing() is not None else None


def names_of(own: FunctionType) -> tuple[str, ...]:
    """Return the names of a loss's arguments, NAMES with or without the last; raise Unlike."""
    parameters = inspect.signature(own).parameters.values()
    names = tuple(p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD)
    if names not in (NAMES, NAMES[:-1]):
        raise Unlike(f"its parameters are {', '.join(p.name for p in parameters)}")
    return names


def compute(
    impl: str,
    names: tuple[str, ...],
    logits: Tensor,
    labels: Any,
    num_items_in_batch: Any = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
) -> Tensor:
    """Return the loss of the next label each, or of its own where `names` has no shift_labels, by
    our operator.
    """
    target = labels if shift_labels is None else shift_labels
    if shift_labels is None and names == NAMES:
        target = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    target = target.to(logits.device)
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss = _sum_or_mean(impl, logits, target, ignore_index, reduction)
    if num_items_in_batch is None:
        return loss
    items: Any = num_items_in_batch
    shared: Tensor = loss / (items.to(loss.device) if isinstance(items, Tensor) else items)
    return shared


def _sum_or_mean(
    impl: str, logits: Tensor, target: Tensor, ignore_index: int, reduction: str
) -> Tensor:
    if type(logits) is not Logits or not logits.unread:
        return cross_entropy(logits, target, None, ignore_index, reduction, impl=impl)
    return logits.cross_entropy(target, ignore_index, reduction)


def own_loss(module: Any) -> Any:
    """Return the loss function of a model that has one, as transformers' have; None of others."""
    kept = vars(module).get(PLACE)
    if isinstance(kept, Loss):
        return kept.own_function
    prop = getattr(type(module), "loss_function", None)
    if not isinstance(prop, property) or prop.fset is None:
        return None
    # Of a model without a loss of its own transformers warns and gives a default, which some call.
    known = kept is not None or vars(module).get("loss_type") is not None
    return module.loss_function if known or "loss_function" in names_read(module) else None


def serve(own: Any, impl: str, device: torch.device) -> Loss | str:
    """Return what would serve a model's loss, or why it is left alone."""
    if type(own) is not FunctionType or own.__closure__:
        return f"its loss function is a {type(own).__name__}, on whose state results may depend"
    if impl != "auto" and impl not in SELECTOR.names:
        return f"cross_entropy has no implementation {impl!r}"
    if impl == "auto":
        impls = [n for n in SELECTOR.names[:-1] if SELECTOR.unavailable(n, device.type) is None]
        why = None if impls else f"none of its kernels runs on {device.type}"
    else:
        why = SELECTOR.unavailable(impl, device.type)
    if why is not None:
        return f"cross_entropy: {why}"
    try:
        return Loss(impl, own, device.type, *prove(own, impl, device))
    except Unlike as error:
        return str(error)


def install(module: Any, loss: Loss) -> None:
    """Have a model call what serves its loss."""
    module.loss_function = loss


def remove(module: Any) -> bool:
    """Give a model its loss function back; return whether ours was there."""
    found = vars(module).get(PLACE)
    if not isinstance(found, Loss):
        return False
    del vars(module)[PLACE]
    if module.loss_function is not found.own_function:  # it had been set before
        module.loss_function = found.own_function
    return True


def prove(own: Any, impl: str, device: torch.device) -> tuple[frozenset[Cell], frozenset[Cell]]:
    """Return the cells in which a function gives what cross_entropy gives, and those in which
    linear_cross_entropy gives what it and a linear layer do.

    Raises Unlike where it is another function of fp32 logits.
    """
    names_of(own)  # raises
    found, heads, errors = [], [], []
    with neutral(device):
        for dtype, shapes in product(DTYPES, SHAPES):
            cell = dtype, len(shapes[0])
            try:
                for shape in shapes:
                    _compare(own, impl, shape, dtype, device)
                found.append(cell)
                if impl == "auto" and _with_head(own, shapes, dtype, device):
                    heads.append(cell)
            except Differs:
                raise
            except Unlike as error:
                errors.append(error)
    if not found:
        raise errors[0]
    return frozenset(found), frozenset(heads)


def _calls(
    names: tuple[str, ...],
    generator: torch.Generator,
    shape: tuple[int, ...],
    device: torch.device,
) -> Iterator[dict[str, Any]]:
    """Give what a loss may be called with beside logits of a shape."""
    *lead, classes = shape
    labels = torch.randint(classes, lead, generator=generator)
    labels = labels.masked_fill(torch.rand(lead, generator=generator) < 0.3, -100).to(device)
    yield {"labels": labels}
    yield {"labels": labels, "num_items_in_batch": torch.tensor(11, device=device)}
    yield {"labels": labels.masked_fill(labels == -100, 3), "ignore_index": 3}
    yield {"labels": torch.full_like(labels, -100)}
    if names == NAMES:
        yield {"labels": labels, "shift_labels": labels.flip(0)}


def _compare(
    own: Any, impl: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    generator = torch.Generator()
    generator.seed()
    for call, to in product(
        _calls(names_of(own), generator, shape, device), (None, torch.bfloat16)
    ):
        x = 4 * torch.randn(shape, generator=generator)
        with autocast(device, to):
            _check(own, impl, [x.to(device, dtype)], call)


def _with_head(own: Any, shapes: Any, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether linear_cross_entropy is a layer and the loss, for logits that no dtype rounds."""
    generator = torch.Generator()
    generator.seed()
    try:
        for shape in shapes:
            for call in _calls(names_of(own), generator, shape, device):
                hidden = torch.randint(-1, 2, (*shape[:-1], 16), generator=generator)
                weight = torch.randint(-4, 5, (shape[-1], 16), generator=generator) / 4
                leaves = [t.to(device, dtype) for t in (hidden, weight)]
                _check(own, "auto", leaves, call)
    except Unlike:
        return False
    return True


def _check(own: Any, impl: str, leaves: list[Tensor], given: dict[str, Any]) -> None:
    """Raise Unlike where a function, or we, give another loss or gradient than fp64 does.

    leaves: logits, or what F.linear makes them of.
    """
    names, dloss = names_of(own), torch.tensor(3.0, device=leaves[0].device)
    inputs = [[t.clone().requires_grad_() for t in leaves] for _ in range(2)]
    with torch.enable_grad():
        try:
            logits = _logits(F.linear, inputs[0])
            theirs = own(logits=logits, vocab_size=logits.shape[-1], **given)
            wanted = torch.autograd.grad(theirs, inputs[0], dloss)
        except Exception as error:  # whatever it does
            line = (str(error).strip().splitlines() or [""])[0]
            raise Unlike(f"it raises {type(error).__name__} on a probe: {line}") from error
        ours = compute(impl, names, _logits(deferred, inputs[1]), **given)
        found = torch.autograd.grad(ours, inputs[1], dloss)
        exact = [t.double().requires_grad_() for t in leaves]
        value = compute("eager", names, _logits(F.linear, exact), **given)
        gradients = torch.autograd.grad(value, exact, dloss.double())
    kinds = [(t.dtype, t.shape) for t in (ours, *found)]
    if kinds != [(t.dtype, t.shape) for t in (theirs, *wanted)]:
        raise Unlike(f"its loss is {theirs.dtype} of shape {tuple(theirs.shape)}")
    gaps = [_gap(t, value, LOSS_EPS) for t in (ours, theirs)]
    for pair, exactly in zip(zip(found, wanted, strict=True), gradients, strict=True):
        gaps += [_gap(t, exactly, GRADIENT_EPS) for t in pair]
    if max(gaps) > 1:
        raise Differs(max(gaps))


def _logits(layer: Callable[..., Tensor], leaves: list[Tensor]) -> Tensor:
    return leaves[0] if len(leaves) == 1 else layer(*leaves)


def _gap(t: Tensor, exact: Tensor, most: float) -> float:
    """Return the largest error over what rounding explains."""
    with torch.no_grad():
        info, size = torch.finfo(t.dtype), float(exact.nan_to_num().abs().max())
        off = (t.double() - exact).abs() / (most * info.eps * (size + info.smallest_normal))
        off = off.masked_fill(t.isnan() & exact.isnan(), 0.0)
        return float(off.nan_to_num(float("inf")).max())
