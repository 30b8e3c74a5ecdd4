"""The operators of one implementation, and the guarded way to call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.autograd.forward_ad as fwd_ad
from torch import Tensor
from torch.nn import Parameter

from fuseline.core import host
from fuseline.core.gradients import by_formula, has_tangent, no_gradient
from fuseline.core.inputs import boundary
from fuseline.core.selection.select import Parts

if TYPE_CHECKING:
    from fuseline.core.registration.contract import Contract, Kernels

Function = Callable[..., Any]

# Types of arguments that are no tensors: to look there costs less than isinstance(a, Tensor).
_SCALARS = frozenset((float, int, bool, str, list, type(None)))
# Bound once for the same reason.
_transforms_active = torch._C._are_functorch_transforms_active
_modes = torch._C._len_torch_dispatch_stack
_tracing = torch._C._get_tracing_state
_grad_enabled = torch.is_grad_enabled


def _as_it_is(function: Function, *directions: str) -> Function:
    return function


class Variant:
    """The operators of one implementation, bound once, and the guarded way to call them.

    ops       those of the contract's schemas, in their order
    missing   device type -> why the binary holds no kernel of the operator for it
    refusing  (function, *directions) -> the function, which raises for what is not served
    apply     what runs the operator where a gradient is wanted; None: an autograd.Function over ops
    parts     its functions without guard, for Choice
    """

    def __init__(
        self,
        contract: Contract,
        ops: tuple[Any, ...],
        kernels: Kernels | None,
        missing: dict[str, str],
        refusing: Callable[..., Function] = _as_it_is,
        apply: Function | None = None,
    ) -> None:
        self.public, self.raw, *pair = ops
        self._check = boundary.checking(contract.name, self.public)
        self.missing = missing
        self.traced_through = kernels is not None
        self.parts: dict[str, Any] = {}
        # Traced code must see operators; eager code of a Python implementation need not, and that
        # of the binary goes past OpOverload.__call__, which costs 0.25 us.
        eager = kernels.run if kernels else self.raw._op
        self.decomposed = contract.decomposed or no_gradient(contract.name, self.public)
        self._traced_apply = eager_apply = apply or self.decomposed
        if contract.function is not None:
            *saving, bwd = pair
            fwd = saving[0] if saving else self.raw
            direct = _direct(kernels, bwd) if kernels else (fwd._op, bwd._op)
            graph, below = Parts(self.raw, fwd, bwd), Parts(eager, *direct)
            self.parts = {"eager": below, "graph": graph}
            self._traced_apply = contract.function(fwd, bwd).apply
            eager_apply = applied(contract.function(*direct))
        elif contract.decomposed is not None and apply is None:
            self._traced_apply = by_formula(self.raw, contract.decomposed).apply
            eager_apply = applied(by_formula(eager, contract.decomposed))
        self._traced_apply = refusing(self._traced_apply, "fwd", "bwd")
        eager_apply = refusing(eager_apply, "fwd", "bwd")
        self.call = guarded(self.public, refusing(eager, "fwd"), eager_apply)
        if kernels is None:
            self.call = host.call(self.call, contract.plan, self.raw, *pair)

    def unavailable(self, wanted: str, device_type: str) -> str | None:
        """Return why the kernels for device type `wanted` cannot run here; None if they can."""
        if device_type != wanted:
            return f"it needs x on {wanted}, got {device_type}"
        return self.missing.get(wanted)

    def autograd_rule(self, keyset: Any, *args: Any) -> Any:
        """Run the public operator under autograd: first order by kernels, else by the formula."""
        self._check(*args)
        tensors = [a for a in args if isinstance(a, Tensor)]
        if has_tangent(tensors):
            return self.decomposed(*args)
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            if torch._C._are_functorch_transforms_active():
                return self.decomposed(*args)
            return self._traced_apply(*args)
        # A compiled graph would come here at every call, which costs 12 us.
        if self.traced_through or _functionalizing():
            return self.raw(*args)
        with torch._C._AutoDispatchBelowAutograd():
            return self.public.redispatch(keyset & torch._C._after_autograd_keyset, *args)


def _functionalizing() -> bool:
    """Whether AOTAutograd makes a graph of what runs."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FUNCTIONAL) is not None


def applied(function: type[torch.autograd.Function]) -> Function:
    """Return what applies an autograd.Function in eager code."""
    # The Python half of Function.apply costs 1 us and serves functorch and Dynamo alone.
    apply: Function = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


def guarded(public: Function, eager: Function, apply: Function) -> Function:
    """Return what eager code calls: `eager`, `apply` where a gradient is wanted, or the operator
    `public` where more than autograd looks on.

    Its attribute `eager` is for operators made of others, which look for themselves.
    """

    def call(*args: Any) -> Any:
        """Run the operator in eager code; the tensors decide how much machinery it needs."""
        needs_grad = False
        for a in args:
            kind = type(a)
            if kind is Tensor or kind is Parameter:
                needs_grad = needs_grad or a.requires_grad
            elif kind not in _SCALARS:  # a subclass, or what stands for a tensor
                return public(*args)
        if _transforms_active() or fwd_ad._current_level >= 0 or _modes() or _tracing() is not None:
            return public(*args)
        if needs_grad and _grad_enabled():
            return apply(*args)
        return eager(*args)

    call.eager = eager  # type: ignore[attr-defined]
    return call


def _direct(kernels: Kernels, bwd: Function) -> tuple[Function, Function]:
    """Return the kernels without their operators; batched gradients need the vmap rule."""
    forward, backward = kernels.fwd or kernels.run, kernels.bwd
    assert backward is not None

    def direct(*args: Any) -> Any:
        batched = torch._C._are_functorch_transforms_active()
        return (bwd if batched else backward)(*args)

    return forward, direct
