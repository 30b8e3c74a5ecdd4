"""The last layer of a language model in training: logits that are computed when they are read."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.utils._pytree import tree_map

from fuseline.core.registration import operator
from fuseline.core.registration.operator import PLAIN
from fuseline.ops import linear_cross_entropy
from fuseline.patching.serving import Watched, own_class, replaced_forward

# Methods that read memory past the dispatcher.
READERS = ("__dlpack__", "__reduce_ex__", "data_ptr", "share_memory_", "tolist", "untyped_storage")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_transforms_active = torch._C._are_functorch_transforms_active


class Product:
    """What logits are computed from, (hidden, weight, bias), until backward has gone through the
    loss that was computed from it: afterwards somebody may write to them unseen.
    """

    def __init__(self, *factors: Any) -> None:
        self.factors, self._made = factors, _state(factors)

    def expire(self, *_: Any) -> None:
        """Forget the factors."""
        self.factors = ()

    @property
    def valid(self) -> bool:
        """Whether the factors are those of the logits."""
        return bool(self.factors) and _state(self.factors) == self._made

    def compute(self) -> Tensor:
        """Return the logits. Raises RuntimeError (they can no longer be computed)."""
        if not self.valid:
            raise RuntimeError(
                "logits: read for the first time after backward or after a change of the weight, "
                "expected before: fuseline.patch has them computed when they are read; "
                "fuseline.patch(model, keep_logits=True) has them always"
            )
        hidden, weight, bias = self.factors
        with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
            return F.linear(hidden, weight, bias)


def _state(factors: tuple[Any, ...]) -> list[tuple[int, int]]:
    return [(t._version, t.data_ptr()) for t in factors if t is not None]


class Logits(Tensor):
    """The logits of a linear layer, a cast of them or a view of their rows, without memory until
    they are read.

    Each operation that reads them computes them, once; autograd goes through the layer as always.
    torch's cross_entropy does without them.

    of  those that they are a view of, else None
    """

    product: Product
    of: Logits | None
    value: Tensor | None

    @staticmethod
    def __new__(
        cls, product: Product, dtype: torch.dtype, shape: Any = None, of: Logits | None = None
    ) -> Logits:
        hidden, weight, _ = product.factors
        shape = (*hidden.shape[:-1], weight.shape[0]) if shape is None else shape
        made: Logits = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=hidden.device)
        made.product, made.value, made.of = product, None, of
        return made

    @property
    def unread(self) -> bool:
        """Whether a loss can do without them."""
        return self.value is None and (self.product.valid if self.of is None else self.of.unread)

    def is_as_computed(self) -> bool:
        """Whether they are no cast."""
        return bool(self.dtype == self.product.factors[0].dtype)

    def read(self) -> Tensor:
        """Return them as a tensor without gradients, always the same."""
        if self.value is None:
            made = self.product.compute() if self.of is None else self.of.read()
            self.value = made.view(self.shape).to(self.dtype)
        return self.value

    def cross_entropy(self, target: Tensor, *how: Any) -> Tensor:
        """Return linear_cross_entropy of what they are computed from."""
        hidden, weight, bias = self.product.factors
        rows = hidden.reshape(*target.shape, hidden.shape[-1])
        loss = linear_cross_entropy(rows, weight, target, bias, *how)
        if loss.requires_grad:
            loss.register_hook(self.product.expire)
        return loss

    @classmethod
    def __torch_function__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            loss = _loss(*args, **kwargs) if func is F.cross_entropy else None
            return func(*args, **kwargs) if loss is None else loss

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if isinstance(first, Logits) and first.unread:
            is_cast = func is torch.ops.aten._to_copy.default and kwargs.keys() == {"dtype"}
            if is_cast and first.is_as_computed():
                return Logits(first.product, kwargs["dtype"], first.shape)
            if func is torch.ops.aten.view.default and args[1][-1:] == [first.shape[-1]]:
                shape = torch.empty(first.shape, device="meta").view(args[1]).shape
                return Logits(first.product, first.dtype, shape, first.of or first)
        read: dict[int, Logits] = {}

        def plain(a: Any) -> Any:
            if not isinstance(a, Logits):
                return a
            t = a.read()
            read[id(t)] = a
            return t

        made = func(*tree_map(plain, args), **tree_map(plain, kwargs))
        return tree_map(lambda a: read.get(id(a), a), made)  # what was written in place


def _reader(name: str) -> Any:
    def method(self: Logits, *args: Any, **kwargs: Any) -> Any:
        t = self.read().detach().requires_grad_(self.requires_grad)
        return getattr(t, name)(*args, **kwargs)

    return method


for _name in READERS:
    setattr(Logits, _name, _reader(_name))


def _loss(
    logits: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: Any = -100,
    reduce: Any = None,
    reduction: Any = "mean",
    label_smoothing: Any = 0.0,
) -> Tensor | None:
    """Return torch's cross_entropy of logits, one a row, that nothing has read; None of others."""
    if type(logits) is not Logits or not logits.unread or type(target) not in PLAIN:
        return None
    if (target.dtype, target.shape) != (torch.int64, logits.shape[:-1]) or target.dim() != 1:
        return None
    others = (weight, size_average, reduce)
    if target.device != logits.device or any(one is not None for one in others):
        return None
    loss = logits.cross_entropy(target, ignore_index, reduction, label_smoothing)
    wide = torch.is_autocast_enabled(logits.device.type)
    return loss if wide else loss.to(logits.dtype)


def deferred(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Logits:
    """Return hidden @ weight.mT + bias, of one dtype, as Logits."""
    factors = (hidden, weight, bias)
    return _Deferred.apply(Product(*factors), *factors)  # type: ignore[no-any-return,no-untyped-call]


class _Deferred(torch.autograd.Function):
    """The linear layer, whose result is Logits."""

    @staticmethod
    def forward(
        ctx: Any, product: Product, hidden: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Logits:
        ctx.save_for_backward(hidden, weight, bias)
        return Logits(product, hidden.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, _ = ctx.saved_tensors
        need = ctx.needs_input_grad
        rows = dy.reshape(-1, dy.shape[-1])
        dhidden = dy @ weight if need[1] else None
        dweight = rows.mT @ hidden.reshape(-1, hidden.shape[-1]) if need[2] else None
        return None, dhidden, dweight, rows.sum(0) if need[3] else None


class Head(Watched):
    """What a linear layer carries whose logits go into a loss that is served.

    own     its weight and bias: others in their place may be gone before the loss, as FSDP's
    device  the kind that the loss was proven on
    cells   dtypes of logits and numbers of their dimensions in which it was, with this layer
    """

    def __init__(self, layer: nn.Linear, device: str, cells: frozenset[Any]) -> None:
        super().__init__("auto", ())
        self.own_parameters = (layer.weight, layer.bias)
        self.device, self.cells = device, cells

    def still(self, other: Any) -> bool:
        """Whether another one serves the same."""
        return (
            type(other) is Head
            and self._has(*other.own_parameters)
            and (self.device, self.cells) == (other.device, other.cells)
        )

    def _has(self, weight: Any, bias: Any) -> bool:
        return weight is self.own_parameters[0] and bias is self.own_parameters[1]

    def call(self, module: Any, made: Any, args: Any, kwargs: Any) -> Any:
        # Without gradients little is kept: not counted.
        if not (torch.is_grad_enabled() and module.training):
            return "not in training"
        return super().call(module, made, args, kwargs)

    def run(self, module: Any, made: Any, x: Any) -> Logits | str:
        """Return the logits of x, or why they are computed at once."""
        why = self.changed(module, made) or _watched(module, made) or _unusual(module, x)
        if why is None and not self._has(module.weight, module.bias):
            why = "its parameters are others than when it was patched"
        if why is not None:
            return why
        factors = operator.lowered(x, module.weight, module.bias)
        why = self._unproven(*factors)
        return deferred(*factors) if why is None else why

    def _unproven(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
        if (x.dtype, x.dim()) not in self.cells or x.device.type != self.device:
            return f"not proven: x of {x.dim()} dimensions, {x.dtype}, on {x.device.type}"
        others = [t for t in (weight, bias) if t is not None]
        if any((t.dtype, t.device) != (x.dtype, x.device) for t in others):
            return "x of another dtype or device than its weight"
        return None if x.shape[-1] == weight.shape[1] else "x has not its number of columns"


def _watched(module: Any, made: Any) -> str | None:
    """Return who may look at a layer's result, or take its weight away after its forward."""
    if type(module) is not made:
        return "its class was changed after patch"
    if "_hf_hook" in vars(module) or any(getattr(module, name) for name in HOOKS):
        return "it has a hook"
    return None


def _unusual(module: Any, x: Any) -> str | None:
    """Return what about tensors makes them more than numbers, or None."""
    own = [p for p in (module.weight, module.bias) if p is not None]
    if type(x) is not Tensor or any(type(p) is not Parameter for p in own):
        return "x or a parameter is of a subclass of Tensor"
    if x.is_nested or x.layout is not torch.strided:
        return "x is nested or sparse"
    if _transforms_active() or forward_ad._current_level >= 0:
        return "under a transform of torch.func"
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is captured"
    needed = any(t.requires_grad for t in (x, *own))
    return None if needed else "no gradient is wanted"


def output_layer(model: Any) -> nn.Linear | None:
    """Return the layer that makes a model's logits, if it is a plain linear one."""
    find = getattr(model, "get_output_embeddings", None)
    layer = find() if callable(find) else None
    plain = isinstance(layer, nn.Linear) and own_class(layer) is nn.Linear
    return layer if plain and not replaced_forward(layer) else None
