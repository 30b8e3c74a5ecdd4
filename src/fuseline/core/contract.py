"""Stamps an operator on torch.ops.fuseline: schemas, fakes, autograd and vmap rules.

The only module that uses torch.library.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.autograd.forward_ad as fwd_ad
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.nn import Parameter

from fuseline.core import boundary, native
from fuseline.core.device import triton_unavailable
from fuseline.core.select import Choice, Selector

NAMESPACE = "fuseline"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")

Function = Callable[..., Any]

# Types of arguments that are no tensors: to look there costs less than isinstance(a, Tensor).
_SCALARS = frozenset((float, int, bool, str, type(None)))
# Bound once for the same reason.
_transforms_active = torch._C._are_functorch_transforms_active
_modes = torch._C._len_torch_dispatch_stack
_tracing = torch._C._get_tracing_state
_grad_enabled = torch.is_grad_enabled


@dataclass(frozen=True)
class Contract:
    """What all implementations of one operator share.

    args, returns                              halves of the public schema
    fwd_returns, bwd_args, bwd_returns         those of the forward that saves, and its backward
    fake, fake_fwd, fake_bwd                   shapes and dtypes of the outputs
    decomposed                                 the formula in differentiable torch operations
    function                                   (fwd, bwd) -> the autograd.Function over them
    vmap                                       rule: (op) -> (info, in_dims, *args) -> (outs, dims)

    Without `function` the operator has no operators of the second and third line: its gradient is
    that of `decomposed` or, without that too, refused. Without `fwd_returns` the forward saves
    nothing but what it takes and gives, and is the plain one. `fake`, `decomposed` and the rule
    give a tensor or, for several `returns`, a tuple of them.
    """

    name: str
    args: str
    fake: Function
    vmap: Callable[[Function], Function]
    fwd_returns: str = ""
    bwd_args: str = ""
    bwd_returns: str = ""
    fake_fwd: Function | None = None
    fake_bwd: Function | None = None
    decomposed: Function | None = None
    function: Callable[[Function, Function], type[torch.autograd.Function]] | None = None
    returns: str = "Tensor"

    def schemas(self, suffix: str = "") -> dict[str, str]:
        """Return name -> schema: public, the same without an autograd rule, forward, backward."""
        forward = {
            f"{self.name}{suffix}": f"({self.args}) -> {self.returns}",
            f"_{self.name}{suffix}": f"({self.args}) -> {self.returns}",
        }
        if self.function is None:
            return forward
        if self.fwd_returns:
            forward[f"_{self.name}_fwd{suffix}"] = f"({self.args}) -> {self.fwd_returns}"
        return forward | {f"_{self.name}_bwd{suffix}": f"({self.bwd_args}) -> {self.bwd_returns}"}


@dataclass(frozen=True)
class Kernels:
    """One Python implementation: the functions behind its operators.

    `run` alone if forward only; no `fwd` where the contract has no `fwd_returns`.

    Each takes `wrap`, applied to a Triton kernel before its launch: identity in eager calls,
    torch.library.wrap_triton where a compiled graph traces through.
    """

    run: Function
    fwd: Function | None = None
    bwd: Function | None = None


def triton_beside(op: str) -> Callable[[], Any]:
    """Import impl_triton of the folder in which the module `op` lies, when it is first called.

    Importing Triton takes longer than importing us; an import statement costs each call 0.4 us.
    """
    return cache(partial(importlib.import_module, f"{op.rpartition('.')[0]}.impl_triton"))


class Variant:
    """The operators of one implementation, bound once, and the guarded way to call them.

    missing  device type -> why the binary holds no kernel of the operator for it
    """

    def __init__(
        self, contract: Contract, suffix: str, kernels: Kernels | None, missing: dict[str, str]
    ) -> None:
        public, raw, *pair = (
            getattr(getattr(torch.ops, NAMESPACE), name).default
            for name in contract.schemas(suffix)
        )
        self.public, self.raw = public, raw
        self._check = boundary.checking(contract.name, public)
        self.missing = missing
        self.traced_through = kernels is not None
        # Traced code must see operators; eager code of a Python implementation need not, and that
        # of the binary goes past OpOverload.__call__, which costs 0.25 us.
        self._eager = kernels.run if kernels else raw._op
        if contract.decomposed is None:
            self.decomposed = self._traced_apply = self._eager_apply = _no_gradient(
                contract.name, public
            )
            self.call = self._guarded()
            return
        self.decomposed = contract.decomposed
        if contract.function is None:
            traced, eager = (_by_formula(f, contract.decomposed) for f in (raw, self._eager))
        else:
            *saving, bwd = pair
            fwd = saving[0] if saving else raw
            traced = contract.function(fwd, bwd)
            eager = contract.function(*(_direct(kernels, bwd) if kernels else (fwd._op, bwd._op)))
        self._traced_apply = traced.apply
        # The Python half of Function.apply costs 1 us and serves functorch and Dynamo alone.
        self._eager_apply: Function = super(torch.autograd.Function, eager).apply  # type: ignore
        self.call = self._guarded()

    def _guarded(self) -> Function:
        # A closure: a method would look seven things up in `self`.
        public, eager, apply = self.public, self._eager, self._eager_apply

        def call(*args: Any) -> Any:
            """Run the operator in eager code; the tensors decide how much machinery it needs."""
            needs_grad = False
            for a in args:
                kind = type(a)
                if kind is Tensor or kind is Parameter:
                    needs_grad = needs_grad or a.requires_grad
                elif kind not in _SCALARS:  # a subclass, or what stands for a tensor
                    return public(*args)
            if (
                _transforms_active()
                or fwd_ad._current_level >= 0
                or _modes()
                or _tracing() is not None
            ):
                return public(*args)
            if needs_grad and _grad_enabled():
                return apply(*args)
            return eager(*args)

        return call

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
        if self.traced_through:
            return self.raw(*args)
        with torch._C._AutoDispatchBelowAutograd():
            return self.public.redispatch(keyset & torch._C._after_autograd_keyset, *args)


def _no_gradient(name: str, op: Any) -> Function:
    parameters = tuple(a.name for a in op._schema.arguments)

    def refuse(*args: Any) -> Any:
        tensors = [(p, a) for p, a in zip(parameters, args, strict=False) if isinstance(a, Tensor)]
        first = next((p for p, a in tensors if a.requires_grad or has_tangent([a])), "x")
        raise RuntimeError(
            f"{name}: {first} requires grad or has a tangent, "
            "expected a call without: it is forward only"
        )

    return refuse


def _by_formula(fwd: Function, decomposed: Function) -> type[torch.autograd.Function]:
    """Return the autograd.Function of an operator whose gradient has no kernels of its own.

    The tensors come first among the arguments.
    """

    class ByFormula(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            ctx.save_for_backward(*(a for a in args if isinstance(a, Tensor)))
            ctx.rest = [a for a in args if not isinstance(a, Tensor)]
            return fwd(*args)

        @staticmethod
        def backward(ctx: Any, *dys: Tensor) -> Any:
            args = (*ctx.saved_tensors, *ctx.rest)
            return differentiable_backward(decomposed, args, ctx.needs_input_grad, *dys)

    return ByFormula


def has_tangent(tensors: Sequence[Tensor]) -> bool:
    """Return whether forward mode differentiates through one of the tensors.

    Compiled graphs enter their level in C++, unseen by forward_ad, so the tensors are asked.
    """
    return any(torch._VF._unpack_dual(t, level=0).tangent is not None for t in tensors)


def wants_graph(tensors: Sequence[Tensor | None]) -> bool:
    """Return whether a backward must itself be differentiable, in reverse or in forward mode."""
    return torch.is_grad_enabled() or (
        fwd_ad._current_level >= 0 and has_tangent([t for t in tensors if t is not None])
    )


def differentiable_backward(
    decomposed: Function, args: Sequence[Any], needs: Sequence[bool], *dys: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return the formula's gradients, which can themselves be differentiated where that is wanted.

    dys: one for each output of `decomposed`, None where nothing came.
    """
    graph = wants_graph([*dys, *(a for a in args if isinstance(a, Tensor))])
    with torch.enable_grad():
        # Views of the arguments: the search for gradients ends there, short of what made the
        # arguments (one may depend on another) and of the hooks on them.
        args = [a.view_as(a) if need else a for a, need in zip(args, needs, strict=True)]
        wanted = [a for a, need in zip(args, needs, strict=True) if need]
        outputs = decomposed(*args)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        live = [
            (y, dy)
            for y, dy in zip(outputs, dys, strict=True)
            if dy is not None and y.requires_grad
        ]
        ys, seeds = [y for y, _ in live], [dy for _, dy in live]
        grads = iter(torch.autograd.grad(ys, wanted, seeds, create_graph=graph, allow_unused=True))
    return tuple(next(grads) if need else None for need in needs)


def implementations(contract: Contract, triton: Kernels | None, eager: Function) -> Selector:
    """Register an operator; return its selector, in order of preference."""
    binary = native_variant(contract)
    choices = [
        Choice("cuda", binary.call, binary.public, partial(binary.unavailable, "cuda")),
        Choice("cpu", binary.call, binary.public, partial(binary.unavailable, "cpu")),
    ]
    if triton is not None:
        variant = triton_variant(contract, triton)
        choices.append(Choice("triton", variant.call, variant.public, triton_unavailable))
    choices.append(Choice("eager", eager, eager, lambda device_type: None))
    return Selector(contract.name, tuple(choices), on_meta=binary.public)


def native_variant(contract: Contract) -> Variant:
    """Register the rules of the operators in the binary; without it, also their schemas."""
    binary = native.status()
    missing = {
        device: reason
        for device in ("cpu", "cuda")
        if (reason := native.why_no_kernel(f"{NAMESPACE}::{contract.name}", device)) is not None
    }
    for name, schema in contract.schemas().items():
        if binary.state != "loaded":
            if f"{NAMESPACE}::{name}" in native.operators():
                continue  # another copy's, or those of a binary that does not fit
            _LIBRARY.define(name + schema)
        for device, reason in missing.items():
            _LIBRARY.impl(name, _refuse(name, reason), device.upper())
    return _finish(contract, "", None, missing)


def triton_variant(contract: Contract, kernels: Kernels) -> Variant:
    """Register a Triton implementation as <op>__triton; compiled graphs trace through it."""
    functions = [kernels.run, kernels.run, *(f for f in (kernels.fwd, kernels.bwd) if f)]
    schemas = contract.schemas("__triton")
    for (name, schema), function in zip(schemas.items(), functions, strict=True):
        _LIBRARY.define(name + schema)
        kernel = boundary.on_triton(contract.name, function)
        _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
        torch.library.register_torch_dispatch(
            f"{NAMESPACE}::{name}", FunctionalTensorMode, _trace_through(function), lib=_LIBRARY
        )
    return _finish(contract, "__triton", kernels, {})


def _direct(kernels: Kernels, bwd: Function) -> tuple[Function, Function]:
    """Return the kernels without their operators; batched gradients need the vmap rule."""
    forward, backward = kernels.fwd or kernels.run, kernels.bwd
    assert backward is not None

    def direct(*args: Any) -> Any:
        batched = torch._C._are_functorch_transforms_active()
        return (bwd if batched else backward)(*args)

    return forward, direct


def _trace_through(function: Function) -> Function:
    """Let AOTAutograd's mode see kernel launches instead of the operator, as triton_op does."""

    def decompose(mode: Any, op: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        # Importing torch.export costs a second, and only a compiler gets here.
        from torch.export._trace import custom_triton_ops_decomposition_disabled

        if custom_triton_ops_decomposition_disabled():  # torch.export keeps the operator
            return mode.__torch_dispatch__(op, types, args, kwargs)
        with mode:
            return function(*args, **(kwargs or {}), wrap=torch.library.wrap_triton)

    return decompose


def _refuse(name: str, reason: str) -> Function:
    def kernel(*args: Any) -> Any:
        raise RuntimeError(f"{NAMESPACE}::{name}: {reason}")

    return kernel


def _finish(
    contract: Contract, suffix: str, kernels: Kernels | None, missing: dict[str, str]
) -> Variant:
    names = [f"{NAMESPACE}::{name}" for name in contract.schemas(suffix)]
    fakes = [
        contract.fake,
        contract.fake,
        *(f for f in (contract.fake_fwd, contract.fake_bwd) if f),
    ]
    for name, fake in zip(names, fakes, strict=True):
        torch.library.register_fake(name, fake, lib=_LIBRARY)
    for name in contract.schemas(suffix):
        op = getattr(getattr(torch.ops, NAMESPACE), name).default
        check = boundary.checking(contract.name, op)
        for key in boundary.KEYS:
            _LIBRARY.impl(name, boundary.refusing(contract.name, check), key)
        _LIBRARY.impl(name, boundary.without_negative_bit(contract.name, op, check), "Negative")
    variant = Variant(contract, suffix, kernels, missing)
    public = contract.name + suffix
    _LIBRARY.impl(public, variant.autograd_rule, "Autograd", with_keyset=True)
    for name, op in ((names[0], variant.public), (names[1], variant.raw)):
        torch.library.register_vmap(name, contract.vmap(op), lib=_LIBRARY)
    return variant
