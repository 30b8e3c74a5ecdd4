"""Modules that follow one another, as one call of our operators: what they are, what they need."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Module
from torch.nn.modules import module as torchs

from fuseline.core.registration.operator import PLAIN
from fuseline.core.selection.select import Selector
from fuseline.ops import conv_bn, matmul_add_gelu
from fuseline.ops.conv_bn.op import SELECTOR as CONV_BN
from fuseline.ops.matmul_add_gelu.op import SELECTOR as GELU
from fuseline.patching.probe import INTERNALS, is_plain
from fuseline.patching.serving import BOOKKEEPING

# Multiplications from which a product on a CPU gains more by its epilogue than a call costs.
LARGE_ON_A_CPU = 2**26
# Multiplications of the smallest product that was measured to be faster with its epilogue
# (results/h200/products-2026-11-26); from 2**31 to 2**35 the host's time decides.
LARGE_PRODUCT_ON_A_GPU = 2**36
FEW = "torch's own are as fast on a cpu for few elements"
WITH_GRADIENT = "torch's own are as fast on a cpu where a gradient is wanted"

Members = tuple[Any, ...]


@dataclass(frozen=True)
class Chain:
    """Children of a module, each of which takes the result of the one before.

    names     the children's
    function  an activation after them that is a function, not a child
    impl      as given to patch
    """

    names: tuple[str, ...]
    function: Any
    impl: str

    def members(self, holder: Any) -> Members:
        return tuple(holder._modules.get(name) for name in self.names)

    def unavailable(self, device_type: str) -> str | None:
        """Return why our operator cannot run on this kind of device, or None."""
        selector = self.selector
        if self.impl == "auto":
            return self.slower(device_type)
        if self.impl not in selector.names:
            return f"{selector.op} has no implementation {self.impl!r}"
        return selector.unavailable(self.impl, device_type)

    def own(self, x: Tensor, members: Members) -> Tensor:
        """Return what the modules give, one after another, without hooks."""
        for module in members:
            x = type(module).forward(module, x)
        return x if self.function is None else self.function(x)

    def kind(self, members: Members) -> str:
        """Return the classes of what follows one another, for a report."""
        names = [type(m).__name__ for m in members]
        return " + ".join(names + ([] if self.function is None else [self.function.__name__]))

    def spellings(self, members: Members) -> tuple[Any, ...]:
        """Return what a chain of these classes may be, which the proof tells from one another."""
        return (self,)

    @property
    def selector(self) -> Selector:
        raise NotImplementedError

    def unfit(self, members: Members) -> str | None:
        """Return what about the modules our operator does not take, or None."""
        weight = members[0]._parameters.get("weight")
        if weight is None:
            return "its weight is not a parameter of its own"
        return None if weight.numel() else "its weight is empty"

    @property
    def details(self) -> Any:
        """Return all but the names."""
        return replace(self, names=())

    def slower(self, device_type: str) -> str | None:
        """Return why "auto" leaves all calls on this kind of device to torch, or None."""
        return None

    def least(self, members: Members) -> int:
        """Return how many elements x has on a CPU, at least, where "auto" may serve."""
        return 0

    def slower_call(self, x: Tensor, members: Members) -> str | None:
        """Return why "auto" leaves a call to torch, whether or not a gradient is wanted, or None.

        Members have the classes that they had at the proof.
        """
        raise NotImplementedError

    def slower_with_gradient(self, device_type: str, training: bool) -> str | None:
        """Return why "auto" leaves a call to torch where a gradient is wanted, or None."""
        raise NotImplementedError


@dataclass(frozen=True)
class ConvBn(Chain):
    """Conv2d, BatchNorm2d and perhaps ReLU."""

    relu: bool = False

    @property
    def selector(self) -> Selector:
        return CONV_BN

    def slower(self, device_type: str) -> str | None:
        # A ResNet-50 on an H200, its own being 1: eval 1.22 to 1.28, a training step 1.04 to 1.21
        # (results/h200/convolutions-2026-11-27/patch.txt); on a CPU decision 0027 has the times.
        return f"torch's own are as fast on a {device_type}"

    def unfit(self, members: Members) -> str | None:
        conv = members[0]
        if conv.padding_mode != "zeros":
            return f"its padding_mode is {conv.padding_mode!r}"
        if isinstance(conv.padding, str):
            return f"its padding is {conv.padding!r}"
        return super().unfit(members)

    def attributes(self, members: Members) -> tuple[Any, ...]:
        conv, bn = members[:2]
        return (
            *(conv.stride, conv.padding, conv.dilation, conv.groups, conv.padding_mode),
            *(bn.eps, bn.momentum, bn.track_running_stats),
        )

    def tensors(self, members: Members) -> tuple[Tensor | None, ...]:
        conv, bn = members[:2]
        of_conv, of_bn, running = conv._parameters, bn._parameters, bn._buffers
        return (
            _tensor(conv, of_conv, "weight"),
            _tensor(conv, of_conv, "bias"),
            _tensor(bn, of_bn, "weight"),
            _tensor(bn, of_bn, "bias"),
            _tensor(bn, running, "running_mean"),
            _tensor(bn, running, "running_var"),
        )

    def unlike(self, x: Tensor, members: Members) -> str | None:
        """Return what about the shape of x is another than was proven, or None."""
        if x.dim() != 4 or x.shape[1] != members[0].in_channels:
            return f"x of shape {tuple(x.shape)}"
        return None if x.numel() else "x is empty"

    def training(self, members: Members) -> bool:
        return bool(members[1].training)

    def compute(self, x: Tensor, members: Members) -> Tensor:
        conv, bn = members[:2]
        tensors: Any = self.tensors(members)
        weight, bias, bn_weight, bn_bias, mean, var = tensors
        moved = not bn.training or bn.track_running_stats
        return conv_bn(
            x,
            weight,
            bias,
            bn_weight,
            bn_bias,
            mean if moved else None,
            var if moved else None,
            training=uses_batch(bn),
            momentum=count_batch(bn),
            eps=bn.eps,
            relu=self.relu,
            stride=conv.stride,
            padding=conv.padding,
            dilation=conv.dilation,
            groups=conv.groups,
            impl=self.impl,
        )

    def probes(self, members: Members) -> tuple[tuple[int, ...], ...]:
        """Return shapes of x to try: the kernel fits twice, and once more unevenly."""
        conv = members[0]
        fits = [(k - 1) * d + 1 for k, d in zip(conv.kernel_size, conv.dilation, strict=True)]
        sizes = [n + 2 * s for n, s in zip(fits, conv.stride, strict=True)]
        return (3, conv.in_channels, *sizes), (2, conv.in_channels, sizes[0] + 3, sizes[1] + 1)


@dataclass(frozen=True)
class LinearGelu(Chain):
    """Linear with a bias and GELU."""

    approximate: str = "none"

    def spellings(self, members: Members) -> tuple[Any, ...]:
        known = type(members[1]) is nn.GELU
        return (self,) if known else (self, replace(self, approximate="tanh"))

    @property
    def selector(self) -> Selector:
        return GELU

    def least(self, members: Members) -> int:
        return LARGE_ON_A_CPU // members[0].out_features if self.impl == "auto" else 0

    def slower_call(self, x: Tensor, members: Members) -> str | None:
        kind = "cpu" if x.is_cpu else x.device.type
        half = x.dtype.itemsize == 2 or torch.is_autocast_enabled(kind)
        exact = self.approximate == "none"
        if kind == "cpu":
            if x.numel() < self.least(members):
                return FEW
            return "torch's own are as fast on a cpu for half types" if half and exact else None
        if exact or not half:
            return f"torch's own are as fast on {kind} but for half types and tanh"
        few = x.numel() * members[0].out_features < LARGE_PRODUCT_ON_A_GPU
        return f"torch's own are as fast on {kind} for few elements" if few else None

    def slower_with_gradient(self, device_type: str, training: bool) -> str | None:
        if device_type != "cpu":
            return None
        return WITH_GRADIENT

    def attributes(self, members: Members) -> tuple[Any, ...]:
        act = members[1]
        if type(act) is nn.GELU:
            return (act.approximate,)
        return tuple((n, v) for n, v in vars(act).items() if n not in _INTERNALS)

    def tensors(self, members: Members) -> tuple[Tensor | None, ...]:
        linear = members[0]
        return tuple(_tensor(linear, linear._parameters, name) for name in ("weight", "bias"))

    def unlike(self, x: Tensor, members: Members) -> str | None:
        if not 2 <= x.dim() <= 4 or x.shape[-1] != members[0].in_features:
            return f"x of shape {tuple(x.shape)}"
        return None if x.numel() else "x is empty"

    def training(self, members: Members) -> bool:
        return bool(members[1].training)

    def compute(self, x: Tensor, members: Members) -> Tensor:
        tensors: Any = self.tensors(members)
        weight, bias = tensors
        return matmul_add_gelu(x, weight.t(), bias, self.approximate, self.impl)

    def probes(self, members: Members) -> tuple[tuple[int, ...], ...]:
        k = members[0].in_features
        return (7, k), (2, 5, k), (1, 2, 3, k)


_INTERNALS = INTERNALS | BOOKKEEPING


def _tensor(module: Any, own: Any, name: str) -> Any:
    """Return a parameter or buffer; torch's own look-up takes several times as long."""
    return own[name] if name in own else getattr(module, name, None)


def uses_batch(bn: Any) -> bool:
    """Whether a batch norm takes the statistics of its input."""
    return bool(bn.training or (bn.running_mean is None and bn.running_var is None))


def count_batch(bn: Any) -> float:
    """Count a batch as torch's batch norm does; return what its statistics move by."""
    momentum: float | None = bn.momentum
    if bn.training and bn.track_running_stats and bn.num_batches_tracked is not None:
        bn.num_batches_tracked.add_(1)
        if momentum is None:
            return 1.0 / float(bn.num_batches_tracked)
    return 0.0 if momentum is None else momentum


def hooked(members: Members) -> str | None:
    """Return what else than its class's forward a call of a member runs, or None."""
    if torchs._has_any_global_hook():
        return "there are hooks of all modules"
    for module in members:
        of = vars(module)
        if (
            of["_forward_pre_hooks"]
            or of["_forward_hooks"]
            or of["_backward_pre_hooks"]
            or of["_backward_hooks"]
        ):
            return f"its {type(module).__name__} has hooks"
        if "forward" in of:
            return f"the forward of its {type(module).__name__} was replaced on the instance"
    return None


def state(chain: Any, members: Members, tensors: Any) -> tuple[Any, ...]:
    """Return what else a proof rests on, to be compared at each call."""
    forwards = [type(m).forward for m in members]
    dtypes = [t if t is None else t.dtype for t in tensors]
    return forwards, dtypes, chain.attributes(members)


def of_plain_tensors(tensors: Any, x: Tensor) -> str | None:
    """Return which of the tensors has a class of its own or lies elsewhere than x, or None."""
    device = x.device
    for t in tensors:
        if t is not None and type(t) not in PLAIN:
            return f"one of its tensors is a {type(t).__name__}"
        if t is not None and t.device != device:
            return f"one of its tensors is on {t.device}, x on {device}"
    weight = tensors[0]
    return None if x.dtype == weight.dtype else f"x is {x.dtype}, its weight {weight.dtype}"


def is_gelu(module: Module) -> bool:
    """Whether a module may be a GELU: torch's own, or by its name and without any parts."""
    if type(module) is nn.GELU:
        return True
    parts = (*module.children(), *module.parameters(), *module.buffers())
    values = (v for name, v in vars(module).items() if name not in _INTERNALS)
    return "gelu" in type(module).__name__.lower() and not parts and all(map(is_fixed, values))


def is_fixed(value: Any) -> bool:
    """Whether a value says what it does by being the same."""
    if isinstance(value, partial):
        return is_fixed(value.func) and is_plain((value.args, value.keywords))
    return is_plain(value) or isinstance(value, (FunctionType, BuiltinFunctionType))


def is_relu(function: Any, kwargs: Any) -> bool:
    return function in (F.relu, torch.relu) and not kwargs.keys() - {"inplace"}
