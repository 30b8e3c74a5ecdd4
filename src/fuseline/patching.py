"""fuseline.patch: the norms of a model on fuseline's kernels, each after a proof."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from fuseline import nn
from fuseline.core.arguments import DTYPES
from fuseline.core.select import Selector
from fuseline.ops import layer_norm, rms_norm
from fuseline.ops.layer_norm.op import SELECTOR as LAYER_NORM
from fuseline.ops.rms_norm.op import SELECTOR as RMS_NORM

EPS_NAMES = ("eps", "variance_epsilon", "epsilon", "norm_eps")
# y = xhat * (offset + weight): Gemma's weight is what is added to one.
OFFSETS = (0.0, 1.0)
# Rows of the probe, as multiples of sqrt(eps): where eps matters, and where it does not. fp16 must
# hold them.
ROW_SIZES, LARGEST = (0.3, 1.0, 3.0, 1e2, 1e4, 1e6), 1e3
# Most that two results of one formula differ by: in eps of the dtype, of the value itself (the
# module may round twice; of a layer norm, whose terms may cancel, of |weight| + |bias|) and of the
# largest gradient (it may sum in another order). For fp64 it is fp32's: modules compute in fp32.
RESULT_EPS, GRADIENT_EPS = 8, 256
LISTED = 3

Words = tuple[str, str, str]
TORCHS = (torch.nn.RMSNorm, torch.nn.LayerNorm)


@dataclass(frozen=True)
class Form:
    """How a module spells the norm: where its eps is, what is added to its weight.

    centred  it is a layer norm, not a root-mean-square one
    """

    eps_name: str
    offset: float
    impl: str
    centred: bool = False

    @property
    def selector(self) -> Selector:
        return LAYER_NORM if self.centred else RMS_NORM


@dataclass(frozen=True)
class Report:
    """What fuseline.patch did; str() of it is a list.

    replaced  (name, class) of each module that runs on fuseline now
    kept      (name, class, why) of each that looks like a norm and was left alone
    """

    replaced: tuple[tuple[str, str], ...]
    kept: tuple[Words, ...]

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} modules run on fuseline now"]
        lines += [f"  {text}" for text in _grouped((n, c, "") for n, c in self.replaced)]
        if self.kept:
            lines.append(f"{len(self.kept)} were left alone")
            lines += [f"  {text}" for text in _grouped(self.kept)]
        return "\n".join(lines)


class Patched(Module):
    """Comes before a module's own class; what the norm's kernels do not take goes to that class."""

    form: Form

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and _takes(self, args[0]):
            return _norm(self, self.form, args[0], *_parameters(self))
        return super().forward(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        # The class is made at run time; what is pickled is how.
        return _new, (type(self).__mro__[2], self.form), self.__dict__


class _Bare(Module):
    """A module without its hooks, which are none of a probe's business."""

    def __init__(self, norm: Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Any:
        return self.norm.forward(x)


def patch(model: Module, impl: str = "auto") -> Report:
    """Have the norms of a model run on fuseline.rms_norm and fuseline.layer_norm, in place.

    model  any module: torch.nn.RMSNorm, torch.nn.LayerNorm and what looks like them (no children, a
           parameter `weight`, perhaps a `bias`, an eps), as in transformers' Llama, Qwen, Mistral
           and Gemma. Each is compared on random inputs, forward and gradients, with what would take
           its place.
    impl   as in these two.

    Parameters, buffers, hooks, names, device and the state dict stay as they are, and a module is
    still an instance of its class. Inputs of another dtype than the weight's go to the module's own
    forward. `unpatch` undoes it. Raises TypeError (model) or ValueError (impl).
    """
    if not isinstance(model, Module):
        raise TypeError(f"model: got a {type(model).__name__}, expected a torch.nn.Module")
    if impl != "auto":
        RMS_NORM.unavailable(impl, "cpu")  # refuses unknown names
    replaced, kept = [], []
    for name, module in list(model.named_modules()):
        if not _looks_like_a_norm(module):
            continue
        own: Any = type(module)
        found = _form(module, impl)
        if isinstance(found, str):
            kept.append((name, own.__name__, found))
        else:
            module.__class__ = _patched(own, found)
            replaced.append((name, own.__name__))
    return Report(tuple(replaced), tuple(kept))


def unpatch(model: Module) -> int:
    """Give the modules that `patch` replaced their own forward back; return their number."""
    patched = [m for m in model.modules() if isinstance(m, Patched)]
    for module in patched:
        module.__class__ = type(module).__mro__[2]
    return len(patched)


@cache
def _patched(own: Any, form: Form) -> Any:
    made = type(f"Fuseline{own.__name__}", (Patched, own), {"form": form})
    made.__module__ = own.__module__
    return made


def _new(own: Any, form: Form) -> Any:
    made = _patched(own, form)
    return made.__new__(made)


def _parameters(module: Any) -> tuple[Any, Any]:
    """Return the weight and the bias, each None where there is none; a bias may be a mere flag."""
    bias = getattr(module, "bias", None)
    return module.weight, bias if isinstance(bias, Tensor) else None


def _takes(module: Any, x: object) -> bool:
    return (
        isinstance(x, Tensor)
        and x.dtype in DTYPES
        and all(p is None or p.dtype == x.dtype for p in _parameters(module))
    )


def _norm(module: Any, form: Form, x: Tensor, weight: Any, bias: Any) -> Tensor:
    eps = getattr(module, form.eps_name)
    if eps is None:  # torch.nn.RMSNorm: the epsilon of the type that torch computes in
        eps = torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps
    ndim = 1 if weight is None else weight.dim()
    shape = x.shape
    if isinstance(module, TORCHS):
        ndim = len(module.normalized_shape)
        if shape[-ndim:] != module.normalized_shape:
            raise ValueError(
                f"x: got shape {tuple(shape)}, expected it to end with {module.normalized_shape}"
            )
    if ndim > 1:
        x = x.flatten(-ndim)
        weight, bias = (None if p is None else p.flatten() for p in (weight, bias))
    if form.centred:
        return layer_norm(x, weight, bias, eps, form.impl).view(shape)
    return rms_norm(x, weight, eps, form.impl, weight_offset=form.offset).view(shape)


def _looks_like_a_norm(module: Module) -> bool:
    leaf = not list(module.children())
    return leaf and ("norm" in type(module).__name__.lower() or _unlike(module) is None)


def _unlike(module: Any) -> str | None:
    """Return what in the structure of a childless module is not a norm's, or None."""
    names = [name for name, _ in module.named_parameters()]
    if list(module.buffers()):
        return "it has buffers"
    if _eps_name(module) is None:
        return f"it has none of {', '.join(EPS_NAMES)}"
    if isinstance(module, TORCHS):
        return None
    if sorted(names) not in (["weight"], ["bias", "weight"]):
        return f"its parameters are {', '.join(names) or 'none'}; expected weight, perhaps bias"
    for name in names:
        shape = tuple(getattr(module, name).shape)
        if len(shape) != 1 or shape != module.weight.shape:
            return f"its {name} has shape {shape}, expected one dimension, the weight's"
    return None


def _eps_name(module: Module) -> str | None:
    kinds = (float, int, type(None))
    return next((n for n in EPS_NAMES if isinstance(vars(module).get(n, ""), kinds)), None)


def _form(module: Any, impl: str) -> Form | str:
    """Return how the module spells the norm, or why it is left alone."""
    if isinstance(module, (Patched, nn.RMSNorm)):
        return "it runs on fuseline already"
    if "forward" in vars(module):
        return "its forward was replaced on the instance"
    if why := _unlike(module):
        return why
    weight, bias = _parameters(module)
    for name, p in (("weight", weight), ("bias", bias)):
        if p is not None and (type(p) is not Parameter or p.dtype not in DTYPES):
            return f"its {name} is a {type(p).__name__} of {p.dtype}"
    device = torch.device("cpu") if weight is None else weight.device
    if device.type == "meta":
        return "its weight is on meta: load it first"
    forms = _forms(module, impl)
    reasons = [_unavailable(form, device.type) for form in forms]
    able = [form for form, reason in zip(forms, reasons, strict=True) if reason is None]
    return _proven(module, able, device) if able else str(reasons[0])


def _forms(module: Any, impl: str) -> list[Form]:
    """Return how it may spell the norm."""
    weight, bias = _parameters(module)
    eps_name = _eps_name(module)
    assert eps_name is not None
    forms = []
    if bias is None and not isinstance(module, torch.nn.LayerNorm):
        offsets = OFFSETS if weight is not None else OFFSETS[:1]
        forms += [Form(eps_name, offset, impl) for offset in offsets]
    if getattr(module, eps_name) is not None and not isinstance(module, torch.nn.RMSNorm):
        forms.append(Form(eps_name, 0.0, impl, centred=True))
    return forms


def _unavailable(form: Form, device_type: str) -> str | None:
    names = form.selector.names[:-1] if form.impl == "auto" else (form.impl,)
    reasons = {name: form.selector.unavailable(name, device_type) for name in names}
    if None in reasons.values():
        return None
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())


def _proven(module: Any, forms: Iterable[Form], device: torch.device) -> Form | str:
    """Return the form that gives what the module gives, or how far the nearest is from it."""
    gaps = []
    for form in forms:
        try:
            gap = max(_gap(module, form, dtype, device) for dtype in _dtypes(module))
        except Exception as error:  # whatever its forward does
            line = (str(error).strip().splitlines() or [""])[0]
            return f"its forward raises {type(error).__name__} on a probe: {line}"
        if gap <= 1:
            return form
        gaps.append(gap)
    return f"its results differ from the norm's, {min(gaps):.3g} times what rounding explains"


def _dtypes(module: Any) -> set[torch.dtype]:
    return {torch.float32} if module.weight is None else {torch.float32, module.weight.dtype}


def _gap(module: Any, form: Form, dtype: torch.dtype, device: torch.device) -> float:
    """Return the difference of results and gradients on a probe over what rounding explains."""
    shape = module.normalized_shape if module.weight is None else module.weight.shape
    generator = torch.Generator()
    generator.seed()
    sizes = torch.tensor(ROW_SIZES).view(-1, *[1] * len(shape))
    scale = max(getattr(module, form.eps_name) or torch.finfo(torch.float32).eps, 1e-12) ** 0.5
    sizes = (sizes * scale).clamp(max=LARGEST)
    x = (torch.randn(len(ROW_SIZES), *shape, generator=generator) * sizes).to(device, dtype)
    dy = torch.randn(x.shape, generator=generator).to(device, dtype)
    given = {
        name: torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()
        for name, own in zip(("weight", "bias"), _parameters(module), strict=True)
        if own is not None
    }
    weight, bias = given.get("weight"), given.get("bias")
    leaves = (x.requires_grad_(), *given.values())
    with torch.enable_grad():
        named = {f"norm.{name}": p for name, p in given.items()}
        theirs = torch.func.functional_call(_Bare(module), named, (x,))
        ours = _norm(module, form, x, weight, bias)
    if (theirs.shape, theirs.dtype) != (ours.shape, ours.dtype):
        return float("inf")
    size = theirs.abs()
    if form.centred:  # |weight| + |bias|
        size = torch.ones_like(x) if weight is None else weight.abs().expand_as(x)
        size = size if bias is None else size + bias.abs()
    pairs = [(ours, theirs, size, RESULT_EPS)]
    if dtype == torch.float32:
        grads = (torch.autograd.grad(y, leaves, dy) for y in (ours, theirs))
        pairs += [(a, b, b.abs().amax(-1, True), GRADIENT_EPS) for a, b in zip(*grads, strict=True)]
    unit = torch.finfo(torch.float32 if dtype == torch.float64 else dtype)
    with torch.no_grad():
        gaps = [
            (a - b).abs().double() / (most * unit.eps * size.double() + unit.tiny)
            for a, b, size, most in pairs
        ]
        return max(float(gap.nan_to_num(float("inf")).max()) for gap in gaps)


def _grouped(words: Iterable[Words]) -> Iterator[str]:
    """Yield one line for each class and reason: how many, and the first names."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, own, why in words:
        groups.setdefault((own, why), []).append(name or "the model itself")
    for (own, why), names in groups.items():
        more = f", ... ({len(names)} in all)" if len(names) > LISTED else ""
        yield f"{own}: {', '.join(names[:LISTED])}{more}" + (f": {why}" if why else "")
