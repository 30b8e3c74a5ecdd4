"""How a module spells a norm: which of its structures can be one, and the call of our kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.parameter import is_lazy

from fuseline.core.inputs.arguments import DTYPES
from fuseline.core.selection.select import Selector
from fuseline.ops import layer_norm, rms_norm
from fuseline.ops.layer_norm.op import SELECTOR as LAYER_NORM
from fuseline.ops.layer_norm.op import SLOWER_THAN_TORCH
from fuseline.ops.rms_norm.op import SELECTOR as RMS_NORM

EPS_NAMES = ("eps", "variance_epsilon", "epsilon", "norm_eps")
# y = xhat * (offset + weight): Gemma's weight is what is added to one.
OFFSETS = (0.0, 1.0)
TORCHS = (torch.nn.RMSNorm, torch.nn.LayerNorm)


@dataclass(frozen=True)
class Form:
    """How a module spells the norm.

    eps           as the module has it; None: torch.nn.RMSNorm's default
    shape         the shape of what is normed: the last dimensions of x
    weight, bias  whether it has them
    offset        what is added to its weight
    centred       it is a layer norm, not a root-mean-square one
    """

    eps: float | None
    shape: tuple[int, ...]
    weight: bool
    bias: bool
    impl: str
    offset: float = 0.0
    centred: bool = False

    @property
    def selector(self) -> Selector:
        return LAYER_NORM if self.centred else RMS_NORM

    def compute(self, x: Tensor, weight: Any, bias: Any) -> Tensor:
        """Return the norm of x, whose last dimensions have our shape."""
        eps = self.eps
        if eps is None:  # the epsilon of the type that torch computes in
            eps = torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps
        whole = x.shape
        if len(self.shape) > 1:
            x = x.flatten(-len(self.shape))
            weight, bias = (None if p is None else p.flatten() for p in (weight, bias))
        if self.centred:
            y = layer_norm(x, weight, bias, eps, self.impl)
        else:
            y = rms_norm(x, weight, eps, self.impl, weight_offset=self.offset)
        return y if len(self.shape) == 1 else y.view(whole)


def parameters(module: Any) -> tuple[Any, Any]:
    """Return the weight and the bias, each None where there is none; a bias may be a mere flag."""
    bias = getattr(module, "bias", None)
    return getattr(module, "weight", None), bias if isinstance(bias, Tensor) else None


def looks_like_a_norm(module: Module) -> bool:
    """Whether a report has to name a module: by the names of its classes, or its structure."""
    if any("norm" in kind.__name__.lower() for kind in type(module).__mro__):
        return True
    parametrized = hasattr(module, "parametrizations") and bool(_eps_names(module))
    return parametrized or unlike(module) is None


def unlike(module: Any) -> str | None:
    """Return what about the structure of a module is not a norm's, or None."""
    if hasattr(module, "parametrizations"):
        return f"its {', '.join(module.parametrizations)} was parametrized before"
    if children := [name for name, _ in module.named_children()]:
        return f"it has children: {', '.join(children)}"
    if any(is_lazy(p) for p in module._parameters.values()):
        return "its parameters are not initialized: call it once first"
    names = [name for name, _ in module.named_parameters()]
    if list(module.buffers()):
        return "it has buffers"
    if not _eps_names(module):
        return f"it has none of {', '.join(EPS_NAMES)}"
    if isinstance(module, TORCHS):
        empty = not all(module.normalized_shape or (0,))
        return f"its normalized_shape is {module.normalized_shape}" if empty else None
    if sorted(names) not in (["weight"], ["bias", "weight"]):
        return f"its parameters are {', '.join(names) or 'none'}; expected weight, perhaps bias"
    for name in names:
        shape = tuple(getattr(module, name).shape)
        if len(shape) != 1 or shape != module.weight.shape:
            return f"its {name} has shape {shape}, expected one dimension, the weight's"
    return None if module.weight.numel() else "its weight is empty"


def unfit(module: Module, sharded: bool) -> str | None:
    """Return what about a norm's parameters our kernels do not take, or None.

    sharded  the model is FSDP's, which gathers its parameters before a forward
    """
    weight, bias = parameters(module)
    for name, p in (("weight", weight), ("bias", bias)):
        if p is None:
            continue
        if type(p) is not Parameter and not (sharded and type(p).__name__ == "DTensor"):
            return f"its {name} is a {type(p).__name__}, expected a torch.nn.Parameter"
        if p.dtype not in DTYPES:
            return f"its {name} is of {p.dtype}"
    if weight is not None and weight.device.type == "meta":
        return "its weight is on meta: load it first"
    return None


def forms(module: Any, impl: str) -> list[Form]:
    """Return the ways in which a module that is not unlike a norm may spell one."""
    weight, bias = parameters(module)
    shape = module.normalized_shape if isinstance(module, TORCHS) else weight.shape
    found = []
    for eps in dict.fromkeys(getattr(module, name) for name in _eps_names(module)):
        same = (eps, tuple(shape), weight is not None, bias is not None, impl)
        if bias is None and not isinstance(module, torch.nn.LayerNorm):
            offsets = OFFSETS if weight is not None else OFFSETS[:1]
            found += [Form(*same, offset) for offset in offsets]
        if eps is not None and not isinstance(module, torch.nn.RMSNorm):
            found.append(Form(*same, centred=True))
    return found


def slower(form: Form, device_type: str) -> str | None:
    """Return why "auto" leaves a form on this kind of device to torch, or None."""
    if form.centred and form.impl == "auto" and device_type in SLOWER_THAN_TORCH:
        return f"torch's layer norm is faster on a {device_type}; impl={device_type!r} takes ours"
    return None


def unavailable(form: Form, device_type: str) -> str | None:
    """Return why our kernels cannot run a form on this kind of device, or None."""
    order = [choice.name for choice in form.selector.order]
    names = order if form.impl == "auto" else [form.impl]
    reasons = {name: form.selector.unavailable(name, device_type) for name in names}
    if None in reasons.values():
        return None
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())


def _eps_names(module: Module) -> list[str]:
    values = ((name, vars(module).get(name, "")) for name in EPS_NAMES)
    return [name for name, eps in values if eps is None or type(eps) in (float, int)]
