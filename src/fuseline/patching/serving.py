"""A module that runs on our kernels where that is proven: its state, its class, and back."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn import Module

from fuseline.core.registration.operator import PLAIN
from fuseline.patching.form import Form
from fuseline.patching.probe import INTERNALS, is_plain, same
from fuseline.patching.proof import Proof

# Attributes that others keep on a module and that no forward reads.
_FSDPS = ("_is_fsdp_managed_module", "_fsdp_use_orig_params")
NOTES = frozenset(("_fuseline", "_hf_hook", "_is_hf_initialized", "_old_forward", *_FSDPS))
BOOKKEEPING = NOTES | {"forward"}

# Methods that no forward calls.
UNCALLED = frozenset(("extra_repr", "reset_parameters"))

# Callables that say what they do by being the same.
WITHOUT_STATE = (type, FunctionType, BuiltinFunctionType)

_counting = threading.Lock()
_tracing = torch._C._get_tracing_state


class Watched:
    """What a patched module carries: what its proofs rest on, and counts of calls.

    fixed   attributes that the proofs had, with their values; where one differs nothing is proven
    served  eager calls that ran on our kernels
    own     eager calls that went to the module's own forward, by reason
    """

    def __init__(self, impl: str, fixed: tuple[tuple[str, Any], ...]) -> None:
        self.impl, self.fixed = impl, fixed
        # What is bound to the instance by others who keep the class's own there, as hooks do.
        self._fixed_names = BOOKKEEPING.union(name for name, _ in fixed)
        self.served = 0
        self.own: dict[str, int] = {}

    def call(self, module: Any, made: Any, args: Any, kwargs: Any) -> Any:
        """Return the result, or as a str why it is left to the module's own forward; count it.

        made: the class that the module had when it was called; another thread may end that.
        """
        if len(args) != 1 or kwargs:
            y: Any = "called with more than one positional argument"
        elif _tracing() is not None:
            y = "torch.jit traces"
        else:
            y = self.run(module, made, args[0])
        self.count(y if isinstance(y, str) else None)
        return y

    def run(self, module: Any, made: Any, x: Any) -> Any:
        """Return the result for x alone, or why not."""
        raise NotImplementedError

    def changed(self, module: Any, made: Any) -> str | None:
        for name, value in self.fixed:
            if not same(getattr(module, name, None), value):
                return f"its {name} was changed after patch"
        for name, function in made._methods:
            if getattr(made._own, name, None) is not function:
                return f"{name} of its class was changed after patch"
            bound = getattr(module, name, None)
            if getattr(bound, "__func__", bound) is not function and name not in self._fixed_names:
                return f"its {name} was replaced after patch"
        return None

    def count(self, why: str | None) -> None:
        with _counting:
            if why is None:
                self.served += 1
            else:
                self.own[why] = self.own.get(why, 0) + 1


class Serving(Watched):
    """What a patched norm carries: which of its calls run on our kernels, and how many did.

    proofs  by kind of device: what was proven there, or why calls there are the module's own
    """

    def __init__(
        self, impl: str, proofs: dict[str, Proof | str], fixed: tuple[tuple[str, Any], ...]
    ) -> None:
        super().__init__(impl, fixed)
        self.proofs = proofs

    @property
    def missing(self) -> list[str]:
        """Return which calls go to the module's own forward, and why."""
        found: list[str] = []
        for proof in self.proofs.values():
            found += [proof] if isinstance(proof, str) else proof.missing
        return list(dict.fromkeys(found))

    def run(self, module: Any, made: Any, x: Any) -> Tensor | str:
        """Return the norm of x from our kernels, or why it is left to the module's own forward."""
        if type(x) not in PLAIN:
            return f"x is a {type(x).__name__}"
        if x.is_nested:
            return "x is a nested tensor"
        device = "cuda" if x.is_cuda else "cpu" if x.is_cpu else x.device.type
        proof = self.proofs.get(device)
        if proof is None:
            return f"x is on {device}, proven on {' and '.join(self.proofs)}: patch again"
        if isinstance(proof, str):
            return proof
        form = proof.form
        weight, bias = _parameters(module, form)
        why = (
            _unlike("weight", weight, form.weight, x, form)
            or _unlike("bias", bias, form.bias, x, form)
            or _unproven(proof, module, x, device)
            or self.changed(module, made)
        )
        return why or form.compute(x, weight, bias)


def _parameters(module: Any, form: Form) -> tuple[Any, Any]:
    """Return the weight and the bias; looking for one that a module never had takes long."""
    own = module._parameters
    weight = getattr(module, "weight", None) if form.weight else own.get("weight")
    return weight, getattr(module, "bias", None) if form.bias else own.get("bias")


def _unlike(name: str, p: Any, expected: bool, x: Tensor, form: Form) -> str | None:
    if p is None:
        return f"its {name} was taken away after patch" if expected else None
    if not expected:
        return f"its {name} was added after patch"
    if type(p) not in PLAIN:
        return f"its {name} is a {type(p).__name__}"
    if p.dtype != x.dtype:
        return f"x is {x.dtype}, its {name} {p.dtype}"
    return None if p.shape == form.shape else f"its {name} has another shape"


def _unproven(proof: Proof, module: Any, x: Tensor, device: str) -> str | None:
    shape = proof.form.shape
    if x.shape[-len(shape) :] != shape:
        return "x of another shape than was proven"
    to = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if (x.dim(), x.dtype, to, module.training) not in proof.cells:
        cast = "" if to is None else f", autocast to {to}"
        mode = "training" if module.training else "eval"
        return f"not proven: x of {x.dim()} dimensions, {x.dtype}{cast}, in {mode}"
    if not proof.square and shape[-1] in x.shape[:-1]:
        return "not proven: a leading dimension of x as long as the norm's own"
    if not (proof.strides or x.is_contiguous() or _in_order(x)):
        return "not proven: x whose dims are not in the order of its memory"
    return None


def _in_order(x: Tensor) -> bool:
    """Whether a module that computes element by element gives a contiguous result for x."""
    strides = [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1 and s > 0]
    return all(a >= b for a, b in pairwise(strides))


class Patched(Module):
    """Comes before a module's own class; without a Watched on the instance it changes nothing."""

    _fuseline: Watched | None = None
    _own: type[Module]
    _methods: tuple[tuple[str, FunctionType], ...] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Leave a hook of the module's own class out: ours is none of the classes it is about."""

    def __prepare_scriptable__(self) -> Module:
        if self._fuseline is None:
            return self
        raise RuntimeError(
            f"torch.jit.script: {type(self).__name__} runs on fuseline, expected a module that "
            "torch can compile: call fuseline.unpatch(model) first"
        )

    def __copy__(self) -> Module:
        made: Module = object.__new__(type(self))
        vars(made).update(vars(self))
        return made


@cache
def patched_class(own: Any) -> Any:
    """Return the subclass of a module's class whose forward asks the instance's Watched."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A method that was bound before unpatch comes here too, when the class is ours no longer.
        serving: Watched | None = getattr(self, "_fuseline", None)
        # Compilers make kernels of their own, which fuse with what is beside them.
        if serving is not None and not is_compiling():
            y = serving.call(self, made, args, kwargs)
            if not isinstance(y, str):
                return y
        return own.forward(self, *args, **kwargs)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        make, args, *rest = own.__reduce_ex__(self, protocol)
        if type(self) is not made:  # a later class's: its own business, as without us
            return make, args, *rest
        make, *args = (own if a is made else a for a in (make, *args))
        return _revived, (make, tuple(args)), *rest

    members = {"forward": forward, "__reduce_ex__": __reduce_ex__, "__module__": own.__module__}
    members |= {"_own": own, "_methods": methods(own)}
    made = type(f"Fuseline{own.__name__}", (Patched, own), members)
    return made


def methods(own: type[Module]) -> tuple[tuple[str, FunctionType], ...]:
    """Return the functions of a class that its forward may call."""
    names = {name for kind in own.__mro__ if kind not in Module.__mro__ for name in vars(kind)}
    found = ((n, getattr(own, n, None)) for n in sorted(names - UNCALLED) if not _dunder(n))
    return tuple((name, f) for name, f in found if isinstance(f, FunctionType))


def _dunder(name: str) -> bool:
    return name.startswith("__")


def _revived(make: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Return a module of a class that is made at run time; what is pickled is how."""
    module = make(*args)
    own: Any = type(module)
    module.__class__ = patched_class(own)
    return module


def own_class(module: Module) -> type[Module]:
    """Return the class of a module without ours, if ours is the last."""
    kind = type(module)
    return kind.__mro__[2] if _is_made(kind) else kind


def _is_made(kind: type[Module]) -> bool:
    return Patched in kind.__bases__


def names_read(module: Module) -> frozenset[str]:
    """Return the names in the code of a module's own forward, not in that of what it calls."""
    code = getattr(inspect.unwrap(own_class(module).forward), "__code__", None)
    return frozenset(code.co_names if code else ())


def fixed_attributes(
    module: Module, unread: frozenset[str] = frozenset()
) -> tuple[tuple[str, Any], ...] | str:
    """Return the attributes that a forward may read, or why they cannot be watched.

    unread  names of those that it was shown not to read
    """
    fixed = []
    kinds = [kind for kind in own_class(module).__mro__ if kind not in Module.__mro__]
    of_class = {n: v for kind in reversed(kinds) for n, v in vars(kind).items() if is_plain(v)}
    for name, value in {**of_class, **vars(module)}.items():
        known = name in INTERNALS or name in BOOKKEEPING or name in unread
        if known or name.startswith("__"):  # FSDP's
            continue
        if not (is_plain(value) or isinstance(value, WITHOUT_STATE)):
            return f"its {name} is a {type(value).__name__}, on which its results may depend"
        fixed.append((name, copy.deepcopy(value)))
    return tuple(fixed)


def install(module: Any, serving: Watched) -> None:
    """Have a module run on our kernels; each step leaves other threads' calls right."""
    if not isinstance(module, Patched):
        own: Any = type(module)
        made = patched_class(own)
        made._methods = methods(own)
        module.__class__ = made
        _rebind(module, own.forward, made.forward)
    vars(module)["_fuseline"] = serving


def remove(module: Any) -> bool:
    """Give a module its own forward back; return whether it ran on ours.

    A class that came after ours (of a parametrization, of FSDP) stays, ours under it does nothing.
    """
    found = vars(module).pop("_fuseline", None) is not None
    made = type(module)
    if _is_made(made):
        own = own_class(module)
        _rebind(module, made.forward, own.forward)
        module.__class__ = own
    return found


def replaced_forward(module: Any) -> bool:
    """Whether a call of the module does not come to its class's forward.

    accelerate's hooks keep that one as `_old_forward`.
    """
    state = vars(module)
    return "forward" in state and not any(
        _bound(module, name, type(module).forward) for name in ("forward", "_old_forward")
    )


def _bound(module: Any, name: str, function: Any) -> bool:
    method = vars(module).get(name)
    return (
        isinstance(method, MethodType) and method.__self__ is module and method.__func__ is function
    )


def _rebind(module: Any, old: Any, new: Any) -> None:
    for name in ("forward", "_old_forward"):
        if _bound(module, name, old):
            vars(module)[name] = MethodType(new, module)
