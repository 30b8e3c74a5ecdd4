"""Stamps an operator on torch.ops.fuseline: schemas, fakes, autograd and vmap rules.

The only module that uses torch.library.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensorMode

from fuseline.core import native, saving
from fuseline.core.device import triton_unavailable
from fuseline.core.gradients import differentiable_backward as differentiable_backward
from fuseline.core.gradients import has_tangent as has_tangent
from fuseline.core.gradients import wants_graph as wants_graph
from fuseline.core.inputs import boundary
from fuseline.core.registration.fingerprint import known_to_caches
from fuseline.core.registration.provider import Kernels as Kernels
from fuseline.core.registration.provider import Provider as Provider
from fuseline.core.registration.variant import Variant, applied, guarded
from fuseline.core.saving import Gradient as Gradient
from fuseline.core.selection.auto import serving
from fuseline.core.selection.rules import Fact
from fuseline.core.selection.select import Auto, Choice, Selector

NAMESPACE = "fuseline"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")

Function = Callable[..., Any]
# What is registered: each contract with the suffixes of its operators.
variants: list[tuple[Contract, str]] = []
# Contract and formula of the operators in the binary, by name.
registered: dict[str, tuple[Contract, Function]] = {}


@dataclass(frozen=True)
class Contract:
    """What all implementations of one operator share.

    args, returns                              halves of the public schema
    fwd_returns, bwd_args, bwd_returns         those of the forward that saves, and its backward
    fake, fake_fwd, fake_bwd                   shapes and dtypes of the outputs
    decomposed                                 the formula in differentiable torch operations
    gradient                                   what is saved, and what the backward takes and gives
    function                                   (fwd, bwd) -> the autograd.Function over them; None:
                                               that of `gradient`, which else tells of calls whose
                                               gradients are all the backward's
    facts                                      what rules for "auto" may ask of a call
    gradients                                  of which arguments every call of the backward returns
                                               the gradients, in order; (): those of `gradient`
                                               where that makes the function, else nothing is known
    vmap                                       rule: (op) -> (info, in_dims, *args) -> (outs, dims)

    Without either the operator has no operators of the second and third line: its gradient is
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
    gradient: Gradient | None = None
    function: saving.Maker | None = None
    returns: str = "Tensor"
    facts: Mapping[str, Fact] = field(default_factory=dict)
    gradients: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.plan is not None and self.function is None:
            object.__setattr__(self, "function", saving.function(self.plan))
            object.__setattr__(self, "gradients", self.plan.gradient.grads)

    @cached_property
    def plan(self) -> saving.Plan | None:
        """The gradient's names as places."""
        if self.gradient is None:
            return None
        assert self.decomposed is not None
        args, bwd_args = map(saving.Parameter.all, (self.args, self.bwd_args))
        name = "".join(word.capitalize() for word in self.name.split("_"))
        return saving.Plan(name, self.gradient, args, bwd_args, self.decomposed)

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


def triton_beside(op: str, name: str = "impl_triton") -> Callable[[], Any]:
    """Import a module of the folder in which the module `op` lies, when it is first called.

    Importing Triton takes longer than importing us; an import statement costs each call 0.4 us.
    """
    return cache(partial(importlib.import_module, f"{op.rpartition('.')[0]}.{name}"))


def implementations(
    contract: Contract, triton: Kernels | None, eager: Function, *providers: Provider
) -> Selector:
    """Register an operator; return its selector, in order of preference."""
    registered[contract.name] = contract, eager
    binary = native_variant(contract)
    own = (binary.call, binary.public)
    choices = [
        Choice(name, *own, partial(binary.unavailable, name), **binary.parts)
        for name in ("cuda", "cpu")
    ]
    if triton is not None:
        variant = _triton_variant(contract, triton)
        choices.append(
            Choice("triton", variant.call, variant.public, triton_unavailable, **variant.parts)
        )
    choices += [_provided(contract, provider) for provider in providers]
    choices.append(_fallback(eager))
    auto = _by_arguments(contract, binary.public) if providers else None
    selector = Selector(contract.name, tuple(choices), binary.public, auto)
    if providers:
        selector.traced_auto = _auto_variant(contract, selector, "__auto").public
    return selector


def provided(contract: Contract, eager: Function, *providers: Provider) -> Selector:
    """Register an operator without kernels in the binary; return its selector, in order of
    preference. The public operator is "auto": it runs what that picks.
    """
    choices = (*(_provided(contract, provider) for provider in providers), _fallback(eager))
    packet = getattr(torch.ops, NAMESPACE)

    def public(*args: Any) -> Any:
        return getattr(packet, contract.name).default(*args)

    selector = Selector(contract.name, choices, public, _by_arguments(contract, public))
    selector.is_public(_auto_variant(contract, selector, "").public)
    return selector


def _fallback(eager: Function) -> Choice:
    return Choice("eager", eager, eager, lambda device_type: None)


def _by_arguments(contract: Contract, public: Function) -> Auto:
    """Return what "auto" is where arguments decide."""

    def differentiable(fwd: Function, bwd: Function) -> Function:
        assert contract.function is not None
        return applied(contract.function(fwd, bwd))

    def chosen(selector: Selector, device_type: str) -> Function:
        return guarded(public, *serving(selector, "eager", differentiable, device_type))

    return Auto(contract.facts, chosen)


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
            # A kernel that is there refuses by itself.
            if not native.has_kernel(f"{NAMESPACE}::{name}", device):
                _LIBRARY.impl(name, _refuse(name, reason), device.upper())
    return _finish(contract, "", None, missing)


def _triton_variant(contract: Contract, kernels: Kernels) -> Variant:
    """Register a Triton implementation as <op>__triton; compiled graphs trace through it."""
    functions = (kernels.run, kernels.run, *(f for f in (kernels.fwd, kernels.bwd) if f))
    on_triton = partial(boundary.where_it_runs, contract.name, "triton", triton_unavailable)
    _define(contract, "__triton", functions, on_triton, True)
    return _finish(contract, "__triton", kernels, {})


def _provided(contract: Contract, provider: Provider) -> Choice:
    """Register a provider's kernels as <op>__<name>; return them as a choice."""
    kernels, suffix = provider.kernels, f"__{provider.name}"
    refusing = partial(provider.refusing, contract)
    run = refusing(kernels.run, "fwd")
    saving = [refusing(kernels.fwd, "fwd")] if kernels.fwd else []
    bwd = provider.backward(contract)
    functions = [run, run, *saving, *([bwd] if bwd else [])]
    each = zip(contract.schemas().values(), _fakes(contract), functions, strict=True)
    checked = [_checked(contract.name, *of_one) for of_one in each]
    there = partial(boundary.where_it_runs, contract.name, provider.name, provider.unavailable)
    _define(contract, suffix, checked, there, provider.through)
    variant = _finish(contract, suffix, kernels, {}, refusing=refusing)
    return Choice(
        provider.name,
        variant.call,
        variant.public,
        provider.unavailable,
        provider.unsupported,
        provider.by_rule,
        **variant.parts,
    )


def _checked(op: str, schema: str, fake: Function, function: Function) -> Function:
    """Return a kernel that refuses what ours refuse: another project's may crash."""
    names = boundary.names(schema[1 : schema.index(")")])

    def kernel(*args: Any, **options: Any) -> Any:
        boundary.refuse_freed(op, names, args)
        fake(*args)
        with torch._C._AutoDispatchBelowAutograd():
            return function(*args, **options)

    return kernel


def _fakes(contract: Contract) -> list[Function]:
    """Return what the contract's operators make of tensors without data, in their order."""
    return [
        contract.fake,
        contract.fake,
        *(f for f in (contract.fake_fwd, contract.fake_bwd) if f),
    ]


def _auto_variant(contract: Contract, selector: Selector, suffix: str) -> Variant:
    """Register <op><suffix>, which is whatever arguments make of "auto", as a compiler meets them.

    Graphs trace through it, so that they hold what was picked.
    """

    def served(*args: Any) -> tuple[Function, Function]:
        if not isinstance(args[0], torch.Tensor):
            contract.fake(*args)  # which refuses None, an undefined tensor
        return serving(selector, "graph", differentiable, args[0].device.type)

    def differentiable(fwd: Function, bwd: Function) -> Function:
        assert contract.function is not None
        return contract.function(fwd, bwd).apply

    def call(which: int, *args: Any) -> Any:
        try:
            return served(*args)[which](*args)
        except Exception:
            # These name the argument, which reasons do not look at first.
            boundary.refuse_freed(contract.name, boundary.names(contract.args), args)
            contract.fake(*args)
            raise

    def run(*args: Any, wrap: Any = None) -> Any:
        return call(0, *args)

    apply = partial(call, 1)

    plain = replace(contract, gradient=None, function=None, fake_fwd=None, fake_bwd=None)
    _define(plain, suffix, (run, run), lambda function: function, True)
    return _finish(plain, suffix, Kernels(run), {}, apply=apply)


def _define(
    contract: Contract,
    suffix: str,
    functions: Sequence[Function],
    kernel_of: Callable[[Function], Function],
    through: bool,
) -> None:
    """Define operators over Python functions; `through`: compiled graphs trace through these."""
    for (name, schema), function in zip(contract.schemas(suffix).items(), functions, strict=True):
        _LIBRARY.define(name + schema)
        check = boundary.checking(contract.name, _operator(name))
        kernel = boundary.after(check, kernel_of(function))
        _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
        if through:
            torch.library.register_torch_dispatch(
                f"{NAMESPACE}::{name}", FunctionalTensorMode, _trace_through(function), lib=_LIBRARY
            )


def kernel_below(schema: str, device_type: str) -> Function | str:
    """Return the kernel that torch has now for one of its operators on a kind of device, which
    stays that one, or why there is none.
    """
    name, key = schema.partition("(")[0], device_type.upper()
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    found = str(packet.default._schema) if packet else "no such operator"
    if packet is None or found != schema:
        return f"torch {torch.__version__} has {found}, expected {schema}"
    if not torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
        return f"torch {torch.__version__} has no {device_type} kernel of {name}"
    call = torch.library.get_kernel(packet.default, key).call_boxed
    return partial(call, torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)))


def stand_in(kernels: Mapping[str, Function], key: str) -> torch.library.Library:
    """Put Python kernels in the place of ATen's for a dispatch key, until the library goes."""
    library = torch.library.Library("aten", "IMPL", key)
    with warnings.catch_warnings():  # of each that it had
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
        for name, kernel in kernels.items():
            library.impl(name, kernel, key)
    return library


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


def _operator(name: str) -> Any:
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def _refuse(name: str, reason: str) -> Function:
    def kernel(*args: Any) -> Any:
        raise RuntimeError(f"{NAMESPACE}::{name}: {reason}")

    return kernel


def _finish(
    contract: Contract,
    suffix: str,
    kernels: Kernels | None,
    missing: dict[str, str],
    **options: Any,
) -> Variant:
    variants.append((contract, suffix))
    names = [f"{NAMESPACE}::{name}" for name in contract.schemas(suffix)]
    for name, fake in zip(names, _fakes(contract), strict=True):
        torch.library.register_fake(name, known_to_caches(fake), lib=_LIBRARY)
    for name in contract.schemas(suffix):
        op = _operator(name)
        check = boundary.checking(contract.name, op)
        for key in boundary.KEYS:
            _LIBRARY.impl(name, boundary.refusing(contract.name, check), key)
        _LIBRARY.impl(name, boundary.without_negative_bit(contract.name, op, check), "Negative")
    ops = tuple(map(_operator, contract.schemas(suffix)))
    variant = Variant(contract, ops, kernels, missing, **options)
    public = contract.name + suffix
    _LIBRARY.impl(public, variant.autograd_rule, "Autograd", with_keyset=True)
    for name, op in ((names[0], variant.public), (names[1], variant.raw)):
        torch.library.register_vmap(name, contract.vmap(op), lib=_LIBRARY)
    return variant
